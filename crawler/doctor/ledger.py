"""Checks of the ledger, lpm.db: whether the file is sound, whether its rows agree, and which
process holds which task."""

import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from crawler import times
from crawler.config import failpoint, program
from crawler.db import guard, owners, retention, schema
from crawler.db.connection import open_to_read, reading, writing
from crawler.db.gateway import GatewayTasks, Outbox
from crawler.db.jobs import Jobs, index_faults
from crawler.db.pending import later_results
from crawler.db.store import IS_REMOVED, Opened
from crawler.doctor import Context, Observation, repair_command, resume_command
from crawler.doctor.reconciliation import (
    CLOSED_TOO_EARLY,
    ENDED_OTHERWISE,
    NEVER_ENDED,
    UNKNOWN_STATES,
    reconcile,
)
from crawler.doctor.salvage import SENSELESS, describe_contradictions, salvage, undecodable
from crawler.files import sync_folder
from crawler.lpm import is_importing, unaccounted
from crawler.models import TaskStatus
from crawler.stack import read_stack

_MAX_LINE = 120
"""Maximum characters of a message from SQLite about damage."""
_MAX_PROBLEMS_SHOWN = 4
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_MAX_WAL_BYTES = 256 << 20
_MAX_CLOCK_SKEW_S = 300


def check_database(context: Context) -> Iterator[Observation]:
    """Check the file itself, through a connection that cannot write."""
    path = context.path
    for salvaged in guard.unfinished(context.folder):
        if not context.repair:
            what = f"a repair was broken off before {salvaged.name} was in its place"
            yield Observation("wrong", what, repair_command(context))
            return
        _put_in_place(context, salvaged)
        what = f"a repair was broken off; {salvaged.name} is {path.name} now"
        yield Observation("mended", what)
    for backup in sorted(path.parent.glob("lpm.db.*[!lm]")):  # without -wal and -shm
        size = backup.stat().st_size / 1e6
        yield Observation("note", f"{backup.name} is an old copy of the ledger ({size:.1f} MB)")
    if not path.exists():
        yield from _absent(context)
    elif not path.is_file():
        fix = "move it away; nothing in it is touched"
        yield Observation("wrong", f"{path} is not a file", fix)
    elif path.stat().st_size == 0:
        yield from _absent(context)
    elif (version := _version(path)) is None:
        yield from _damaged(context, "its first page cannot be read as that of a database")
    elif version == (0, 0) and not _has_tables(path):
        yield from _absent(context)
    elif version[0] != schema.APPLICATION_ID:
        what = f"{path} is a database of another program"
        yield Observation("wrong", what, "use another folder: --data-dir DIR")
    elif version[1] > len(schema.MIGRATIONS):
        schemas = f"schema {version[1]}, this program knows {len(schema.MIGRATIONS)}"
        what = f"{path} was written by a newer version ({schemas})"
        yield Observation("wrong", what, "use the newer program")
    elif problems := _problems(context):
        yield from _damaged(context, "; ".join(problems[:_MAX_PROBLEMS_SHOWN]))
    else:
        yield from _sound(context, version[1])


def _absent(context: Context) -> Iterator[Observation]:
    """Report a missing or empty ledger: normal in a new folder, a loss if there are results."""
    pending = _count_files(context.folder / "pending", "[!.]*.json")
    segments = _count_files(context.folder / "raw", "[!.]*.warc.gz")
    if pending or segments:
        why = f"it is empty, but pending/ and raw/ hold {pending} and {segments} files"
        yield from _damaged(context, why)
    else:
        what = f"there is no store in {context.folder} yet"
        yield Observation("note", what, f"{program()} run FILE")


def _count_files(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern))


def _version(path: Path) -> tuple[int, int] | None:
    """Return the application id and schema version, or None if the file is not a database.

    The header tells them if SQLite cannot read the file.
    """
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if not head.startswith(_MAGIC) or len(head) < _HEADER_BYTES:
        return None
    db = open_to_read(path, raw=True)
    try:
        return int(str(db.pragma("application_id"))), int(str(db.pragma("user_version")))
    except apsw.Error:
        return int.from_bytes(head[68:72]), int.from_bytes(head[60:64])
    finally:
        db.close(True)


