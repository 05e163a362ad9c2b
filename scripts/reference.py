"""Writes docs/CLI.md and docs/CONFIGURATION.md from the code; with --check it only says whether
they are up to date."""

import ast
import inspect
import io
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path

import click
import msgspec

from crawler import config
from crawler.cli.main import cli
from crawler.cli.main import main as program

WIDTH = "112"
"""Columns of a terminal on which no help is wrapped earlier than elsewhere."""
NOTE = (
    "Generated from the code by `python scripts/reference.py`; the tests fail where the two "
    "differ.\n"
)


def commands(
    group: click.Group, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is not hidden, with the words one types."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if not command.hidden:
            yield (*path, name), command
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))


def cli_reference() -> str:
    """All commands with their help."""
    parts = ["# Commands\n", NOTE]
    parts.append(_help(()))
    for path, _ in commands(cli, ()):
        parts.append(f"{'#' * (1 + len(path))} {' '.join(path)}\n")
        parts.append(_help(path))
    return "\n".join(parts)


def _help(path: tuple[str, ...]) -> str:
    """What the program itself prints on a wide terminal: a text made in another way may differ from
    that."""
    os.environ["COLUMNS"] = WIDTH
    sys.argv = ["crawler", *path, "--help"]
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        program()
    return f"```\n{printed.getvalue()}```\n"


def configuration_reference() -> str:
    """All settings with their defaults."""
    meanings = _field_docs()
    lines = ["# Settings\n", NOTE]
    lines.append(
        "Settings come from the environment. An unknown `CRAWLER_*` name is an error, and so is a "
        "bad value.\n"
    )
    lines += ["| variable | default | meaning |", "|---|---|---|"]
    for variable, field in config.VARIABLES.items():
        default = field.default if field.default is not msgspec.NODEFAULT else ""
        shown = (
            ""
            if default in (None, ())
            else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        )
        lines.append(f"| `{variable}` | {shown} | {meanings[field.name]} |")
    lines.append(
        "\nRefused, because the feature that they belong to is still missing: "
        + ", ".join(f"`{name}` ({feature})" for name, feature in config.NOT_YET.items())
        + "."
    )
    return "\n".join(lines) + "\n"


def _field_docs() -> dict[str, str]:
    """The sentences below the fields of Settings."""
    [body] = [
        node.body
        for node in ast.parse(inspect.getsource(config)).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ]
    docs = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(below, ast.Expr), field.target.id
            assert isinstance(below.value, ast.Constant), field.target.id
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs


def main() -> int:
    """Write the pages, or with --check compare them."""
    stale, check = [], "--check" in sys.argv
    for path, text in (
        (Path("docs/CLI.md"), cli_reference()),
        (Path("docs/CONFIGURATION.md"), configuration_reference()),
    ):
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(path))
    for name in stale:
        print(
            f"{name} is not what the code says; run: python scripts/reference.py", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
