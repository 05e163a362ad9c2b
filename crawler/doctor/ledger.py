"""lpm.db: whether it is sound, whether its books balance, and who holds what."""

import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from crawler import times
from crawler.config import failpoint, program
from crawler.db import guard, owners, schema
from crawler.db.connection import open_to_read, reading
from crawler.db.gateway import GatewayTasks, Outbox
from crawler.db.jobs import Jobs, index_faults
from crawler.db.pending import later_results
from crawler.db.store import Opened
from crawler.doctor import Context, Seen, awaken, repair
from crawler.doctor.columns import describe, undecodable
from crawler.doctor.salvage import (
    ENDED_OTHERWISE,
    ENDED_TOO_EARLY,
    NEVER_ENDED,
    SENSELESS,
    UNKNOWN_STATES,
    salvage,
    settle,
)
from crawler.files import sync_folder
from crawler.lpm import is_importing, unaccounted
from crawler.models import TaskStatus
from crawler.stack import read_stack

_MAX_LINE = 120
"""Characters of what SQLite says about damage."""
_MAGIC = b"SQLite format 3\0"
_WAL_LIMIT = 256 << 20
_AHEAD_S = 300


def database(context: Context) -> Iterator[Seen]:
    """The file itself: looked at with nothing but a connection that cannot write."""
    path = context.path
    for salvaged in guard.unfinished(context.folder):
        if not context.repair:
            yield Seen(
                "wrong",
                f"a repair was broken off before {salvaged.name} was in its place",
                repair(context),
            )
            return
        _put_in_place(context, salvaged)
        yield Seen("mended", f"a repair was broken off; {salvaged.name} is {path.name} now")
    for backup in sorted(path.parent.glob("lpm.db.*[!lm]")):  # without -wal and -shm
        yield Seen(
            "note",
            f"{backup.name} is kept from an earlier time ({backup.stat().st_size / 1e6:.1f} MB)",
        )
    if not path.exists():
        yield from _absent(context)
    elif not path.is_file():
        yield Seen("wrong", f"{path} is not a file", "move it away; nothing in it is touched")
    elif path.stat().st_size == 0:
        yield from _absent(context)
    elif (version := _version(path)) is None:
        yield from _damaged(context, "its first page cannot be read as that of a database")
    elif version == (0, 0) and not _has_tables(path):
        yield from _absent(context)
    elif version[0] != schema.APPLICATION_ID:
        yield Seen(
            "wrong",
            f"{path} is a database of another program",
            "use another folder: --data-dir DIR",
        )
    elif version[1] > len(schema.MIGRATIONS):
        yield Seen(
            "wrong",
            f"{path} was written by a newer version (schema {version[1]}, this program knows {len(schema.MIGRATIONS)})",
            "use the newer program",
        )
    else:
        yield from _sound(context, version[1])


def _absent(context: Context) -> Iterator[Seen]:
    """No ledger, or an empty file: harmless in a new folder, a loss where there are results."""
    found = (
        _count(context.folder / "pending", "[!.]*.json"),
        _count(context.folder / "raw", "[!.]*.warc.gz"),
    )
    if any(found):
        yield from _damaged(
            context,
            f"there is nothing in it, but pending/ and raw/ hold {found[0]} and {found[1]} files",
        )
    else:
        yield Seen("note", f"there is no store in {context.folder} yet", f"{program()} run FILE")


def _count(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern))


def _version(path: Path) -> tuple[int, int] | None:
    """Application and schema as the file says, without believing anything else of it; None if it is
    no database."""
    with path.open("rb") as file:
        head = file.read(100)
    if not head.startswith(_MAGIC) or len(head) < 100:
        return None
    db = open_to_read(path, raw=True)
    try:
        return int(str(db.pragma("application_id"))), int(str(db.pragma("user_version")))
    except apsw.Error:
        return int.from_bytes(head[68:72]), int.from_bytes(head[60:64])
    finally:
        db.close(True)


