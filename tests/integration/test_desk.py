"""The operator's desk: jobs, tasks, retries, timelines, deadlines and the live view, through their
commands."""

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from crawler.stack import read_stack
from tests.support.pages import Pages
from tests.support.site import Site
from tests.support.stack import Folder, assert_balanced, wait_for
from tests.support.tasks import new, open_job


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory, _site: Site) -> Iterator[Folder]:
    """A folder with a finished job, to look at: 4 pages collected, 2 failed, 1 row rejected."""
    folder = Folder(tmp_path_factory.mktemp("crawled"))
    yield crawl(folder, _site)
    folder.stop()


def crawl(folder: Folder, site: Site) -> Folder:
    """Run a job of seven rows in that folder."""
    rows = [f"{site.page(n)},{n}" for n in range(4)]
    rows += [f"{site.url}/status/404,404", f"{site.url}/status/500,500", "ftp://nowhere,9"]
    (folder.path / "parcels.csv").write_text("url,parcel_id\n" + "\n".join(rows) + "\n")
    done = folder.crawler("run", "parcels.csv")
    assert done.returncode == 1, done.stderr
    assert (
        "Receipt: 7 rows = 6 new + 0 known + 1 rejected\n  6 tasks = 4 completed + 2 failed\n"
        in done.stdout
    )
    return folder


def test_the_books_of_a_finished_job(crawled: Folder, site: Site) -> None:
    """list, show and verify agree; verify is 0 because everything is accounted for, failures
    included."""
    listed = json.loads(crawled.crawler("job", "list", "--json").stdout)
    shown = crawled.crawler("job", "show", "parcels.csv").stdout
    verified = crawled.crawler("job", "verify", "parcels.csv", "--json")

    receipt = json.loads(verified.stdout)
    assert verified.returncode == 0
    assert [(job["name"], job["state"], job["books"]["failed"]) for job in listed] == [
        ("parcels.csv", "done", 2)
    ]
    assert "1 failed: http_404" in shown
    assert f"sha256 {receipt['checksum']}" in shown
    assert receipt["reasons"] == {"failed": {"http_404": 1, "http_500": 1}}
    assert (receipt["rows"], receipt["rejected"], receipt["problems"]) == (7, 1, [])
    assert [task["source_line"] for task in receipt["failures"]] == [6, 7]


def test_retry_takes_only_what_has_failed(folder: Folder, site: Site) -> None:
    """The listed failures are fetched again and nothing else; verify says 5 while they are open."""
    crawl(folder, site)
    url = f"{site.url}/status/500"
    listed = folder.crawler("tasks", "list", "--status", "failed", "--reason", "http_500", "--json")
    before = site.hits()

    retried = folder.crawler("retry", "--failed", "--reason", "http_500", "--job", "parcels.csv")
    open_ = folder.crawler("job", "verify", "parcels.csv")
    resumed = folder.crawler("resume")

    assert json.loads(listed.stdout)["url"] == url
    assert retried.stdout == "1 tasks are pending again\n"
    assert open_.returncode == 5
    assert "1 tasks are still open" in open_.stdout
    assert resumed.returncode == 1
    after = site.hits()
    assert {
        path: after[path] - before.get(path, 0)
        for path in after
        if after[path] != before.get(path, 0)
    } == {"/status/500": 3}
    assert folder.crawler("job", "verify", "parcels.csv").returncode == 0


def test_why_tells_the_whole_way(crawled: Folder, site: Site) -> None:
    """File and line, queue, waits, attempts with worker, status, verdict, bytes and times, result,
    export, sync."""
    crawled.crawler("results", "export", "--output", "out.jsonl")

    good = crawled.crawler("why", site.page(2), "--json")
    text = crawled.crawler("why", site.page(2)).stdout
    bad = crawled.crawler("why", f"{site.url}/status/500").stdout

    [timeline] = json.loads(good.stdout)
    steps = {step["what"]: step["detail"] for step in timeline["steps"]}
    assert list(steps) == ["imported", "claimed", "completed", "result", "exported", "held"]
    assert (steps["imported"]["line"], steps["imported"]["queue"]) == (4, "default")
    assert steps["imported"]["file"].endswith("parcels.csv")
    assert steps["claimed"]["waited_s"] >= 0
    assert (
        steps["completed"]["attempt"],
        steps["completed"]["status"],
        steps["completed"]["verdict"],
    ) == (
        1,
        200,
        "ok",
    )
    assert steps["completed"]["worker"].startswith("worker:")
    assert min(steps["completed"][name] for name in ("bytes", "fetch_ms", "parse_ms")) > 0
    assert steps["exported"]["file"].endswith("out.jsonl")
    assert "parcels.csv, line 4" in text
    assert bad.count("the server answered 500") == 4  # its state, and three attempts
    assert bad.count("not before") == 2


