"""`mcp`: serve the tools of the crawler to a program that speaks MCP."""

import sys

import click

from crawler import config, logs
from crawler.cli.options import data_dir_option


@click.command()
@data_dir_option
def mcp() -> None:
    """Serve tools for language models over stdin and stdout (Model Context Protocol).

    A client such as an editor or a chat program starts this command and ends it. It needs the
    extra `mcp`. Log lines go to stderr.

    \b
    Example:
      python -m crawler mcp --data-dir /srv/crawler/data
    """
    from crawler.api.mcp import serve_stdio

    settings = config.load()
    logs.setup(settings.log_level)
    if sys.stdin.isatty():  # whoever types the command would see nothing, and wait
        click.echo("waiting for an MCP client on stdin; Ctrl-C ends this", err=True)
    serve_stdio(settings)
