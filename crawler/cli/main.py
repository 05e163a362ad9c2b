"""`python -m crawler`. A command is imported only when it runs, which keeps `--help` fast."""

import errno
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from crawler import __version__
from crawler.errors import CrawlerError, StoreError, UsageError
from crawler.logs import leave_lost_terminal, printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMMANDS = {
    "bulk": ("bulk", "Import tasks from files."),
    "run": ("bulk", "Crawl every URL of a file and print a summary."),
    "crawl": ("crawl", "Crawl whole sites, following links and sitemaps."),
    "map": ("map", "List the URLs of a site: its sitemaps, then its start page."),
    "resume": ("bulk", "Continue with all open tasks."),
    "scrape": ("scrape", "Fetch one URL now and show its record."),
    "sites": ("sites", "Crawl sites by name; list, check, show and draft their files."),
    "raw": ("scrape", "Print the stored page of a URL."),
    "shell": ("shell", "Open a Python prompt with a page."),
    "status": ("status", "Show progress, running processes and disk space."),
    "job": ("job", "List, show, verify, accept, pause, resume and cancel jobs."),
    "tasks": ("job", "List tasks by state and reason."),
    "retry": ("job", "Retry tasks that ended without a result."),
    "why": ("job", "Show everything that happened to a URL."),
    "results": ("results", "List, show, export, archive and bundle results."),
    "listings": (
        "listings",
        "List listings, their changes, price history, visits and duplicates; export them.",
    ),
    "analyze": ("results", "Describe results, or compare two runs."),
    "replay": ("replay", "Run today's parser over stored pages, and show what differs."),
    "prune": ("results", "Delete old raw pages or old jobs."),
    "doctor": ("stack", "Check the store and the stack, and repair them."),
    "domains": ("status", "Show the live state of each domain, or reset it."),
    "audit": ("status", "Show the real request rate of each domain and any breach of its limit."),
    "judge": ("scrape", "Tell whether a page is good, thin or a wall, and why."),
    "drill": ("stack", "Run a crash test on this machine and count what is lost."),
    "ondemand": ("ondemand", "Work for a Gateway: take its tasks and deliver their results."),
    "sync": ("ondemand", "Show and control delivery to the Gateway."),
    "gateway": ("gateway", "Run a Gateway, for a fleet of machines or for tests."),
    "serve": ("serve", "Serve the HTTP API, and manage its tokens."),
    "mcp": ("mcp", "Serve tools for language models over stdin and stdout (MCP)."),
    "up": ("stack", "Start Redis and workers in the background."),
    "down": ("stack", "Stop the stack."),
    "worker": ("stack", "Run a worker in this terminal."),
    "demo": ("stack", "Crawl two small sites on this machine to see the crawler work."),
    "completion": ("", "Print a completion script for bash, zsh or fish."),
    "supervise": ("stack", ""),
    "agent": ("ondemand", ""),
}
"""Each command's module in `crawler.cli.commands`, and its line in `--help`."""
_HIDDEN = {"supervise", "agent"}
COMPLETE = "_CRAWLER_COMPLETE"
"""Shells set this variable to ask for completions."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if name not in _HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if cmd_name == "completion":
            return completion
        module = importlib.import_module(f"crawler.cli.commands.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "did you mean" in error.message.lower():
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete command names without importing the commands."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=_COMMANDS[name][1]) for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="crawler")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Data folder (default: CRAWLER_DATA_DIR, else ./data).",
)
def cli(data_dir: str | None) -> None:
    """A crawler that loses nothing, and proves it.

    \b
    Example:
      python -m crawler run parcels.csv
      python -m crawler status
      python -m crawler results export --format jsonl --output results.jsonl
    """
    if data_dir:
        os.environ["CRAWLER_DATA_DIR"] = data_dir


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands and options of `crawler`.

    It works for `crawler`, not for `python -m crawler`. To keep it, add the line below to your
    shell's startup file: ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.

    \b
    Example:
      source <(python -m crawler completion bash)
      source <(python -m crawler completion zsh)
      python -m crawler completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    try:
        script = kind(cli, {}, "crawler", COMPLETE).source()
    except RuntimeError as error:  # bash is missing or too old
        raise UsageError(str(error)) from None
    print(script)


def _tell(text: str) -> None:
    """Print a line on stderr; ignore a terminal that is gone."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        leave_lost_terminal()


def _exit_code_after_write_error(error: OSError) -> int:
    """Return the exit code after a failed write; a reader or terminal that is gone is no error."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader is gone
        return 0
    if error.errno == errno.EIO and leave_lost_terminal():
        return 0
    # Commands report errors of files that the user named, so this is the data folder.
    _tell(f"Error: the data folder cannot be used ({error})")
    return StoreError.exit_code


def main() -> None:
    """Run a command. Each `CrawlerError` becomes one line on stderr and its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal may lack characters
    if asked := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "crawler", COMPLETE, asked))
    try:
        # Not cli.main(): it treats a closed stdout (`| head`) as a failure.
        with cli.make_context("python -m crawler", sys.argv[1:]) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx:
            _tell(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n")
        _tell(f"Error: {printable(error.format_message())}")
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _tell("interrupted")
        code = 130
    except CrawlerError as error:
        _tell("Error: " + "\n".join(map(printable, str(error).split("\n"))))
        code = error.exit_code
    except UnicodeEncodeError as error:
        _tell(f"Error: {printable(error.object)} is not UTF-8 and cannot be stored")
        code = UsageError.exit_code
    except OSError as error:
        code = _exit_code_after_write_error(error)
    sys.exit(code if isinstance(code, int) else 0)