def _has_tables(path: Path) -> bool:
    """Return whether a database has tables, or may have had: its log can be lost."""
    db = open_to_read(path, raw=True)
    try:
        return bool(db.all("SELECT 1 FROM sqlite_schema"))
    except apsw.Error:
        return True
    finally:
        db.close(True)


def _sound(context: Context, version: int) -> Iterator[Observation]:
    size = context.path.stat().st_size
    wal = context.path.with_name("lpm.db-wal")
    if wal.exists() and (wal_bytes := wal.stat().st_size) > _MAX_WAL_BYTES:
        what = f"lpm.db-wal has {wal_bytes / 1e6:.0f} MB: a reader has kept it from shrinking"
        yield Observation("note", what)
    newest = len(schema.MIGRATIONS)
    if version < newest and not context.repair:
        what = f"lpm.db has schema {version}, and becomes {newest} when it is next used"
        yield Observation("note", what)
        return
    if version < newest:
        context.close()
        with context.lpm() as lpm:
            lpm.open()
        yield Observation("mended", f"lpm.db had schema {version}; a copy is kept beside it")
    context.ledger_is_sound = True
    yield Observation("ok", f"{context.path} is sound ({size / 1e6:.1f} MB)")


def _problems(context: Context) -> list[str]:
    """Return what SQLite, or a reader of the rows, cannot read."""
    context.progress(f"reading {context.path} …")
    try:
        found = [_shortened(str(line)) for line in context.db.column("PRAGMA integrity_check(20)")]
        if found != ["ok"]:
            return found
        with reading(context.db):
            tables = context.db.column("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if faults := index_faults(context.db, tables):
                return faults
        for table, senseless in SENSELESS.items():
            if table not in tables:  # an older schema
                continue
            if count := context.db.value(f"SELECT count(*) FROM {table} WHERE {senseless}"):
                return [f"{count} rows of {table} make no sense"]
        if not context.db.one("SELECT 1 FROM meta WHERE key = 'ledger_id'"):
            return ["its id is missing"]
        return undecodable(context.db) or describe_contradictions(context.db)
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, UnicodeDecodeError) as error:
        return [str(error)]


def _shortened(text: str) -> str:
    """Shorten a message of SQLite's check: one damaged page can produce hundreds of lines."""
    line, _, more = text.removeprefix("*** in database main ***\n").partition("\n")
    if more or len(line) > _MAX_LINE:
        return f"{line[:_MAX_LINE]} …"
    return line


def _damaged(context: Context, why: str) -> Iterator[Observation]:
    path = context.path
    if not context.repair:
        yield Observation("wrong", f"{path} is damaged: {why}", repair_command(context))
        return
    context.close()
    target = path.with_name(f"lpm.db.salvaging-{context.stamp}")
    for left in context.folder.glob("*lpm.db.salvaging-*"):  # of a repair that was killed
        left.unlink()
    context.progress(f"{path} is damaged ({why}); saving what can be read …")
    pending, raw = context.folder / "pending", context.folder / "raw"
    saved, done = salvage(path, target, pending, raw, time.time())
    kept = _put_in_place(context, target.rename(path.with_name(f"lpm.db.salvaged-{context.stamp}")))
    rows = ", ".join(f"{count} {table}" for table, count in saved.items() if count) or "no rows"
    rest = "".join(f"; {count} {what}" for what, count in done.items())
    if kept.exists():
        rest += f"; the damaged one is {kept.name}"
    context.ledger_is_sound = True
    yield Observation("mended", f"{path} was damaged ({why}); saved: {rows}{rest}")


def _put_in_place(context: Context, salvaged: Path) -> Path:
    """Rename the damaged ledger, and give its name to the new one. If killed anywhere, the next
    repair continues."""
    kept = salvaged.with_name(salvaged.name.replace("salvaged", "damaged"))
    # The log goes first: SQLite would replay it into the new database.
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


