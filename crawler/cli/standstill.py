"""Why a crawl does not move, in one line: what `run` shows instead of a rate, and `status`."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from crawler import times
from crawler.cli.output import STILL_S, counted, shortened
from crawler.config import Settings, program
from crawler.db import owners
from crawler.db.books import mend
from crawler.errors import ServiceError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import QUEUES, Books, Job

SLOW_S = 10.0
"""Pages on their way are waited for a little longer than STILL_S."""
LOOK_S, COUNT_S = 2.0, 60.0
"""How often the reason is looked for, and how often all tasks are counted for that."""
FEW = 3
"""Of so many pages on their way the oldest is named."""
HELD = 9e15
"""Tasks of a paused job wait until then."""


class Standstill:
    """Looks for the reason again and again; what costs a question to Redis is asked only while nothing moves."""

    def __init__(self, settings: Settings, lpm: LocalPersistenceManager, job: Job | None) -> None:
        self._settings, self._lpm, self._job = settings, lpm, job
        self._done = -1
        self._since = self._looked = 0.0
        self._found = self._damage = ""
        self._next_count = 0.0

    def reason(self, books: Books) -> str:
        """What keeps the books from moving; empty where they move."""
        now = time.monotonic()
        if books.accepted - books.open != self._done:
            self._done, self._since = books.accepted - books.open, now
        plain = self._paused() or no_room(self._lpm.folder, self._settings) or self._trouble()
        if plain or now - self._since < STILL_S:
            self._found = ""
            return plain or ""
        if now - self._looked >= LOOK_S:
            self._found = self.examine(books, now - self._since)
            self._looked = time.monotonic()
        return self._found

    def at_once(self, books: Books) -> str:
        """The reason at one look: for who cannot wait to see whether anything moves."""
        if not books.open:
            return ""
        if not owners.workers(self._lpm.owners):
            return self._nobody(books)
        return self._trouble() or ("" if books.processing else self.examine(books, 0.0))

    def _paused(self) -> str | None:
        if self._job is None or self._lpm.ledger.job(self._job.name).hold != "paused":
            return None
        return f"it is paused; {program()} job resume {shlex.quote(self._job.name)} goes on"

    def _trouble(self) -> str | None:
        """What processes have noted about themselves, and a supervisor about its restarts."""
        from crawler.process import read_stack

        noted = [note.trouble for note in owners.living(self._lpm.owners) if note.trouble]
        stack = read_stack(self._lpm.folder)
        return next(iter(noted), None) or (stack.trouble if stack.up else None)

    def examine(self, books: Books, still_s: float) -> str:
        """The reason of a standstill that has lasted for so long, as far as one can tell."""
        workers = [note for note in owners.living(self._lpm.owners) if note.about.get("kind") == "worker"]
        if not workers:
            return self._nobody(books)
        if stopped := standing_still(workers, self._settings.stall_s):
            return _stopped(sorted(note.pid for note in stopped))
        now = time.monotonic()
        if (silent_s := min(note.still_s(now) for note in workers)) > SLOW_S:
            return f"no worker process has moved for {silent_s:.0f} s"
        return (
            self._of_indexes(still_s)
            or self._of_domains()
            or self._of_waits()
            or (self._in_flight(books) if still_s >= SLOW_S else "")
        )

    def _nobody(self, books: Books) -> str:
        """That no worker is there for what is open, and what helps; a command may work on its own page."""
        from crawler.process import read_stack

        others = owners.living(self._lpm.owners)
        open_ = books.pending if others else books.open
        stack = read_stack(self._lpm.folder)
        if not open_ or stack.container:
            return ""
        if stack.up:
            return "no worker runs; the supervisor starts one by itself"
        tasks = counted(open_, "open task")
        nothing = f"nothing works on {tasks}: no worker runs"
        return self._of_holds() or f"{nothing}; {program()} resume goes on, or {program()} up does in the background"

    def _of_indexes(self, still_s: float) -> str:
        """That open tasks exist which no worker finds; every task is looked at for this, so not at every look."""
        if 0 < still_s < SLOW_S or time.monotonic() < self._next_count:
            return self._damage
        faults = self._lpm.ledger.index_faults()
        self._next_count = time.monotonic() + COUNT_S
        self._damage = f"{faults[0]}, so workers do not find them all; stop, then {mend()}" if faults else ""
        return self._damage

    def _of_domains(self) -> str:
        """What keeps all domains shut at which tasks are due; or that Redis, which would know, does not answer."""
        from crawler.cli.commands.domains import limits_in_words, permit, state_in_words
        from crawler.process import read_stack

        if read_stack(self._lpm.folder).container:
            return ""  # its Redis answers only to the containers
        try:
            with permit(self._settings) as asked:
                known = {each.domain.partition("@")[0]: each for each in asked.domains()}
        except ServiceError as error:
            return f"{error}; nothing is lost"
        due = {place.domain for queue in QUEUES for place in self._lpm.ledger.due(queue)}
        tz = times.zone(self._settings.timezone)
        found = []
        for domain in sorted(due):
            about = known.get(domain)
            if about is None:
                return ""
            shut = about.state != "CLOSED" or about.not_before is not None
            slow = about.interval_s * about.slowed > STILL_S or about.crawl_delay_s > STILL_S
            if not shut and not slow:
                return ""
            why = (
                "; ".join(state_in_words(about, time.time(), tz)) if shut else f"its limit is {limits_in_words(about)}"
            )
            found.append(f"{printable(domain)}: {why}")
        more = f" (and {counted(len(found) - 1, 'more domain')})" if len(found) > 1 else ""
        return f"{found[0]}{more}; {program()} domains" if found else ""

    def _of_waits(self) -> str:
        """That all tasks wait for a time, or for an operator."""
        if self._lpm.ledger.has_due(QUEUES):
            return ""
        count, first = self._lpm.ledger.waits()
        if not count or first >= HELD:
            return self._of_holds()
        until = times.until(first, time.time(), times.zone(self._settings.timezone))
        return f"waiting to try {counted(count, 'task')} again, the first at {until}"

    def _of_holds(self) -> str:
        """That all tasks are of paused jobs."""
        count, first = self._lpm.ledger.waits()
        if not count or first < HELD or self._lpm.ledger.has_due(QUEUES):
            return ""
        return f"all that is open is paused: {counted(count, 'task')} ({program()} job list)"

    def _in_flight(self, books: Books) -> str:
        """For which page one waits, or for whose."""
        if not books.processing:
            return ""
        rows = self._lpm.ledger.oldest_in_flight(FEW + 1)
        if not rows:
            return ""
        url, leased_at = rows[0]
        since = times.clock(leased_at, times.zone(self._settings.timezone))
        if len(rows) <= FEW:
            others = f" (and {counted(len(rows) - 1, 'other page')})" if len(rows) > 1 else ""
            return f"waiting for {shortened(printable(url))} since {since}{others}"
        domain, count = next(iter(self._lpm.ledger.in_flight().items()))
        new = books.open == books.accepted and domain not in self._lpm.ledger.paces()
        silent = f"{printable(domain)} has not answered yet: " if new else f"waiting for {printable(domain)}: "
        return f"{silent}{counted(count, 'page')} in flight, the first since {since}"


def no_room(folder: Path, settings: Settings) -> str | None:
    """What to say, and what helps, where the disk has too little room for anything to be fetched."""
    from crawler.process import disk_full

    if low := low_on_disk(folder, settings.min_free):
        return f"{low}; free some room, or lower CRAWLER_MIN_FREE"
    return disk_full(folder) or None


def standing_still(notes: Sequence[owners.Note], stall_s: float) -> list[owners.Note]:
    """Those of the living who do nothing: stopped, or silent for longer than their own watchdog would allow."""
    now = time.monotonic()
    return [
        note for note in notes if note.still_s(now) > stall_s or (note.still_s(now) > STILL_S and _is_stopped(note.pid))
    ]


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _stopped(pids: Sequence[int]) -> str:
    if len(pids) == 1:
        return f"process {pids[0]} stands still; kill -CONT {pids[0]} wakes it, kill -9 {pids[0]} ends it"
    all_ = " ".join(map(str, pids))
    return f"processes {all_} stand still; kill -CONT {all_} wakes them, kill -9 {all_} ends them"
