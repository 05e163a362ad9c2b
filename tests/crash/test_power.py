"""Power cuts: what was acknowledged is there when the machine is back."""

import random
import subprocess
import sys
from functools import partial
from pathlib import Path

from warcio.archiveiterator import ArchiveIterator

from crawler.lpm import LocalPersistenceManager
from crawler.models import TaskStatus
from tests.support.disk import Disk, can_mount
from tests.support.site import Site
from tests.support.stack import wait_for

CUTS = 5


def test_acknowledged_work_survives_power_cuts(tmp_path: Path, site: Site) -> None:
    """Five cuts in the middle of a crawl: every import and result that was acknowledged is there,
    page and all."""
    # Given a disk of our own; where none can be mounted, processes are killed instead
    disk = Disk(tmp_path) if can_mount(tmp_path) else None
    if disk is None:
        print("loop mounts are not allowed here: processes are killed instead of cutting the power")
    data = (disk.path if disk else tmp_path) / "data"
    acknowledged: dict[str, set[str]] = {"imported": set(), "completed": set()}
    chance = random.Random(3)
    try:
        for cut in range(CUTS):
            # When the power is cut at some moment of a crawl
            if disk:
                disk.mount()
            log = tmp_path / f"{cut}.log"
            argv = [
                sys.executable,
                "-m",
                "tests.support.crawl",
                str(data),
                site.url,
                str(1 + cut * 100_000),
            ]
            with log.open("w") as out, (tmp_path / f"{cut}.err").open("w") as err:
                crawl = subprocess.Popen(
                    argv, stdout=out, stderr=err, cwd=Path(__file__).parents[2]
                )
            enough = chance.randrange(150, 400)
            wait_for(partial(says_more_than, enough, log), 60, "some pages")
            if disk:
                disk.cut()
            crawl.kill()
            crawl.wait(120)
            for line in log.read_text().splitlines():
                kind, _, task_id = line.partition(" ")
                if len(task_id) == 32:  # the last line may be cut as well
                    acknowledged[kind].add(task_id)
            if disk:
                disk.unmount()
                disk.mount()

            # Then all that was said to be there is there
            check(data, acknowledged)
            if disk:
                disk.unmount()
    finally:
        if disk:
            disk.discard()
    assert len(acknowledged["completed"]) > CUTS * 150


def says_more_than(count: int, log: Path) -> bool:
    """Whether the crawl has acknowledged so many results."""
    return log.read_text().count("completed") > count


def check(data: Path, acknowledged: dict[str, set[str]]) -> None:
    """Every acknowledged task and result is in the ledger, its page in a segment, its file in
    pending/."""
    lpm = LocalPersistenceManager(data)
    lpm.bury()
    lpm.files.restore()
    tasks = {
        task_id: (id_, status)
        for id_, task_id, status in lpm.store.db.all("SELECT id, task_id, status FROM tasks")
    }
    assert acknowledged["imported"] <= set(tasks)
    assert all(tasks[task_id][1] == TaskStatus.COMPLETED for task_id in acknowledged["completed"])
    files = {path.name for path in lpm.pending.iterdir()}
    for task_id in acknowledged["completed"]:
        head, body = lpm.pages.read(tasks[task_id][0]) or ("", b"")
        assert head.startswith("HTTP/1.1 200")
        assert b"Parcel" in body
        assert f"{task_id}.json" in files
    assert lpm.store.db.all("PRAGMA integrity_check") == [("ok",)]
    lpm.close()
    for path in lpm.raw.glob("*.warc.gz"):
        with path.open("rb") as file:
            assert all(
                record.rec_type in ("warcinfo", "response") for record in ArchiveIterator(file)
            )