def _has_tables(path: Path) -> bool:
    """Whether anything was ever committed to a database, or can still be read of that: its log may
    have been lost."""
    db = open_to_read(path, raw=True)
    try:
        return bool(db.all("SELECT 1 FROM sqlite_schema"))
    except apsw.Error:
        return True
    finally:
        db.close(True)


def _sound(context: Context, version: int) -> Iterator[Seen]:
    problems = _problems(context, version)
    if problems:
        yield from _damaged(context, "; ".join(problems[:4]))
        return
    size = context.path.stat().st_size
    wal = context.path.with_name("lpm.db-wal")
    if wal.exists() and wal.stat().st_size > _WAL_LIMIT:
        yield Seen(
            "note",
            f"lpm.db-wal has {wal.stat().st_size / 1e6:.0f} MB: some reader has held it for long",
        )
    if version < len(schema.MIGRATIONS) and not context.repair:
        yield Seen(
            "note",
            f"lpm.db has schema {version}, and becomes {len(schema.MIGRATIONS)} when it is next used",
        )
        return
    if version < len(schema.MIGRATIONS):
        context.close()
        with context.lpm() as lpm:
            lpm.open()
        yield Seen("mended", f"lpm.db had schema {version}; a copy is kept beside it")
    context.sound = True
    yield Seen("ok", f"{context.path} is sound ({size / 1e6:.1f} MB)")


def _problems(context: Context, version: int) -> list[str]:
    """What SQLite, and a reader of the rows, would stumble over."""
    context.tell(f"reading {context.path} …")
    try:
        found = [_in_short(str(row[0])) for row in context.db.all("PRAGMA integrity_check(20)")]
        if found != ["ok"]:
            return found
        with reading(context.db):
            tables = [
                name
                for (name,) in context.db.all("SELECT name FROM sqlite_schema WHERE type = 'table'")
            ]
            if faults := index_faults(context.db, tables):
                return faults
        for table, senseless in SENSELESS.items():
            [(count,)] = context.db.all(f"SELECT count(*) FROM {table} WHERE {senseless}")
            if count:
                return [f"{count} rows of {table} make no sense"]
        if not context.db.all("SELECT 1 FROM meta WHERE key = 'ledger_id'"):
            return ["its id is gone"]
        return undecodable(context.db) or describe(context.db)
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, UnicodeDecodeError) as error:
        return [str(error)]


def _in_short(text: str) -> str:
    """A line of SQLite's check: one damaged page may have it write pages of text, which say nothing
    more."""
    line, _, more = text.removeprefix("*** in database main ***\n").partition("\n")
    return f"{line[:_MAX_LINE]} …" if more or len(line) > _MAX_LINE else line


def _damaged(context: Context, why: str) -> Iterator[Seen]:
    path = context.path
    if not context.repair:
        yield Seen("wrong", f"{path} is damaged: {why}", repair(context))
        return
    context.close()
    target = path.with_name(f"lpm.db.salvaging-{context.stamp}")
    for left in context.folder.glob("*lpm.db.salvaging-*"):  # by a repair that was killed
        left.unlink()
    context.tell(f"{path} is damaged ({why}); saving what can be read …")
    saved, done = salvage(
        path, target, context.folder / "pending", context.folder / "raw", time.time()
    )
    kept = _put_in_place(context, target.rename(path.with_name(f"lpm.db.salvaged-{context.stamp}")))
    rows = ", ".join(f"{count} {table}" for table, count in saved.items() if count) or "no rows"
    rest = "".join(f"; {count} {what}" for what, count in done.items())
    if kept.exists():
        rest += f"; the damaged one is {kept.name}"
    context.sound = True
    yield Seen("mended", f"{path} was damaged ({why}); saved: {rows}{rest}")


