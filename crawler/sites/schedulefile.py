"""Reads `config/schedules.yaml`: which sites are crawled when."""

import re
from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from crawler import times
from crawler.cron import Cron
from crawler.errors import InputError, UsageError
from crawler.sites.crawlfile import Pages
from crawler.sites.yamlfile import (
    Entries,
    Faults,
    Node,
    Wrong,
    checked,
    mapping,
    need,
    read_entries,
    text_check,
    text_of,
)

if TYPE_CHECKING:
    from crawler.sites import Site, Sites

SCHEDULES = "schedules.yaml"
ALL = "all"
"""Stands for every site that a crawl can begin with."""
MIN_EVERY_S, MAX_EVERY_S = 60, 366 * 86_400
MAX_SCHEDULES = 1_000
_NAME = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,98}(?<!\.)")

QueueName = Literal["urgent", "default"]
SiteCheck = Callable[[str], None]
"""Raises `UsageError` for a site that no crawl can begin with."""


class ScheduleKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of an entry."""

    sites: tuple[str, ...]
    cron: Cron | None = None
    every: int | None = None
    """In seconds."""
    limit: Pages | None = None
    queue: QueueName = "default"


class Schedule(ScheduleKeys, frozen=True, kw_only=True):
    """An entry of the file: sites, when they are crawled, and how."""

    name: str

    @property
    def shown(self) -> str:
        """The rule, as people read it."""
        if self.cron:
            return self.cron.text
        return f"every {_span(self.every or 0)}"

    def rule(self, timezone: str | None) -> str:
        """What its periods depend on: with another rule, a schedule begins anew."""
        if self.cron:
            return f"cron {self.cron.text} {timezone or 'system'}"
        return f"every {self.every} s"

    def latest(self, now: float, tz: tzinfo | None) -> float:
        """Return when the present period began."""
        if self.cron:
            return self.cron.latest(now, tz)
        assert self.every
        return now // self.every * self.every  # since the epoch, so that all beats agree

    def next(self, now: float, tz: tzinfo | None) -> float:
        """Return when the next period begins."""
        if self.cron:
            return self.cron.next(now, tz)
        assert self.every
        return (now // self.every + 1) * self.every

    def sites_of(self, known: "Sites") -> list[str]:
        """Return the names of its sites; `all` are those that a crawl can begin with now."""
        if self.sites != (ALL,):
            return list(self.sites)
        return [name for name in known.names if not missing_start(known.find(name))]


def _span(seconds: int) -> str:
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def missing_start(site: "Site") -> str:
    """Return why no schedule can begin a crawl of a site; empty if one can."""
    if not site.start_urls:
        return f"the site {site.name} names neither start nor sitemaps in its file"
    needs_rows = [start.form is not None and start.form.columns for start in site.start]
    if all(needs_rows) and not site.sitemaps:
        return f"the forms of the site {site.name} need the rows of a file"
    return ""


def read_schedules(folder: Path, known: "Sites | None") -> list[Schedule]:
    """Read the file; raises `InputError`. Without `known`, names of sites are not checked."""

    def check_site(name: str) -> None:
        if known and (reason := missing_start(known.find(name))):
            raise UsageError(reason)

    found, _ = read_entries(folder / SCHEDULES, lambda entries: _schedules(entries, check_site))
    return list(found.values())


def schedule_faults(folder: Path, known: "Sites | None") -> list[InputError]:
    """Return all that is wrong in the file."""
    try:
        read_schedules(folder, known)
    except InputError as error:
        return [error, *error.others]
    return []


def _schedules(entries: Entries, check_site: SiteCheck) -> dict[str, Any]:
    if len(entries) > MAX_SCHEDULES:
        line = list(entries.values())[MAX_SCHEDULES][0]
        raise Wrong(f"more than {MAX_SCHEDULES:,} schedules", line)
    found: dict[str, Any] = {}
    faults = Faults()
    for name, (line, node) in entries.items():
        with faults:
            if not _NAME.fullmatch(name):
                allowed = "lower case letters, digits, -, _ and dots, which stand between others"
                reason = f"the name of a schedule consists of {allowed}; {name[:60]!r} is none"
                raise Wrong(reason, line)
            found[name] = _schedule(name, node, check_site)
    faults.end()
    return found


def _schedule(name: str, node: Node, check_site: SiteCheck) -> Schedule:
    checks = {
        "sites": lambda node: _sites(node, check_site),
        "cron": text_check("cron", Cron.parse),
        "every": text_check("every", _every),
    }
    given = checked(mapping(name, node), ScheduleKeys, " in a schedule", checks)
    need(given, "sites", name, node)
    rules = [key for key in ("cron", "every") if key in given]
    if len(rules) != 1:
        reason = f"{name} has neither cron nor every"
        if rules:
            reason = f"{name} has both cron and every; only one can be"
        raise Wrong(reason, node.line)
    return Schedule(name=name, **given)


def _every(text: str) -> int:
    seconds = times.span(text)
    if seconds is None:
        raise ValueError(f"must be a span such as 30m, 6h or 1d, not {text[:60]!r}")
    if seconds != int(seconds) or not MIN_EVERY_S <= seconds <= MAX_EVERY_S:
        raise ValueError(f"must be whole seconds, from 1m to 366d, not {text[:60]!r}")
    return int(seconds)


def _sites(node: Node, check_site: SiteCheck) -> tuple[str, ...]:
    items = node.items if node.kind == "sequence" else [node]
    if not items:
        raise Wrong("sites is empty", node.line)
    found: list[str] = []
    faults = Faults()
    for item in items:
        with faults:
            name = text_of("sites", item).lower()
            if name in found:
                raise Wrong(f"sites has {name[:60]!r} twice", item.line)
            if name == ALL and len(items) > 1:
                raise Wrong(f"sites: {ALL} stands alone", item.line)
            if name != ALL:
                _check(check_site, name, item.line)
            found.append(name)
    faults.end()
    return tuple(found)


def _check(check_site: SiteCheck, name: str, line: int) -> None:
    try:
        check_site(name)
    except UsageError as error:
        raise Wrong(f"sites: {error}", line) from None