_STATUSES = ", ".join(f"'{status}'" for status in TaskStatus)
_IMBALANCES = {
    "tasks in an unknown state": f"""
        SELECT count(*) FROM tasks WHERE status NOT IN ({_STATUSES})""",
    "completed tasks without a result": """
        SELECT count(*) FROM tasks
        WHERE status = 'completed' AND id NOT IN (SELECT task FROM results)""",
    "results whose task is not completed": """
        SELECT count(*) FROM results
        WHERE task NOT IN (SELECT id FROM tasks WHERE status = 'completed')""",
    "results that are not in the outbox": """
        SELECT count(*) FROM results WHERE task NOT IN (SELECT task FROM outbox)""",
    "results and reports in an unknown state of delivery": f"SELECT {UNKNOWN_STATES}",
    "rows of the outbox without a result": """
        SELECT count(*) FROM outbox WHERE task NOT IN (SELECT task FROM results)""",
    "ended tasks of a Gateway without a report to it": """
        SELECT count(*) FROM tasks
        WHERE source = 'gateway' AND status IN ('failed', 'skipped', 'expired')
          AND id NOT IN (SELECT task FROM reports)""",
    "tasks of missing jobs": f"""
        SELECT count(*) FROM tasks
        WHERE job_id IS NOT NULL AND job_id NOT IN (SELECT id FROM jobs)
          AND NOT {IS_REMOVED.format(job="job_id")}""",
    "rows of input that refer to missing tasks": """
        SELECT count(*) FROM job_links WHERE task NOT IN (SELECT id FROM tasks)""",
    "tasks found on the pages of missing tasks": f"""
        SELECT count(*) FROM tasks WHERE parent NOT IN (SELECT id FROM tasks)
          AND NOT {IS_REMOVED.format(job="job_id")}""",
    "jobs with another number of rows than were imported": """
        SELECT count(*) FROM jobs
        WHERE (size, linked, rejected) <> (
            (SELECT count(*) FROM tasks WHERE job_id = jobs.id),
            (SELECT count(*) FROM job_links WHERE job_id = jobs.id),
            (SELECT count(*) FROM rejected_rows WHERE job_id = jobs.id))
        AND NOT EXISTS (
            SELECT 1 FROM losses WHERE job_id = jobs.id AND kind = 'rows' AND settled_at IS NULL)
        """,
    "jobs that are done although a task is open": f"SELECT count(*) FROM ({CLOSED_TOO_EARLY})",
    "ended tasks without a time of their end": f"SELECT count(*) FROM tasks WHERE {NEVER_ENDED}",
    "tasks with another end than their timelines say": f"""
        SELECT count(*) FROM ({ENDED_OTHERWISE})""",
}
"""Queries that count rows which disagree; each must give 0."""


def check_balance(context: Context) -> Iterator[Observation]:
    """Check that each accepted task is in exactly one state, and each completed one has its
    result."""
    wrong = _imbalance(context)
    count = len(Jobs(Opened(context.db)).all())
    if not wrong:
        accepted = context.db.value("SELECT count(*) FROM tasks")
        what = f"{accepted} tasks in {count} jobs, each in one state, each result in its place"
        yield Observation("ok", what)
    elif not context.repair:
        what = f"the counts do not add up: {wrong}"
        yield Observation("wrong", what, repair_command(context))
    else:
        context.close()
        with context.lpm() as lpm:
            done = reconcile(lpm.store.durable, lpm.pending, lpm.raw, lpm.now())
        what = "; ".join(f"{count} {what}" for what, count in done.items())
        if left := _imbalance(context):
            yield Observation("wrong", f"{left}, in spite of: {what}")
        else:
            yield Observation("mended", f"{wrong}: {what}")


def _imbalance(context: Context) -> str:
    """Return which rows disagree. Those of the ledger are read in one snapshot."""
    with reading(context.db):
        counts = {what: int(context.db.value(sql)) for what, sql in _IMBALANCES.items()}
    # Not in that snapshot: a worker commits a result before it writes the file, so every file that
    # is seen has its result in the ledger by now, but not in an older snapshot.
    unknown = sum(1 for _ in later_results(context.db, context.folder / "pending"))
    counts["results in pending/ that this ledger does not know"] = unknown
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def check_removals(context: Context) -> Iterator[Observation]:
    """Report jobs that a killed `prune` has not removed completely."""
    left = ", ".join(name for _, name in retention.begun(context.db))
    if left and context.repair:
        context.close()
        with context.lpm() as lpm, writing(lpm.store.durable):
            lpm.files.remove_all(retention.remove_all(lpm.store.durable))
        yield Observation("mended", f"the removal of {left} was broken off; it is complete now")
    elif left:
        what = f"{left}: removed, but not all rows have gone yet; the next removal continues"
        yield Observation("note", what, f"{program()} prune --jobs --older-than 90d")


