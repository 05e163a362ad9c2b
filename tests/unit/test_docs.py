"""The docs say what can be typed, and walk through what the requirements ask for."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from crawler import models
from crawler.cli import output
from crawler.cli.commands import stack
from crawler.cli.main import cli
from crawler.db import links as crawl_tables
from crawler.scraping import follow, scope
from crawler.sites import links, sitemaps

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def typed() -> Iterator[tuple[str, str]]:
    """Every command of ours in a block or a cell of the docs, with its page."""
    for page in PAGES:
        for line in page.read_text().splitlines():
            for found in re.findall(r"python -m crawler [^`|;\n]*", line):
                command = found.partition("  #")[0].partition(" && ")[0].strip(" ;,.)")
                if "…" not in command and not re.search(r"\[[A-Z]", command):
                    yield page.name, command


@pytest.mark.parametrize(("page", "command"), sorted(set(typed())))
def test_commands_in_the_docs_can_be_typed(page: str, command: str) -> None:
    """Words and options of every shown command exist; a page that lies fails."""
    words = [
        word
        for word in shlex.split(command)[3:]
        if word not in ("COMMAND", "[ARGS]...", "[OPTIONS]")
    ]
    before = dict(os.environ)
    try:
        group: click.Command = cli
        context = click.Context(cli)
        while isinstance(group, click.Group):
            if words[:1] == ["--data-dir"]:
                words = words[2:]
            if not words:
                return  # a page may speak of a group
            if words[0].startswith("-"):
                break  # a group that is a command, too
            name, *words = words
            child = group.get_command(context, name)
            assert child is not None, f"{page}: there is no {name} in: {command}"
            group = child
        if words:
            group.make_context(group.name, list(words))
    except click.exceptions.Exit:
        pass  # --help
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize("command", ["", "bulk import", "job", "results export", "completion"])
def test_the_reference_is_what_the_program_prints(tmp_path: Path, command: str) -> None:
    """Each block of docs/CLI.md is the help as a user sees it, to the letter."""
    done = subprocess.run(
        [sys.executable, "-m", "crawler", *command.split(), "--help"],
        cwd=tmp_path, env=os.environ | {"COLUMNS": "112"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip

    assert f"```\n{done.stdout}```\n" in (ROOT / "docs" / "CLI.md").read_text()


def test_the_kill_table_has_one_source() -> None:
    """What `drill` and the README say about other crawlers is what was measured last, to the
    number."""
    section = (
        (ROOT / "benchmarks" / "RESULTS.md")
        .read_text()
        .partition("<!-- crash -->")[2]
        .partition("<!-- /crash")[0]
    )
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    measured = [(int(row[1]), int(row[2]), row[0].replace("`", "")) for row in rows[3:]]
    readme = (ROOT / "README.md").read_text()
    filtered, plain, persistent, crawlee, celery = measured

    assert list(stack.PEER_LOSSES) == measured
    for peer in stack.PEERS.split(", "):
        assert peer.lower() in section
    scrapy = f"{filtered[0]}, or {plain[0]} but {plain[1]} fetched again"
    assert re.search(rf"\| Scrapy, as shipped \| \d+ \| {scrapy}, by how it is started \|", readme)
    assert re.search(rf"\| scrapy-redis \| \d+ \| {persistent[0]} \|", readme)
    assert re.search(rf"\| Crawlee, on disk \| \d+ \| {crawlee[0]} \|", readme)
    assert re.search(rf"\| one Celery task per URL \| \d+ \| {celery[0]} \|", readme)


def test_the_scenarios_are_walked_through_literally() -> None:
    """Each step of Scenarios A, B and C, as the requirements have it, is in docs/STANDALONE.md."""
    page = (ROOT / "docs" / "STANDALONE.md").read_text()
    for step in (
        "docker-compose -f docker-compose.standalone.yml up -d",
        "python -m crawler bulk import auction_parcels.csv --queue=urgent",
        "open http://localhost:5555",
        "ls ./data/pending/*.json",
        "python -m crawler bulk import test_sample.csv",
        "python -m crawler analyze ./data/pending/",
        "docker-compose -f docker-compose.standalone.yml down -v",
        """celery -A crawler call scrape_task --args='["http://county.gov/parcel/123"]'""",
        "scrape_task.delay(",
        "docker exec -it redis redis-cli",
    ):
        assert step in page, step
    for module in (
        "cli/commands/bulk",
        "cli/commands/results",
        "cli/commands/scrape",
        "db/schema",
        "config",
    ):
        assert (ROOT / "crawler" / f"{module}.py").is_file()


def test_every_guard_is_explained() -> None:
    """docs/CRAWLS.md has a row for each guard that a summary can name, with its limit."""
    page = (ROOT / "docs" / "CRAWLS.md").read_text()
    section = page.partition("\n## Guards\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))

    assert set(rows) == set(output.GUARDS)
    for guard, limit in (
        ("limit", models.MAX_CRAWL_PAGES),
        ("links_per_page", links.MAX_LINKS),
        ("url_length", scope.MAX_URL_LENGTH),
        ("repeated_path", scope.MAX_SAME_SEGMENTS),
        ("calendar", scope.YEARS_BACK),
        ("calendar", scope.YEARS_AHEAD),
        ("sitemaps", crawl_tables.MAX_SITEMAPS),
        ("sitemap_levels", follow.MAX_SITEMAP_LEVELS),
        ("sitemap_size", sitemaps.MAX_URLS),
    ):
        assert re.search(rf"\b{limit:,}\b", rows[guard]), (guard, limit)


def test_the_layers_are_those_of_the_contract() -> None:
    """docs/ARCHITECTURE.md names the modules in the order that the import linter checks."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    shown = re.findall(r"`(cli → .*?)`", page, re.DOTALL)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = project["tool"]["importlinter"]["contracts"]

    layers = " → ".join(layer.replace(" | ", ", ") for layer in contract["layers"])
    assert [" ".join(text.split()) for text in shown] == [layers]


def test_every_package_and_module_is_explained() -> None:
    """docs/ARCHITECTURE.md has a row for each part of the program."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    section = page.partition("\n## The packages\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)/?`", row)}

    parts = {path.name for path in (ROOT / "crawler").iterdir() if path.name[0] != "_"}
    assert named == parts