def _put_in_place(context: Context, salvaged: Path) -> Path:
    """Set the damaged ledger aside, and a whole one in its place; broken off anywhere, it can be
    begun again."""
    kept = salvaged.with_name(salvaged.name.replace("salvaged", "damaged"))
    # The log goes first: beside another database it would be replayed into that.
    for endings in (("-wal", "-shm"), ("",)):
        sync_folder(context.folder)
        failpoint("replacing")
        for ending in endings:
            if (part := Path(f"{context.path}{ending}")).exists():
                name = str(kept)
                while Path(f"{name}{ending}").exists():
                    name += ".again"
                part.rename(f"{name}{ending}")
    sync_folder(context.folder)
    failpoint("replacing")
    salvaged.rename(context.path)
    sync_folder(context.folder)
    return kept


_BOOKS = {
    "tasks in an unknown state": f"""SELECT count(*) FROM tasks
        WHERE status NOT IN ({", ".join(f"'{status}'" for status in TaskStatus)})""",
    "completed tasks without a result": """SELECT count(*) FROM tasks
        WHERE status = 'completed' AND id NOT IN (SELECT task FROM results)""",
    "results whose task is not completed": """SELECT count(*) FROM results
        WHERE task NOT IN (SELECT id FROM tasks WHERE status = 'completed')""",
    "results that are not in the outbox": "SELECT count(*) FROM results WHERE task NOT IN (SELECT task FROM outbox)",
    "results and reports in an unknown state of delivery": f"SELECT {UNKNOWN_STATES}",
    "rows of the outbox without a result": "SELECT count(*) FROM outbox WHERE task NOT IN (SELECT task FROM results)",
    "tasks of a Gateway that it would hear nothing of": """SELECT count(*) FROM tasks WHERE source = 'gateway'
        AND status IN ('failed', 'skipped', 'expired') AND id NOT IN (SELECT task FROM reports)""",
    "tasks of jobs that are not there": """SELECT count(*) FROM tasks
        WHERE job_id IS NOT NULL AND job_id NOT IN (SELECT id FROM jobs)""",
    "rows of input that mean tasks which are not there": """SELECT count(*) FROM job_links
        WHERE task NOT IN (SELECT id FROM tasks)""",
    "jobs with other numbers of rows than came in": """SELECT count(*) FROM jobs
        WHERE (size, linked, rejected) <> ((SELECT count(*) FROM tasks WHERE job_id = jobs.id),
            (SELECT count(*) FROM job_links WHERE job_id = jobs.id),
            (SELECT count(*) FROM rejected_rows WHERE job_id = jobs.id))
        AND NOT EXISTS (SELECT 1 FROM losses WHERE job_id = jobs.id AND kind = 'rows' AND settled_at IS NULL)""",
    "jobs that are done although a task is open": f"SELECT count(*) FROM ({ENDED_TOO_EARLY})",
    "tasks that have ended at no time": f"SELECT count(*) FROM tasks WHERE {NEVER_ENDED}",
    "tasks that ended otherwise than their timelines say": f"SELECT count(*) FROM ({ENDED_OTHERWISE})",
}


def books(context: Context) -> Iterator[Seen]:
    """Everything that was accepted is in exactly one state, and what is completed has its
    result."""
    wrong = _imbalance(context)
    count = len(Jobs(Opened(context.db)).all())
    if wrong and context.repair:
        context.close()
        with context.lpm() as lpm:
            done = settle(lpm.store.durable, lpm.pending, lpm.raw, lpm.now())
        what = "; ".join(f"{count} {what}" for what, count in done.items())
        left = _imbalance(context)
        yield (
            Seen("wrong", f"{left}, in spite of: {what}")
            if left
            else Seen("mended", f"{wrong}: {what}")
        )
    elif wrong:
        yield Seen("wrong", f"the books do not balance: {wrong}", repair(context))
    else:
        [(accepted,)] = context.db.all("SELECT count(*) FROM tasks")
        yield Seen(
            "ok", f"{accepted} tasks in {count} jobs, each in one state, each result in its place"
        )