def check_jobs(context: Context) -> Iterator[Observation]:
    """Report jobs that are known to lack something."""
    jobs = Jobs(Opened(context.db))
    for job in jobs.all():
        running = is_importing(context.folder / "run", job)
        for what in unaccounted(jobs, context.folder / "run", job):
            detail = f"job {job.name}: {what}"
            if running:
                yield Observation("note", detail)
            else:
                yield Observation("wrong", detail)


def check_gateway(context: Context) -> Iterator[Observation]:
    """Report what waits for delivery to a Gateway, and what the Gateway rejected."""
    with reading(context.db):
        store = Opened(context.db)
        stand, url = Outbox(store).delivery(None), GatewayTasks(store).note("url")
    gateway = "a Gateway"
    if url:
        gateway = f"the Gateway at {url}"
    if stand.unsent:
        since = times.show(stand.oldest or 0, time.time(), times.zone(context.settings.timezone))
        what = f"{stand.unsent} to be delivered to {gateway}, the oldest since {since}"
        yield Observation("note", what, _delivery_command(context))
    if stand.refused:
        what = f"{stand.refused} rejected by {gateway}"
        yield Observation("note", what, f"{program()} sync rejected")
    if stand.unsent or stand.refused:
        return
    if url or stand.synced or stand.reports_synced:
        counts = f"{stand.synced} results and {stand.reports_synced} reports"
        yield Observation("ok", f"{counts} were delivered to {gateway}, none wait")
    else:
        yield Observation("ok", "nothing here is for a Gateway")


def _delivery_command(context: Context) -> str:
    agent = read_stack(context.folder).agent
    if agent and agent.find():
        return f"{program()} sync status"
    return f"{program()} ondemand, or {program()} sync push"


def check_leases(context: Context) -> Iterator[Observation]:
    """Report tasks that are held by dead or stuck processes, and files that dead ones left."""
    folder = context.folder / "run" / "owners"
    sql = "SELECT owner, count(*) FROM tasks WHERE status = 'processing' GROUP BY owner"
    held = dict(context.db.all(sql))
    notes = owners.living(folder)
    for note in notes:
        if (still_s := note.still_s(time.monotonic())) > context.settings.stall_s:
            who = f"process {note.pid} ({note.about.get('kind')})"
            what = f"{who} stands still for {times.duration(still_s)}"
            what += f" and holds {held.get(note.id, 0)} tasks"
            yield Observation("wrong", what, resume_command(note.pid))
    living = {note.id for note in notes}
    stuck = sum(count for owner, count in held.items() if owner not in living)
    dead = sum(path.name not in living and not path.suffix for path in folder.glob("[!.]*"))
    what = f"{stuck} tasks are held by processes that are dead, which left {dead} files"
    if not stuck and not dead:
        what = f"{sum(held.values())} tasks are in progress, all of living processes"
        yield Observation("ok", what)
    elif context.repair:
        context.close()
        with context.lpm() as lpm:
            freed = lpm.bury()
        yield Observation("mended", f"{what}; {freed} tasks were freed")
    elif living:
        yield Observation("note", f"{what}; the workers free them within seconds")
    else:
        what = f"{what}; the next worker frees them"
        yield Observation("wrong", what, repair_command(context))


def check_clock(context: Context) -> Iterator[Observation]:
    """Report times in the future: this clock was ahead then, or is behind now."""
    last = context.db.value(
        """SELECT max(coalesce((SELECT max(at) FROM events), 0),
                      (SELECT coalesce(max(imported_at), 0) FROM tasks))"""
    )
    ahead_s = last - time.time()
    if ahead_s > _MAX_CLOCK_SKEW_S:
        what = f"the ledger has times that are {ahead_s:.0f} s ahead of this clock"
        yield Observation("note", what, "set the clock: timedatectl")
    else:
        yield Observation("ok", "no time in the ledger lies in the future")
