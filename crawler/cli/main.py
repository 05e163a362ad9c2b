"""`python -m crawler`: commands are imported when they run, so that `--help` is fast."""

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
    "run": ("bulk", "Collect every URL of a file, from start to summary."),
    "resume": ("bulk", "Go on with every open task."),
    "scrape": ("scrape", "Fetch one URL now and show its record."),
    "raw": ("scrape", "Give the stored page of a URL."),
    "status": ("status", "What is done, what is not, and what runs."),
    "job": ("job", "Jobs: list, show, verify, accept, pause, resume, cancel."),
    "tasks": ("job", "List tasks by state and reason."),
    "retry": ("job", "Try again what has failed."),
    "why": ("job", "The whole timeline of a URL."),
    "results": ("results", "List, show, export, archive and carry results."),
    "analyze": ("results", "What results hold and lack, and what changed between two runs."),
    "prune": ("results", "Remove raw pages that are old enough."),
    "doctor": ("stack", "Examine the store and the stack, and mend what can be mended."),
    "domains": ("status", "What is known of each domain, and how to forget it."),
    "audit": ("status", "The true request rate of each domain, and any breach of its limit."),
    "judge": ("scrape", "What a page really is, and by what one can tell."),
    "drill": ("stack", "The crash test, on this machine: kill things and count what is lost."),
    "ondemand": ("ondemand", "Work for a Gateway: take its tasks, deliver their results."),
    "sync": ("ondemand", "What a Gateway has got, is to get and has refused; and how to send it."),
    "gateway": ("gateway", "Run a Gateway, for a fleet of machines or for tests."),
    "up": ("stack", "Start Redis and workers in the background."),
    "down": ("stack", "Stop what `up` has started."),
    "worker": ("stack", "Run a worker in this terminal."),
    "demo": ("stack", "Crawl a small site on this machine, to see it work."),
    "completion": ("completion", "Have bash, zsh or fish complete commands and options."),
    "supervise": ("stack", ""),
    "agent": ("ondemand", ""),
}
_HIDDEN = {"supervise", "agent"}
COMPLETE = "_CRAWLER_COMPLETE"
"""By this variable a shell asks for completions."""


class LazyGroup(click.Group):
    """Knows its commands by name and imports one only when it is asked for."""

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
        """Without importing every command that begins so."""
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
    help="The store (default: CRAWLER_DATA_DIR, else ./data).",
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
    """Print the script that has SHELL complete what is typed behind `crawler`.

    It works for the program `crawler`, not for `python -m crawler`. A line in the shell's own file
    makes it last: ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.

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
    except RuntimeError as error:  # a bash that is too old, or none
        raise UsageError(str(error)) from None
    print(script)


def _tell(text: str) -> None:
    """A line on stderr, as long as anybody reads it."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        leave_lost_terminal()


def _end_of_writing(error: OSError) -> int:
    """The exit code after a write has failed: for a reader or a terminal that has gone, that is no
    failure."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing is left to say to it
        return 0
    if error.errno == errno.EIO and leave_lost_terminal():
        return 0
    # Files that are read or written by name have errors of their own.
    _tell(f"Error: the data folder cannot be used ({error})")
    return StoreError.exit_code


def main() -> None:
    """Run a command; every error of ours is one line and an exit code of its own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows less than we say
    if asked := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "crawler", COMPLETE, asked))
    try:
        # Not cli.main(): that takes a reader of stdout who has gone for a failure.
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
        code = _end_of_writing(error)
    sys.exit(code if isinstance(code, int) else 0)