def jobs(context: Context) -> Iterator[Seen]:
    """Jobs of which something is known to be missing."""
    found = Jobs(Opened(context.db))
    for job in found.all():
        running = is_importing(context.folder / "run", job)
        for what in unaccounted(found, context.folder / "run", job):
            yield Seen("note" if running else "wrong", f"job {job.name}: {what}")


def _imbalance(context: Context) -> str:
    """What does not add up; of the ledger's own rows as of one moment."""
    with reading(context.db):
        counts = {what: int(context.db.all(sql)[0][0]) for what, sql in _BOOKS.items()}
    # Not as of that moment: a worker commits a result before it writes the file, so whoever sees
    # the file first and asks then is told of it. In an older moment all that came since would be
    # unknown.
    counts["results in pending/ that this ledger does not know"] = sum(
        1 for _ in later_results(context.db, context.folder / "pending")
    )
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def gateway(context: Context) -> Iterator[Seen]:
    """What a Gateway is to get, and what it did not take."""
    with reading(context.db):
        store = Opened(context.db)
        stand, url = Outbox(store).delivery(None), GatewayTasks(store).note("url")
    where = f"the Gateway at {url}" if url else "a Gateway"
    if stand.unsent:
        since = times.show(stand.oldest or 0, time.time(), times.zone(context.settings.timezone))
        yield Seen(
            "note",
            f"{stand.unsent} to be delivered to {where}, the oldest since {since}",
            _deliver(context),
        )
    if stand.refused:
        yield Seen("note", f"{stand.refused} rejected by {where}", f"{program()} sync rejected")
    if not stand.unsent and not stand.refused:
        done = f"{stand.synced} results and {stand.reports_synced} reports were delivered to {where}, none wait"
        yield Seen(
            "ok",
            done
            if url or stand.synced or stand.reports_synced
            else "nothing here is for a Gateway",
        )


def _deliver(context: Context) -> str:
    agent = read_stack(context.folder).agent
    if agent and agent.find():
        return f"{program()} sync status"
    return f"{program()} ondemand, or {program()} sync push"


def leases(context: Context) -> Iterator[Seen]:
    """Tasks in the hands of processes that are dead, and the files of these."""
    folder = context.folder / "run" / "owners"
    held = dict(
        context.db.all(
            "SELECT owner, count(*) FROM tasks WHERE status = 'processing' GROUP BY owner"
        )
    )
    notes = owners.living(folder)
    for note in notes:
        if (still_s := note.still_s(time.monotonic())) > context.settings.stall_s:
            what = f"process {note.pid} ({note.about.get('kind')}) stands still for {times.duration(still_s)}"
            yield Seen("wrong", f"{what} and holds {held.get(note.id, 0)} tasks", awaken(note.pid))
    living = {note.id for note in notes}
    stuck = sum(count for owner, count in held.items() if owner not in living)
    dead = sum(path.name not in living and not path.suffix for path in folder.glob("[!.]*"))
    what = f"{stuck} tasks are held by processes that are dead, which left {dead} files"
    if not stuck and not dead:
        yield Seen("ok", f"{sum(held.values())} tasks are in hand, all of living processes")
    elif context.repair:
        context.close()
        with context.lpm() as lpm:
            freed = lpm.bury()
        yield Seen("mended", f"{what}; {freed} tasks were freed")
    elif living:
        yield Seen("note", f"{what}; the workers free them within seconds")
    else:
        yield Seen("wrong", f"{what}; the next worker frees them", repair(context))


def clock(context: Context) -> Iterator[Seen]:
    """Times of the future in the ledger: then this clock was ahead, or is behind now."""
    [(last,)] = context.db.all(
        "SELECT max(coalesce((SELECT max(at) FROM events), 0), (SELECT coalesce(max(imported_at), 0) FROM tasks))"
    )
    ahead_s = last - time.time()
    if ahead_s > _AHEAD_S:
        yield Seen(
            "note",
            f"the ledger has times that are {ahead_s:.0f} s ahead of this clock",
            "set the clock: timedatectl",
        )
    else:
        yield Seen("ok", "no time in the ledger lies in the future")
