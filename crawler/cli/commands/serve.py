"""`serve`: run the HTTP API, and manage its tokens."""

import time
from typing import TYPE_CHECKING

import click

from crawler import config, logs
from crawler.cli.options import data_dir_option, json_option
from crawler.cli.output import print_json, say
from crawler.config import Settings, program
from crawler.logs import counted

if TYPE_CHECKING:
    from crawler.api.tokens import Scope, TokenFile

SCOPES = ("read", "crawl", "admin")


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port; 0 takes any free one.",
)
@click.option(
    "--local",
    is_flag=True,
    help="Only this machine reaches the port: in a container that publishes it on 127.0.0.1.",
)
@data_dir_option
@click.pass_context
def serve(context: click.Context, host: str, port: int, local: bool) -> None:
    """Serve the HTTP API until Ctrl-C: batches, their results and streams.

    On this machine alone it needs no token until there is one. Elsewhere it needs one:
    CRAWLER_API_TOKEN, the file CRAWLER_API_TOKEN_FILE, or those of `serve token add`.

    \b
    Example:
      python -m crawler serve
      python -m crawler serve --port 8080
      python -m crawler serve token add research --max-urls 50000
    """
    if context.invoked_subcommand is not None:
        return
    from crawler.orchestrator import terminated_by_signal

    settings = config.load()
    logs.setup(settings.log_level)
    with terminated_by_signal():
        from crawler.api.server import serve as run

        run(settings, host, port, lambda url: say(f"the API listens on {url}"), local)


@serve.group()
def token() -> None:
    """Add, list and remove tokens of clients. A running server knows of changes at once.

    \b
    Example:
      python -m crawler serve token add research
      python -m crawler serve token list
    """


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    help="What it may do; may be repeated (default: crawl, which includes read).",
)
@click.option("--max-urls", type=click.IntRange(1), help="URLs that it may have open at a time.")
@click.option("--max-sessions", type=click.IntRange(1), help="Sessions that may run at a time.")
@json_option
@data_dir_option
def add(
    name: str,
    scopes: "tuple[Scope, ...]",
    max_urls: int | None,
    max_sessions: int | None,
    as_json: bool,
) -> None:
    """Make a token for the client NAME and print it. It cannot be shown again.

    As soon as there is a token, all requests need one. A client sees only its own sessions. With
    the scope `read` it only looks, with `crawl` it also sends URLs, and with `admin` it may also
    use the options `rate` and `ignore_robots`.

    \b
    Example:
      python -m crawler serve token add research
      python -m crawler serve token add dashboard --scope read
    """
    secret = _token_file().add(name, scopes or ("crawl",), max_urls, max_sessions)
    if as_json:
        print_json({"name": name, "token": secret})
    else:
        print(secret)
        say("this is shown only now: keep it in a safe place")


@token.command("list")
@json_option
@data_dir_option
def list_(as_json: bool) -> None:
    """List the tokens with scopes and limits, but not the secrets.

    \b
    Example:
      python -m crawler serve token list
    """
    tokens = _token_file().all()
    about = [
        {
            "name": each.name,
            "scopes": each.scopes,
            "max_urls": each.max_urls,
            "max_sessions": each.max_sessions,
            "created_at": each.created_at,
        }
        for each in tokens
    ]
    if as_json:
        return print_json(about)
    if not tokens:
        print(f"There are no tokens; add one: {program()} serve token add NAME")
    rows = []
    for each in tokens:
        limits = [
            f"at most {counted(most, what)}"
            for most, what in ((each.max_urls, "URL"), (each.max_sessions, "session"))
            if most is not None
        ]
        since = time.strftime("%Y-%m-%d", time.localtime(each.created_at))
        rows.append([each.name, "+".join(each.scopes), f"since {since}", ", ".join(limits)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    return None


@token.command()
@click.argument("name")
@data_dir_option
def remove(name: str) -> None:
    """Remove the token of the client NAME. What it has crawled stays.

    \b
    Example:
      python -m crawler serve token remove research
    """
    _token_file().remove(name)
    print(f"The token of {name} opens nothing any more")


def _token_file() -> "TokenFile":
    from crawler.api.tokens import TokenFile

    settings: Settings = config.load()
    return TokenFile(settings.data_dir)
