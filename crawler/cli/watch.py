"""The live view of `status --watch`."""

import sys
import time
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import msgspec

from crawler import times
from crawler.cli.commands.status import delivering, describe, gather, halting
from crawler.config import Settings, program
from crawler.forecast import Trend, slip
from crawler.logs import printable
from crawler.models import Job, JobStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_HALTS = 5
"""Waits that are shown on a terminal, which has 24 lines."""
SIZES_S = 30.0
"""How often the files of the store are counted: among a million that takes seconds."""


class Watch:
    """Looks at the store again and again, and draws what it sees."""

    def __init__(self, settings: Settings, as_json: bool) -> None:
        self._settings, self._as_json = settings, as_json
        self._tz: tzinfo | None = times.zone(settings.timezone)
        self._trends: dict[str, Trend] = {}
        self._store: Any = None
        self._sized = -SIZES_S

    def run(self, interval_s: float) -> None:
        """Go on until Ctrl-C."""
        try:
            if sys.stdout.isatty() and not self._as_json:
                self._draw(interval_s)
            else:
                self._print(interval_s)
        except KeyboardInterrupt:
            pass  # that is how one leaves

    def look(self) -> dict[str, Any]:
        """The facts of now, with how fast each job goes."""
        sizes = time.monotonic() - self._sized >= SIZES_S
        facts = gather(self._settings, sizes)
        if sizes:
            self._sized, self._store = time.monotonic(), facts.get("store")
        elif self._store:
            facts["store"] = self._store
        now = time.time()
        for name, books in facts["jobs"].items():
            trend = self._trends.setdefault(name, Trend())
            open_ = books["pending"] + books["processing"]
            trend.add(time.monotonic(), books["accepted"] - open_)
            about = facts["job_facts"][name]
            job = Job(id=0, name=name, status=JobStatus.OPEN, queue="", source_file=None, created_at=0,
                      completed_at=None, deadline=about["deadline"])  # fmt: skip
            about |= {
                "rate": round(trend.rate, 2),
                "eta_s": round(open_ / trend.rate, 1) if trend.rate and open_ else None,
                "warning": slip(job, open_, trend.measured, now, self._tz) or about["late"],
            }
        return facts

    def _print(self, interval_s: float) -> None:
        while True:
            began = time.monotonic()
            facts = self.look()
            print(
                msgspec.json.encode(facts).decode()
                if self._as_json
                else "\n".join(self._lines(facts)),
                flush=True,
            )
            self._pause(began, interval_s)

    def _lines(self, facts: dict[str, Any]) -> list[str]:
        books = facts["books"]
        done = books["accepted"] - books["pending"] - books["processing"]
        clock = times.clock(time.time(), self._tz)
        lines = [
            f"{clock} all: {done:,}/{books['accepted']:,} done, {books['failed']:,} failed, {facts['rate']:.1f}/s"
        ]
        for name, counts in self._open_jobs(facts):
            lines.append(f"  {printable(name)}: {self._progress(counts, facts['job_facts'][name])}")
            if facts["job_facts"][name]["warning"]:
                lines.append(f"  warning: {printable(name)}: {facts['job_facts'][name]['warning']}")
        return lines + [f"  {line}" for line in (*delivering(facts), *halting(facts))]

    def _open_jobs(self, facts: dict[str, Any]) -> list[tuple[str, dict[str, int]]]:
        """The jobs that are not done, else the last one."""
        jobs = list(facts["jobs"].items())
        open_ = [
            (name, counts)
            for name, counts in jobs
            if counts["pending"] + counts["processing"]
            or facts["job_facts"][name]["state"] not in ("done", "cancelled")
        ]
        return open_ or jobs[-1:]

    def _progress(self, counts: dict[str, int], about: dict[str, Any]) -> str:
        open_ = counts["pending"] + counts["processing"]
        parts = [f"{counts['accepted'] - open_:,}/{counts['accepted']:,}"]
        parts += [
            f"{counts[state]:,} {state}"
            for state in ("failed", "skipped", "expired")
            if counts[state]
        ]
        if about["state"] in ("paused", "cancelled", "done"):
            parts.append(about["state"])
        elif about["eta_s"] is not None:
            parts.append(f"{about['rate']:.1f}/s, {times.duration(about['eta_s'])} left")
        if about["deadline"] and open_:
            parts.append(f"deadline {times.until(about['deadline'], time.time(), self._tz)}")
        return ", ".join(parts)

    def _draw(self, interval_s: float) -> None:
        from rich.live import Live

        with Live(self._picture(self.look()), screen=False, auto_refresh=False) as live:
            while True:
                began = time.monotonic()
                live.update(self._picture(self.look()), refresh=True)
                self._pause(began, interval_s)

    def _pause(self, began: float, interval_s: float) -> None:
        """Counting a million tasks must not become the work."""
        time.sleep(max(interval_s, 5 * (time.monotonic() - began)))

    def _picture(self, facts: dict[str, Any]) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, expand=False)
        for title, width in (("job", 20), ("", 14)):
            table.add_column(title, width=width, no_wrap=True, overflow="ellipsis")
        table.add_column("")
        warnings = []
        jobs = self._open_jobs(facts)
        for name, counts in jobs[:12]:
            about = facts["job_facts"][name]
            done = counts["accepted"] - counts["pending"] - counts["processing"]
            bar = ProgressBar(total=max(1, counts["accepted"]), completed=done, width=14)
            table.add_row(Text(printable(name)), bar, Text(self._progress(counts, about)))
            if about["warning"]:
                warnings.append(
                    Text(f"warning: {printable(name)}: {about['warning']}", style="bold red")
                )
        more = (
            [Text(f"… and {len(jobs) - 12} more open jobs", style="dim")] if len(jobs) > 12 else []
        )
        flight = ", ".join(
            f"{printable(domain)} {count}" for domain, count in list(facts["domains"].items())[:6]
        )
        queues = ", ".join(f"{name} {count:,}" for name, count in facts["queues"].items())
        lines = [
            f"{times.clock(time.time(), self._tz)}  {facts['rate']:.1f} pages/s  waiting: {queues}",
            f"in flight: {flight or 'nothing'}",
            *describe(facts),
        ]
        halts = halting(facts)
        if len(halts) > MAX_HALTS:
            halts[MAX_HALTS:] = [f"… and {len(halts) - MAX_HALTS} more: {program()} status"]
        told = [Text(line, style="bold" * line.startswith("STANDSTILL")) for line in halts]
        return Group(
            table, *more, *warnings, *told, Text(""), *(Text(line, style="dim") for line in lines)
        )
