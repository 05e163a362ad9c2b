"""`doctor --compact`: an old store becomes small, and gives room back from then on."""

import signal
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from crawler.lpm import LocalPersistenceManager
from crawler.results.retention import prune_jobs
from tests.support.stack import Folder
from tests.support.tasks import collect


@pytest.fixture
def old(folder: Folder) -> Folder:
    """A store as earlier programs made it, from which a job was removed."""
    with closing(folder.lpm()) as lpm:
        lpm.open()
    db = apsw.Connection(str(folder.data / "lpm.db"))
    db.execute("PRAGMA auto_vacuum=NONE; VACUUM")
    assert db.pragma("auto_vacuum") == 0
    db.close()
    with closing(folder.lpm()) as lpm:
        for name in ("old", "new"):
            collect(lpm, name, 600)
        assert not lpm.retention.gives_room_back()
        pruned = prune_jobs(lpm, 4e9, also_unexported=True, dry_run=False)
        assert pruned.jobs == ["old"]
        lpm.store.cut_log()
    return folder


def content(folder: Folder) -> list[object]:
    """All results, and what the ledger counts."""
    with closing(folder.lpm()) as lpm:
        rows = list[object](lpm.store.db.all("SELECT * FROM results ORDER BY task"))
        return [*rows, lpm.counts.totals(), lpm.store.id]


def test_a_store_becomes_small_and_gives_room_back(old: Folder) -> None:
    """Nothing of its content changes."""
    before, size = content(old), (old.data / "lpm.db").stat().st_size

    done = old.crawler("doctor", "--compact")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "was rewritten: " in done.stdout
    assert (old.data / "lpm.db").stat().st_size < 0.7 * size
    assert content(old) == before
    with closing(old.lpm()) as lpm:
        assert lpm.retention.gives_room_back()
    assert old.crawler("doctor").returncode == 0


@pytest.mark.parametrize("failpoint", ["compacting:1", "compacting:3", "compacted:1"])
def test_a_kill_leaves_the_store_as_it_was(old: Folder, failpoint: str) -> None:
    """Or rewrites it; nothing in between, and the same command again does it."""
    before = content(old)

    killed = old.crawler("doctor", "--compact", CRAWLER_FAILPOINT=failpoint)

    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert content(old) == before
    assert old.crawler("doctor").returncode == 0
    assert old.crawler("doctor", "--compact").returncode == 0
    assert content(old) == before
    left = {path.name for path in (old.data / "run").iterdir() if "etilqs" in path.name}
    assert left == set()


def test_a_store_in_use_is_left_as_it_is(old: Folder) -> None:
    """The line says who uses it, or what to type first."""
    with closing(old.lpm()) as lpm:
        lpm.open()
        refused = old.crawler("doctor", "--compact")
    nothing = old.crawler("doctor", "--compact", "--data-dir", "elsewhere")
    both = old.crawler("doctor", "--compact", "--repair")

    assert refused.returncode == 1
    assert "lpm.db was left as it is: another process uses the store" in refused.stdout
    assert nothing.returncode == 0
    assert "there is no store" in nothing.stdout
    assert both.returncode == 2


def test_new_stores_give_room_back(tmp_path: Path) -> None:
    """Without a command."""
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        lpm.open()
        assert lpm.retention.gives_room_back()