def test_why_says_what_is_unknown(crawled: Folder) -> None:
    """A URL that was never asked for, an id that is none: one line, code 2."""
    for text in ("http://never.example/", "abcdef123456", "nonsense"):
        done = crawled.crawler("why", text)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), text


def test_pause_resume_and_cancel_in_a_running_stack(folder: Folder, site: Site) -> None:
    """A paused job stands still while another goes on; resumed it goes on; cancelled it ends; the
    books balance."""
    # Given a stack with a slow job and another
    folder.crawler("up", "--workers", "2")
    folder.crawler(
        "bulk", "import", str(folder.write("slow.txt", [site.page(n, 0.5) for n in range(3000)]))
    )
    folder.wait_until_completed(5, 30)

    # When the slow one is paused
    paused = folder.crawler("job", "pause", "slow.txt")
    assert paused.returncode == 0, paused.stderr
    wait_for(lambda: not folder.books().processing, 20, "what was in flight")
    before = folder.books().completed
    folder.crawler(
        "bulk", "import", str(folder.write("other.txt", [site.page(n) for n in range(1000, 1020)]))
    )

    # Then only the other goes on
    folder.wait_until_completed(before + 20, 30)
    facts = folder.status()
    assert facts["jobs"]["other.txt"]["completed"] == 20
    assert facts["jobs"]["slow.txt"]["completed"] == before
    assert facts["job_facts"]["slow.txt"]["state"] == "paused"

    # When it is resumed and then cancelled
    assert folder.crawler("job", "resume", "slow.txt").returncode == 0
    folder.wait_until_completed(before + 25, 30)
    assert folder.crawler("job", "cancel", "slow.txt").returncode == 0

    # Then it ends, and every task is accounted for
    wait_for(lambda: not folder.books().open, 20, "the job's end")
    facts = folder.status()
    assert facts["job_facts"]["slow.txt"]["state"] == "cancelled"
    assert_balanced(facts)
    assert facts["jobs"]["slow.txt"]["skipped"] > 300
    assert folder.crawler("job", "pause", "slow.txt").returncode == 2


def test_a_deadline_is_echoed_forecast_and_kept(folder: Folder, site: Site) -> None:
    """What cannot be done in time is told at import and expires; `run` warns, ends then, and exits
    with 1."""
    file = folder.write("auction.txt", [site.page(n, 0.5) for n in range(600)])

    told = folder.crawler(
        "bulk", "import", str(file), "--deadline", "2h30m", CRAWLER_TIMEZONE="Europe/Sofia"
    )
    done = folder.crawler(
        "run", str(file), "--rate", "16/s", "--deadline", "12s", CRAWLER_TIMEZONE="Europe/Sofia"
    )

    assert "EET, in 2 h 30 min" in told.stderr
    assert "to spare" in told.stderr
    assert "will miss the deadline" in done.stderr
    assert "127.0.0.1 takes 16/s, 16 at a time" in done.stderr
    assert done.returncode == 1
    books = folder.books()
    assert books.completed > 0
    assert books.expired > 300
    assert books.accepted == books.completed + books.expired


@pytest.mark.parametrize(
    "when", ["25:00", "soon", "2020-01-01", "0s", "", "9999999999d", "9999-12-31"]
)
def test_a_deadline_that_is_none_is_refused(folder: Folder, when: str) -> None:
    """A bad or past time is code 2, and nothing is imported."""
    file = folder.write("a.txt", ["http://127.0.0.1:9/"])
    done = folder.crawler("bulk", "import", str(file), "--deadline", when)
    assert done.returncode == 2
    assert "--deadline" in done.stderr
    assert not folder.data.exists()


