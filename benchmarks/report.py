"""The report, RESULTS.md: each part of the benchmark writes sections of its own and leaves the
others as they are."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

RESULTS = Path(__file__).with_name("RESULTS.md")
ORDER = (
    "speed",
    "crash",
    "crash_links",
    "links",
    "browser",
    "replay",
    "library",
    "prune",
    "api",
    "parts",
)
"""The sections, in the order in which they are read."""
PEERS = (
    "scrapy",
    "scrapy-redis",
    "crawlee",
    "playwright",
    "celery",
    "requests",
    "beautifulsoup4",
    "aiohttp",
    "uvloop",
    "selectolax",
)
OURS = ("crawler", "celery", "redis", "apsw", "selectolax")


def section(name: str, text: str, file: Path = RESULTS) -> None:
    """Put a section in its place, or in place of what it was."""
    head, found = (
        "# Results\n\nWritten by `sh benchmarks/run`; [README.md](README.md) says how.",
        dict[str, str](),
    )
    if file.exists():
        found = dict(
            re.findall(r"<!-- (\w+) -->\n(.*?)\n<!-- /\1 -->", file.read_text(), re.DOTALL)
        )
    found[name] = text.strip()
    parts = [f"<!-- {each} -->\n{found[each]}\n<!-- /{each} -->" for each in ORDER if each in found]
    file.write_text("\n\n".join([head, *parts]) + "\n")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table: names to the left, figures to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def figure(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def machine(python: Path | None = None) -> str:
    """Where and when this is, and with what; `python` is the one that has the peers."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    about = [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"{os.cpu_count()} cores of {model[1] if model else platform.machine()}",
        f"{psutil.virtual_memory().total / 2**30:.0f} GB",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in OURS),
    ]
    if python:
        code = f"from importlib.metadata import version\nfor n in {PEERS!r}: print(n, version(n))"
        told = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
        about.append("peers: " + ", ".join(told.stdout.splitlines()))
    return " · ".join(about)
