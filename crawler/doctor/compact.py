"""Rewrites lpm.db without the room that nothing uses, while nobody else uses the store."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping

from crawler.config import failpoint, program
from crawler.db import guard
from crawler.doctor import Context, Finding, exclusive, load_settings
from crawler.errors import StoreError
from crawler.lpm import LocalPersistenceManager

CHECK = "compact"
COPIES = 2
"""SQLite writes the database to a temporary file, and from there to the log."""
RESERVE_BYTES = 50_000_000
"""Room that is left on the disk all the same."""
_STEPS_PER_LOOK = 500


def compact(
    progress: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Rewrite the database. Killed anywhere, it is as it was: SQLite commits the new one at once.

    From then on `prune --jobs` gives room back by itself.
    """
    settings, finding = load_settings(environ)
    if finding.state == "wrong":
        yield finding
        return
    context = Context(settings, True, progress)
    if not LocalPersistenceManager.exists(context.folder):
        what = f"there is no store in {context.folder} yet"
        yield Finding(CHECK, "note", what, f"{program()} run FILE")
        return
    guard.check_kernel(context.folder)
    with exclusive(context) as refusal:
        if refusal:
            yield Finding(CHECK, "wrong", f"lpm.db was left as it is: {refusal[0]}", refusal[1])
            return
        try:
            yield _compact(context)
        except StoreError as error:
            yield Finding(CHECK, "wrong", f"lpm.db was left as it is: {error}")


def _compact(context: Context) -> Finding:
    with context.lpm() as lpm, lpm.errors():
        db = lpm.store.durable
        lpm.store.cut_log()
        before = context.path.stat().st_size
        unused = int(db.value("PRAGMA freelist_count")) * int(db.value("PRAGMA page_size"))
        needed = COPIES * (before - unused) + RESERVE_BYTES
        free = shutil.disk_usage(context.folder).free
        if free < needed:
            what = f"{needed / 1e6:,.0f} MB must be free in {context.folder} for that, and "
            what += f"{free / 1e6:,.0f} MB are"
            return Finding(CHECK, "wrong", f"lpm.db was left as it is: {what}", "make room")
        context.progress(f"rewriting {context.path} ({before / 1e6:,.1f} MB) …")
        folder = str(lpm.run).replace("'", "''")
        # On the disk that was looked at, not in /tmp.
        db.execute(f"PRAGMA temp_store_directory='{folder}'")
        db.set_progress_handler(_look, _STEPS_PER_LOOK)
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("VACUUM")
        db.set_progress_handler(None)
        db.execute("PRAGMA temp_store_directory=''")
        failpoint("compacted")
        lpm.store.cut_log()
        after = context.path.stat().st_size
    sizes = f"{before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now"
    return Finding(CHECK, "mended", f"{context.path} was rewritten: {sizes}")


def _look() -> bool:
    """Called by SQLite again and again; True would break it off."""
    failpoint("compacting")
    return False