def test_the_live_view(crawled: Folder) -> None:
    """Plain lines into a pipe, JSON lines with --json, a picture of at most 80 columns on a
    terminal."""
    plain = crawled.start("crawler", "status", "--watch", "--interval", "0.2")
    wait_for(lambda: crawled.log(plain).count("all: 6/6 done, 2 failed") >= 2, 20, "two lines")
    lines = crawled.start("crawler", "status", "--watch", "--interval", "0.2", "--json")
    wait_for(lambda: crawled.log(lines).count("\n") >= 2, 20, "two objects")
    plain.send_signal(signal.SIGINT)
    screen, terminal = pty.openpty()
    live = subprocess.Popen(
        [sys.executable, "-m", "crawler", "status", "--watch", "--interval", "0.2"],
        cwd=crawled.path, env=crawled.env | {"COLUMNS": "80", "TERM": "xterm"}, stdout=terminal,
    )  # fmt: skip
    parts: list[str] = []

    def look() -> None:
        while (
            live.poll() is None
        ):  # to its end: a terminal that nobody reads from stops who writes to it
            if select.select([screen], [], [], 0.1)[0]:
                parts.append(os.read(screen, 4096).decode())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    wait_for(lambda: "free in" in "".join(parts), 20, "a whole picture")
    live.send_signal(signal.SIGINT)
    looking.join(120)
    seen = "".join(parts)

    assert plain.wait(120) == 0
    assert (
        json.loads(crawled.log(lines).splitlines()[0])["job_facts"]["parcels.csv"]["state"]
        == "done"
    )
    assert live.wait(120) == 0
    assert "parcels.csv" in seen
    os.close(screen)
    os.close(terminal)


def test_status_shows_open_jobs_and_the_last_that_ended(folder: Folder) -> None:
    """Many jobs that schedules have made hide no open one, and names are not cut that fit."""
    long_name = "a-site-with-a-long-name.example-2026-11-17"
    with folder.lpm() as lpm:
        job = open_job(lpm, "still-open")
        lpm.persist_tasks([new("http://a.example/1")], job=job)
        for n in range(15):
            lpm.imports.close(open_job(lpm, f"{long_name}-{n:02}"), lpm.now())
        lpm.imports.close(job, lpm.now())
        lpm.jobs.finalise(lpm.now())

    wide = folder.crawler("status", COLUMNS="150").stdout
    narrow = folder.crawler("status", COLUMNS="80").stdout

    names = [line.split()[0] for line in wide.splitlines() if line.startswith(("still", "a-site"))]
    assert names == ["still-open", *(f"{long_name}-{n:02}" for n in range(5, 15))]
    assert "and 5 jobs that ended earlier: " in wide
    cut = [line for line in narrow.splitlines() if line.startswith("a-site")]
    assert [line.split()[0][-3:] for line in cut] == [f"-{n:02}" for n in range(5, 15)]
    assert max(len(line) for line in narrow.splitlines() if "a-site" in line) < 80


