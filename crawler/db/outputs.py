"""Files that no command may write over: the input of jobs, and the store itself."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from crawler.db import kernel
from crawler.db.connection import open_to_read
from crawler.errors import UsageError

_OWN_FOLDERS = ("pending", "raw", "run", "sessions", "inbox", "input")
_DATABASES = ("lpm.db", "gateway.db")
_LOGS = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, and cannot do without."""


def check(target: Path, folder: Path) -> None:
    """Refuse to write to a file that the store in a folder needs; names that lead to one count as
    that."""
    if any((folder / name).exists() for name in (*_DATABASES, "pending")):
        if _is_of_store(Path(os.path.realpath(target)), folder):
            raise UsageError(
                f"{target} belongs to the store in {folder}; "
                "nothing was written: choose another name"
            )
        check_input(target, folder)


def check_input(target: Path, folder: Path) -> None:
    """Refuse to write to a file that was read into a job of the store in a folder."""
    if not os.path.exists(target):  # noqa: PTH110 # a name that is too long is none, too
        return
    for file, job in _inputs(folder):
        if is_same(target, Path(file)):
            raise UsageError(
                f"{target} is the input of the job {job}, and may be needed again; "
                "nothing was written: choose another name"
            )


def _is_of_store(real: Path, folder: Path) -> bool:
    databases = [Path(os.path.realpath(folder / name)) for name in _DATABASES]
    beside = {
        database.with_name(f"{database.name}{ending}") for database in databases for ending in _LOGS
    }
    if real in beside or (
        real.parent == Path(os.path.realpath(folder)) and real.name.startswith(_DATABASES)
    ):
        return True
    if any(Path(os.path.realpath(folder / name)) in real.parents for name in _OWN_FOLDERS):
        return True
    if not real.exists():
        return False
    # An archive is never written over, whoever writes. A hard link to a segment is that segment.
    archived = Path(os.path.realpath(folder / "archive")) == real.parent
    return archived or any(is_same(real, own) for own in (*databases, *(folder / "raw").glob("*")))


def _inputs(folder: Path) -> Iterator[tuple[str, str]]:
    """Each file that was read into a job, and the job's name; read without changing anything of the
    store."""
    path = folder / "lpm.db"
    if not path.is_file() or path.stat().st_size == 0:
        return
    kernel.check(folder)
    with closing(open_to_read(path)) as db:
        tables = {name for (name,) in db.all("SELECT name FROM sqlite_schema")}
        if "jobs" in tables:
            yield from db.all("SELECT source_file, name FROM jobs WHERE source_file IS NOT NULL")
        if "imports" in tables:  # not in the ledgers of older programs
            yield from db.all(
                "SELECT file, ifnull(name, '') FROM imports LEFT JOIN jobs ON jobs.id = job_id"
            )


def is_same(one: Path, other: Path) -> bool:
    """Whether two names are those of one file, which is there."""
    try:
        return one.samefile(other)
    except OSError:
        return False
