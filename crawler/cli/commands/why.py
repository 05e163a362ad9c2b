"""`why`: one URL's timeline."""

import shutil
import sys
import textwrap
import time
from datetime import date, datetime, tzinfo

import click

from crawler import config, times
from crawler.cli.output import data_dir_option, json_option, print_json, stored
from crawler.history import Step, Timeline, timeline
from crawler.logs import printable
from crawler.waits import WaitFinder, describe_wait


@click.command()
@click.argument("url")
@json_option
@data_dir_option
def why(url: str, as_json: bool) -> None:
    """Tell all that happened to a URL (or a task, by its id): from the line of the file to the
    result's delivery.

    \b
    Example:
      python -m crawler why http://county.example/parcel/123
    """
    with stored() as lpm:
        look = WaitFinder(config.load(), lpm)
        found = [timeline(lpm, task, look) for task in lpm.tasks.find(url)]
    if as_json:
        print_json(found)
        return
    for number, each in enumerate(found):
        if number:
            print()
        _show(each, config.load().timezone)


def _show(found: Timeline, zone: str | None) -> None:
    tz = times.zone(zone)
    why = f": {found.reason} – {found.message}" if found.reason else ""
    print(printable(found.url or found.their_id or "no URL"))
    print(printable(f"task {found.task_id}, {found.status}{why}"))
    day: date | None = None
    for step in found.steps:
        at = None if step.at is None else datetime.fromtimestamp(step.at, tz).astimezone(tz)
        if at and at.date() != day:
            day = at.date()
            print(f"{at:%A %d %B %Y, %Z}")
        clock = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}" if at else ""
        _print(printable(f"  {clock:13}{step.what:13}{_words(step, tz, day)}".rstrip()))
    for wait in found.waits:
        _print(printable(f"  {'':13}{'waits for':13}{describe_wait(wait, time.time(), tz)}"))


def _print(line: str) -> None:
    """The line, on a terminal with what does not fit below its beginning."""
    if sys.stdout.isatty():
        line = textwrap.fill(
            line, shutil.get_terminal_size().columns - 1, subsequent_indent=" " * 28
        )
    print(line)


def _words(step: Step, tz: tzinfo | None, day: date | None) -> str:
    """The details of a step, the ones that are times as times, with their day where it is not the
    heading's."""
    parts = []
    for name, value in step.detail.items():
        if name in ("not_before", "until", "deadline") and value:
            at = datetime.fromtimestamp(value, tz).astimezone(tz)
            shown = f"{at:%H:%M:%S}" if at.date() == day else f"{at:%a %d %b %Y %H:%M:%S}"
            parts.append(f"{name.replace('_', ' ')} {shown}")
        elif name == "evidence" and isinstance(value, list):
            parts.append("because " + "; ".join(value))
        elif name == "evidence":
            parts.append("\n" + "\n".join(f"      {line}" for line in str(value).splitlines()))
        elif isinstance(value, dict):
            parts.append(f"{name} " + ":".join(str(item) for item in value.values()))
        else:
            parts.append(f"{name.removesuffix('_s').removesuffix('_ms')} {value}{_unit(name)}")
    return ", ".join(parts)


def _unit(name: str) -> str:
    return " ms" if name.endswith("_ms") else " s" if name.endswith("_s") else ""
