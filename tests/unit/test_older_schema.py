"""A damaged ledger of an earlier schema: a repair saves of it what a migration would have kept."""

import shutil
import tarfile
from pathlib import Path

import apsw
import pytest

from tests.support.patient import ledger, look, of, pages_of, wipe, wrong

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSIONS = sorted(
    int(path.name.removesuffix(".tar.gz").partition("-")[2])
    for path in FIXTURES.glob("schema-*.tar.gz")
)
NOTES = ("known_gaps", "pending_secured", "last_seq")
"""What a repair writes into `meta`, or removes there, whatever it has found."""
_FREED = "'kind': 'worker died'"
"""The event of a task that a dead worker held: it has the time of the repair."""


def unpacked(folder: Path, version: int) -> Path:
    """A store of an earlier version, with nothing left in the log."""
    with tarfile.open(FIXTURES / f"schema-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    db = apsw.Connection(str(folder / "data" / "lpm.db"))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return folder / "data"


def rows(data: Path) -> dict[str, list[str]]:
    """All rows of all tables, with the names of their columns."""
    tables = ledger(
        data, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )
    found = {}
    for (table,) in tables:
        columns = [row[1] for row in ledger(data, f"PRAGMA table_xinfo({table})")]
        found[str(table)] = sorted(
            str(dict(zip(columns, row, strict=True)))
            for row in ledger(data, f"SELECT * FROM {table}")
            if row[0] not in NOTES
        )
    found["events"] = [text for text in found["events"] if _FREED not in text]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repair_keeps_what_a_migration_keeps(tmp_path: Path, version: int) -> None:
    """One damaged page of an index costs no row and no column, whatever version has written the
    ledger."""
    # Given two copies of a store, and in one of them a damaged page that no row depends on
    data = unpacked(tmp_path, version)
    sound = shutil.copytree(data, tmp_path / "sound")
    path = data / "lpm.db"
    wipe(path, pages_of(path, "events_by_task", "leaf")[0])

    # When that is repaired, and the other one, too
    mended = look(data, repair=True)
    migrated = look(sound, repair=True)

    # Then both have the same rows, and the same is missing of their jobs
    assert "was damaged" in of(mended, "ledger", "mended")[0]
    assert rows(data) == rows(sound)
    assert [each.detail for each in wrong(mended)] == [each.detail for each in wrong(migrated)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_rows_of_one_table_are_not_taken_for_those_of_a_later_one(
    tmp_path: Path, version: int
) -> None:
    """Damaged results cost no row of another table, and no table that came later gets any of
    them."""
    data = unpacked(tmp_path, version)
    sound = shutil.copytree(data, tmp_path / "sound")
    for table in ("results", "outbox"):
        wipe(data / "lpm.db", pages_of(data / "lpm.db", table, "leaf")[0])

    look(data, repair=True)

    found, wanted = rows(data), rows(sound)
    for table in (
        "job_links",
        "rejected_rows",
        "exports",
        "validators",
        "reports",
        "imports",
        "losses",
    ):
        assert found[table] == wanted[table], table