def test_a_disk_that_fills_up_pauses_the_work(folder: Folder, pages: Pages) -> None:
    """Below CRAWLER_MIN_FREE nothing more is claimed, `status` and the log say so; with room again
    work goes on."""
    # Given a stack that wants almost all the room there is
    free = shutil.disk_usage(folder.path).free
    ballast = min(8_000_000_000, free // 4)  # other tests take room, too
    folder.env["CRAWLER_MIN_FREE"] = str(free - ballast // 2)
    urls, filled = pages.parcels(600), threading.Event()
    pages.hold(60, until=filled, delay_s=0.1)
    folder.crawler("bulk", "import", str(folder.write("pages.txt", urls)))
    folder.crawler("up", "--workers", "2")
    folder.wait_until_completed(10, 30)

    # When the disk fills up
    weight = folder.path / "ballast"
    with weight.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, ballast)
    filled.set()
    wait_for(lambda: not folder.books().processing, 30, "the crawl to stand still")

    # Then it is told, and not much was claimed meanwhile
    assert folder.books().pending > 0
    assert "are free in" in folder.status()["disk"]["low"]
    assert "nothing more is fetched" in (folder.data / "logs" / "worker.log").read_text()

    # And with room again it goes on
    weight.unlink()
    folder.wait_until_done(600, 60)
    assert "there is room on the disk again" in (folder.data / "logs" / "worker.log").read_text()


def test_a_worker_that_does_not_consume_is_started_again(folder: Folder, site: Site) -> None:
    """A parent that lives but delivers no messages is ended by its children, and the supervisor
    starts another."""
    # Given a stack whose worker stands still while its children live
    folder.env["CRAWLER_STALL_S"] = "3"
    folder.crawler("up", "--workers", "2")
    before = read_stack(folder.data).worker
    assert before is not None
    os.kill(before.pid, signal.SIGSTOP)

    # When there is work
    folder.crawler(
        "bulk", "import", str(folder.write("pages.txt", [site.page(n) for n in range(50)]))
    )

    # Then another worker does it
    folder.wait_until_done(50, 60)
    after = read_stack(folder.data).worker
    assert after is not None
    assert after.pid != before.pid
    assert "takes no messages" in (folder.data / "logs" / "worker.log").read_text()


def test_old_keys_in_redis_expire(folder: Folder, site: Site) -> None:
    """All that a crawl and a single scrape leave in Redis has an end, but for Celery's own
    bindings."""
    folder.crawler("up", "--workers", "1")
    folder.crawler(
        "bulk", "import", str(folder.write("pages.txt", [site.page(n) for n in range(20)]))
    )
    assert folder.crawler("scrape", site.page(99)).returncode == 0
    folder.wait_until_done(21, 30)
    client = folder.redis()
    wait_for(lambda: client.exists("scrape:pages.txt:completed_at"), 10, "the mirrored progress")

    keys = {key.decode(): client.ttl(key) for number in (0, 1) for key in _keys(client, number)}

    assert [
        key for key, ttl in keys.items() if ttl == -1 and not key.startswith(("_kombu", "unacked"))
    ] == []


def _keys(client: object, number: int) -> list[bytes]:
    client.select(number)  # type: ignore[attr-defined]
    return list(client.keys("*"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12])
def test_a_store_of_an_earlier_schema_goes_on(folder: Folder, site: Site, version: int) -> None:
    """It is backed up, migrated, and its open tasks are done; what was collected stays as it
    was."""
    # Given a data folder as an earlier version left it in the middle of a crawl, two tasks in a
    # killed worker's hands
    with tarfile.open(
        Path(__file__).parents[1] / "fixtures" / f"schema-{version}.tar.gz"
    ) as archive:
        archive.extractall(folder.path, filter="data")
    with apsw.Connection(str(folder.data / "lpm.db")) as old:
        count = len(old.execute("SELECT id FROM tasks").fetchall())
        [(base,)] = old.execute(
            "SELECT substr(url, 1, instr(url, '/status') - 1) FROM tasks WHERE status = 'failed'"
        )
        old.execute(
            "UPDATE tasks SET url = replace(url, ?, ?) WHERE status <> 'completed'",
            (base, site.url),
        )
        kept = old.execute("SELECT task, record, body_sha256 FROM results ORDER BY 1").fetchall()
    old.close()

    # When it is resumed
    done = folder.crawler("resume")

    # Then all is done, and a copy of the old database is there
    broken_off = "third.csv: its import was broken off after 4 rows" in done.stdout
    assert broken_off == (version >= 4), done.stdout
    assert done.returncode == (5 if broken_off else 1), done.stderr  # one page had failed before
    books = folder.books()
    assert (books.accepted, books.completed, books.failed) == (count, count - 1, 1)
    with apsw.Connection(str(folder.data / "lpm.db")) as new:
        assert (
            new.execute("SELECT task, record, body_sha256 FROM results ORDER BY 1").fetchall()[
                : len(kept)
            ]
            == kept
        )
    new.close()
    backup = apsw.Connection(str(folder.data / f"lpm.db.v{version}.bak"))
    assert backup.pragma("user_version") == version
    backup.close()
    assert folder.crawler("job", "verify", "second.csv").returncode == 0
    assert len(list((folder.data / "pending").glob("*.json"))) == count - 1


@pytest.mark.parametrize("version", [4, 5, 8, 9, 10, 11, 12])
def test_a_bundle_of_an_earlier_version_is_taken_in(folder: Folder, version: int) -> None:
    """Results that a program before this one has bundled are stored, each once."""
    with tarfile.open(
        Path(__file__).parents[1] / "fixtures" / f"schema-{version}.tar.gz"
    ) as archive:
        archive.extract("bundle.tar.zst", folder.path, filter="data")

    first = folder.crawler("results", "unbundle", "bundle.tar.zst")
    again = folder.crawler("results", "unbundle", "bundle.tar.zst", "--json")

    assert first.returncode == 0, first.stderr
    assert json.loads(again.stdout)["known"] == folder.books().completed == 4
    assert folder.crawler("job", "verify", "first.csv").returncode == 0


@pytest.mark.parametrize("noted", [True, False])
def test_files_of_an_earlier_schema_are_read_again_without_doubling_a_row(
    folder: Folder, noted: bool
) -> None:
    """A job of two files that an earlier version imported: reading them again changes nothing, a
    third one counts."""
    # Given two files whose rows share lines and pages, and how a schema that told them apart by
    # their lines had them
    with tarfile.open(Path(__file__).parents[1] / "fixtures" / "schema-5.tar.gz") as archive:
        archive.extractall(folder.path, filter="data")
    if not noted:  # as schema 4 and earlier ones, which knew a job's files only by its tasks
        with apsw.Connection(str(folder.data / "lpm.db")) as old:
            old.execute("DELETE FROM imports")
            old.execute(
                "UPDATE tasks SET source_file = replace(source_file, '/srv/auction', ?)",
                (str(folder.path),),
            )
        old.close()
    before = json.loads(folder.crawler("job", "verify", "auction", "--json").stdout)
    assert (before["rows"], before["known"], before["rejected"]) == (5, 1, 1)

    # When they are read again, and then a third one of the same rows
    for name in ("evening.csv", "morning.csv"):
        folder.crawler("bulk", "import", name, "--job", "auction")
    again = json.loads(folder.crawler("job", "verify", "auction", "--json").stdout)
    (folder.path / "night.csv").write_text((folder.path / "evening.csv").read_text() + "\n")
    folder.crawler("bulk", "import", "night.csv", "--job", "auction")
    more = json.loads(folder.crawler("job", "verify", "auction", "--json").stdout)

    # Then only the third one has added rows, every one of them
    assert again == before
    assert (more["rows"], more["known"], more["rejected"]) == (9, 4, 2)


def test_a_store_is_not_migrated_under_the_hands_of_an_older_program(folder: Folder) -> None:
    """While a process of the older version has the store, nothing of it is changed; afterwards it
    is migrated."""
    # Given a store of an earlier schema that some process shares, as every user of a store does
    with tarfile.open(Path(__file__).parents[1] / "fixtures" / "schema-12.tar.gz") as archive:
        archive.extractall(folder.path, filter="data")
    before = (folder.data / "lpm.db").read_bytes()
    lock = os.open(folder.data / "run" / "store.lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)

    # When it is used by this version
    refused = [folder.crawler(*command) for command in (("status",), ("resume",), ("up",))]
    os.close(lock)

    # Then it is refused in one line, and possible when that process has gone
    assert [done.returncode for done in refused] == [4, 4, 4]
    assert all("in use by a process of that version" in done.stderr for done in refused)
    assert (folder.data / "lpm.db").read_bytes() == before
    assert folder.crawler("status").returncode == 0


def test_a_run_shows_that_its_job_is_paused(folder: Folder, site: Site) -> None:
    """Whoever waits for a job that another has paused is told so, and how to go on."""
    file = folder.write("slow.txt", [site.page(n, 0.3) for n in range(100)])
    run = folder.start("crawler", "run", str(file))
    folder.wait_until_completed(3, 60)

    folder.crawler("job", "pause", "slow.txt")
    wait_for(lambda: "job resume slow.txt" in folder.log(run), 20, "the warning")
    folder.crawler("job", "resume", "slow.txt")

    assert run.wait(120) == 0
