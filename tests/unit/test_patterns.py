"""Patterns of the package: `$` also matches before a line break at the end, `\\Z` does not."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import crawler
from crawler.arguments import Name, checked
from crawler.errors import UsageError

PACKAGE = Path(crawler.__file__).parent
FUNCTIONS = {"compile", "match", "fullmatch", "search", "sub", "split", "findall", "Meta"}


def patterns(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The ends of the texts that are given to functions of `re`, or to `Meta`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in FUNCTIONS:
            continue
        for given in (*node.args[:1], *(each.value for each in node.keywords)):
            end = given.values[-1] if isinstance(given, ast.JoinedStr) else given
            if isinstance(end, ast.Constant) and isinstance(end.value, str):
                yield node.lineno, end.value


def test_no_pattern_ends_with_a_dollar() -> None:
    """A name with a line break at its end would pass."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in patterns(ast.parse(path.read_text()))
        if text.endswith("$") and not text.endswith("\\$")
    ]
    assert found == []


def test_a_name_ends_without_a_line_break() -> None:
    """Also at its end."""
    for name in ("tree\n", "tr\nee", "", "x" * 201, None, 5, "\ud800"):
        with pytest.raises(UsageError, match="site: "):
            checked(name, Name, "site")
    assert checked("tree", Name, "site") == "tree"
    assert msgspec.convert("сайт", Name) == "сайт"
