"""A receipt never certifies what is not there: imports that broke off, files that are torn or
gone."""

import json
import shutil
import time
from pathlib import Path

import pytest

from crawler.cli.running import report
from crawler.db.connection import writing
from crawler.errors import StoreError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from tests.support.disk import Disk, can_mount
from tests.support.pages import Pages
from tests.support.patient import change, crawl, pages_of
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.tasks import done, new, open_job

PAGE = 4096


def torn(pending: Path) -> list[str]:
    """The files in pending/ that are no whole results."""
    bad = []
    for path in pending.glob("*.json"):
        try:
            whole = json.loads(path.read_bytes())["task_id"] == path.stem
        except (ValueError, TypeError, KeyError):
            whole = False
        if not whole:
            bad.append(path.name)
    return bad


def test_an_import_that_was_killed_is_told_until_it_is_completed(
    folder: Folder, site: Site
) -> None:
    """After a kill in the middle of `run`, all commands say that rows are missing; the same `run`
    completes it."""
    # Given a file of 6,000 rows for 60 pages, and a kill after its first commit
    rows = [site.page(n // 100) for n in range(6000)]
    file = folder.write("parcels.txt", rows)
    assert folder.crawler("run", str(file), CRAWLER_FAILPOINT="imported:1").returncode == -9

    # When what is there is collected
    resumed = folder.crawler("resume")

    # Then nobody takes it for all
    assert resumed.returncode == 5, resumed.stdout + resumed.stderr
    assert folder.books().completed == 50
    verified, shown, status, listed = (
        folder.crawler(*command)
        for command in (
            ("job", "verify", "parcels.txt"),
            ("job", "show", "parcels.txt"),
            ("status",),
            ("job", "list"),
        )
    )
    assert verified.returncode == 5
    assert "Every task is in a final state" not in verified.stdout
    for said in (resumed, verified, shown, status, listed):
        assert "its import was broken off after 5,000 rows" in said.stdout, said
        assert "python -m crawler job accept parcels.txt" in said.stdout
    assert folder.status()["job_facts"]["parcels.txt"]["unaccounted"]
    assert json.loads(folder.crawler("resume", "--json").stdout)["problems"]

    # And the same command completes it
    again = folder.crawler("run", str(file))
    assert again.returncode == 0, again.stdout + again.stderr
    assert folder.books().completed == 60
    assert "Receipt: 6,000 rows" in again.stdout
    assert folder.crawler("job", "verify", "parcels.txt").returncode == 0
    assert folder.crawler("resume").returncode == 0


def test_resume_waits_for_an_import_that_runs(folder: Folder, site: Site) -> None:
    """Another process that still reads a file may bring more: until then not everything is done."""
    # Given an import in the middle of its file, its first rows done
    first, second = folder.write("first.txt", [site.page(1)]), [site.page(n) for n in range(2, 5)]
    folder.crawler("run", str(first))
    lpm = folder.lpm()
    job = lpm.jobs.named("first.txt")
    with lpm.importing(job):
        resumed = folder.start("crawler", "resume")
        wait_for(folder.children, 60, "the workers of resume")

        # When that brings more rows, and ends
        lpm.persist_tasks([new(url) for url in second], job=job, loopback=True)
        folder.wait_until_completed(4, 60)
        assert resumed.poll() is None
    lpm.close()

    # Then so does the command
    assert resumed.wait(60) == 0, folder.log(resumed)


def test_what_an_import_has_left_can_be_accepted(folder: Folder, site: Site) -> None:
    """`job accept` closes a job whose import broke off; its receipt says so from then on."""
    file = folder.write("parcels.txt", [site.page(n // 100) for n in range(6000)])
    folder.crawler("bulk", "import", str(file), CRAWLER_FAILPOINT="imported:1")
    assert folder.crawler("resume").returncode == 5

    accepted = folder.crawler("job", "accept", "parcels.txt")
    verified = folder.crawler("job", "verify", "parcels.txt")

    assert accepted.returncode == 0, accepted.stderr
    assert verified.returncode == 0, verified.stdout
    assert "accepted: its import was broken off after 5,000 rows" in verified.stdout
    assert folder.crawler("resume").returncode == 0
    nothing = folder.crawler("job", "accept", "parcels.txt")
    assert (
        nothing.returncode,
        "nothing is known to be missing from parcels.txt" in nothing.stderr,
    ) == (2, True)


def test_a_cancelled_job_ends_although_its_import_broke_off(folder: Folder, site: Site) -> None:
    """Who cancels a job wants no more of its file."""
    file = folder.write("parcels.txt", [site.page(n // 100) for n in range(6000)])
    folder.crawler("bulk", "import", str(file), CRAWLER_FAILPOINT="imported:1")

    assert folder.crawler("job", "cancel", "parcels.txt").returncode == 0

    assert folder.crawler("job", "verify", "parcels.txt").returncode == 0
    assert "done" in folder.crawler("job", "list").stdout


def test_a_cancelled_job_accepts_no_lost_page(folder: Folder) -> None:
    """Who cancels a job says nothing of pages: its receipt, and those of jobs that share them, say
    what they said."""
    # Given two jobs that share pages, one of them not read to its end, and no raw/
    urls = [f"http://a.example/{n // 500}" for n in range(6000)]
    first, second = folder.write("first.txt", urls[:5000]), folder.write("second.txt", urls)
    folder.crawler("bulk", "import", str(first))
    folder.crawler(
        "bulk", "import", str(second), "--fresh-for", "1h", CRAWLER_FAILPOINT="imported:1"
    )
    lpm = folder.lpm()
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 10)))
    lpm.close()
    (folder.data / "raw").rename(folder.path / "away")

    # When that one is cancelled
    before = folder.crawler("job", "verify", "first.txt")
    cancelled = folder.crawler("job", "cancel", "second.txt")

    # Then it says what it accepts, and what it does not
    assert cancelled.returncode == 0, cancelled.stderr
    assert "Accepted for second.txt: its import was broken off after 5,000 rows" in cancelled.stdout
    assert "UNACCOUNTED: the segment " in cancelled.stdout
    assert folder.crawler("job", "verify", "first.txt").stdout == before.stdout
    of_second = folder.crawler("job", "verify", "second.txt")
    assert of_second.returncode == 5
    assert "with 10 pages of its results, is missing" in of_second.stdout
    # And with the pages, nothing is missing
    shutil.rmtree(folder.data / "raw")
    (folder.path / "away").rename(folder.data / "raw")
    assert folder.crawler("job", "verify", "second.txt").returncode == 0


def test_every_command_that_shows_a_job_tells_that_its_pages_are_gone(folder: Folder) -> None:
    """Without raw/, neither `status` nor `job list` nor `analyze` reports a job as if all were
    there."""
    crawl(folder.data, 10, 10)
    lpm = folder.lpm()
    lpm.tasks.add_call(new("http://b.example/", external_id="call"), loopback=False)
    commands = (
        ("status",),
        ("job", "list"),
        ("analyze", "job"),
        ("analyze", "data"),
        ("analyze", "data/pending"),
    )
    assert not any("UNACCOUNTED" in folder.crawler(*command).stdout for command in commands)
    shutil.rmtree(folder.data / "raw")

    for command in commands:
        said = folder.crawler(*command)
        assert said.returncode == 0, said.stderr
        assert "UNACCOUNTED" in said.stdout, command
        assert "with 10 pages of its results, is missing" in " ".join(said.stdout.split()), command
    assert folder.status()["job_facts"]["job"]["unaccounted"]

    # Those of a single call, too, which no job tells of
    folder.crawler("job", "accept", "job")
    assert not any("UNACCOUNTED" in folder.crawler(*command).stdout for command in commands)
    lpm = folder.lpm()
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 1)))
    lpm.close()
    shutil.rmtree(folder.data / "raw")
    for command in (("status",), ("analyze", "data")):
        told = " ".join(folder.crawler(*command).stdout.split())
        assert "UNACCOUNTED: the segment" in told, command
        assert "with 1 pages of the results, is missing" in told, command


@pytest.mark.parametrize("killed", [False, True])
def test_files_of_results_survive_a_power_cut(site: Site, tmp_path: Path, killed: bool) -> None:
    """What a finished run names is on the disk; what a killed one left is made again by the next
    command."""
    # Given a crawl on a disk of its own; where none can be mounted, files are torn by hand
    disk = Disk(tmp_path / "disk") if can_mount(tmp_path) else None
    if disk:
        disk.mount()
    else:
        print("loop mounts are not allowed here: the files of a killed run are torn by hand")
    folder = Folder(disk.path if disk else tmp_path, CRAWLER_MIN_FREE="0")
    pages = [site.page(n) for n in range(200)]
    try:
        run = folder.start("crawler", "run", str(folder.write("pages.txt", pages)))
        if killed:
            folder.wait_until_completed(100, 60)
            run.kill()
            folder.crawler("down")
        else:
            assert run.wait(120) == 0, folder.log(run)
            assert folder.crawler("results", "export", "--output", "out.jsonl").returncode == 0

        # When the power is cut at once, and the disk mounted again without a reboot
        if disk:
            disk.cut()
            run.kill()
            disk.unmount()
            disk.mount()
        elif killed:
            for path in (folder.data / "pending").glob("*.json"):
                path.write_bytes(b"")

        # Then no file of a finished run is torn, and those of a killed one are made again
        pending = folder.data / "pending"
        if killed:
            assert folder.crawler("resume").returncode == 0
        else:
            assert len((folder.path / "out.jsonl").read_text().splitlines()) == 200
        assert len(list(pending.glob("*.json"))) == 200
        assert torn(pending) == []
    finally:
        folder.stop()
        if disk:
            disk.discard()


def test_who_reads_pending_makes_torn_and_missing_files_again(folder: Folder, site: Site) -> None:
    """`analyze pending/` and `resume` find what somebody has removed or torn; no success is
    computed from nothing."""
    folder.crawler("run", str(folder.write("pages.txt", [site.page(n) for n in range(20)])))
    pending = folder.data / "pending"
    before = {path.name: path.read_bytes() for path in pending.iterdir()}

    # Torn, and removed
    for number, path in enumerate(sorted(pending.iterdir())):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            path.write_bytes(path.read_bytes()[:100])
    analysed = folder.crawler("analyze", str(pending))
    assert analysed.returncode == 0, analysed.stderr
    assert "20 results; 100.0 % success" in analysed.stdout
    assert "14 files were missing or torn, and were made again" in analysed.stdout
    assert {path.name: path.read_bytes() for path in pending.iterdir()} == before

    # All of them removed, and nothing left to do
    for path in pending.iterdir():
        path.unlink()
    assert folder.crawler("resume").returncode == 0
    assert {path.name: path.read_bytes() for path in pending.iterdir()} == before

    # None of them there, because all were archived
    folder.crawler("results", "archive", "--compress")
    nothing = folder.crawler("analyze", str(pending))
    assert "100" not in nothing.stdout.splitlines()[1], nothing.stdout


def test_an_unbundle_that_was_killed_is_told_and_completed(folder: Folder, site: Site) -> None:
    """Killed between its commit and its files, it leaves a job that is unaccounted for, and files
    that come back."""
    folder.crawler("run", str(folder.write("pages.txt", [site.page(n) for n in range(10)])))
    folder.crawler("results", "bundle", "--output", "stick.tar.zst")
    other = ("--data-dir", "other")
    killed = folder.crawler(
        "results", "unbundle", "stick.tar.zst", *other, CRAWLER_FAILPOINT="committed:1"
    )
    assert killed.returncode == -9
    pending = folder.path / "other" / "pending"
    assert list(pending.glob("*.json")) == []

    analysed = folder.crawler("analyze", str(pending))
    verified = folder.crawler("job", "verify", "stick.tar.zst", *other)
    assert "10 results" in analysed.stdout, analysed
    assert torn(pending) == []
    assert verified.returncode == 5
    assert "python -m crawler --data-dir other results unbundle" in verified.stdout

    assert folder.crawler("results", "unbundle", "stick.tar.zst", *other).returncode == 0
    assert folder.crawler("job", "verify", "stick.tar.zst", *other).returncode == 0


def test_only_files_that_are_results_are_counted(folder: Folder) -> None:
    """`results list` looks at each file: torn, empty, missing and foreign ones are told, not
    counted as files."""
    crawl(folder.data, 20, 12)
    pending = folder.data / "pending"
    first, second, third, fourth, *_ = sorted(pending.iterdir())
    first.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:-2])
    third.write_bytes(bytes(third.stat().st_size))
    fourth.unlink()
    (pending / ("0" * 32 + ".json")).write_text(
        '{"task_id":"' + "0" * 32 + '","data":{},"url":"http://x.example/"}\n'
    )
    (pending / "notes.txt").write_text("mine")

    told = folder.crawler("results", "list").stdout
    facts = json.loads(folder.crawler("results", "list", "--json").stdout)
    of_job = json.loads(folder.crawler("results", "list", "--job", "job", "--json").stdout)

    assert f"12 results, 8 of them in {pending}/" in told
    assert (
        "3 more files are torn and 1 are missing; "
        "python -m crawler doctor --repair makes them again" in told
    )
    assert "2 files there do not belong to this store" in told
    assert facts["results"] == of_job["results"] == 12
    assert facts["files"] == {"results": 8, "torn": 3, "missing": 1, "foreign": 2}

    # `analyze` makes them again, and counts no stranger's
    analysed = folder.crawler("analyze", str(pending)).stdout
    assert "12 results; 60.0 % success" in analysed
    assert "4 files were missing or torn, and were made again from the ledger" in analysed
    assert "no task of this store has this name" in analysed
    assert json.loads(folder.crawler("results", "list", "--json").stdout)["files"]["torn"] == 0


def test_a_copied_folder_is_read_as_it_is(folder: Folder) -> None:
    """Without its ledger, what is torn in a folder is told and nothing is written; none of it gives
    no rate."""
    crawl(folder.data, 5, 5)
    copy = folder.path / "copy"
    shutil.copytree(folder.data / "pending", copy)
    for path in copy.iterdir():
        path.write_bytes(path.read_bytes()[:40])
    before = {path.name: path.read_bytes() for path in copy.iterdir()}

    torn = folder.crawler("analyze", str(copy))
    assert (torn.returncode, torn.stdout) == (2, "")
    assert "there are no results in it; 5 could not be read" in torn.stderr

    shutil.copy(next((folder.data / "pending").iterdir()), copy)
    some = folder.crawler("analyze", str(copy))
    assert "1 results; 100.0 % success" in some.stdout
    assert "4 could not be read as results" in some.stdout
    assert {path.name for path in copy.iterdir()} == before.keys()


def test_resume_does_not_pass_over_pages_that_are_gone(folder: Folder) -> None:
    """Where raw/ is gone, `resume` says so as `job verify` does, until that is accepted."""
    crawl(folder.data, 10, 10)
    shutil.rmtree(folder.data / "raw")

    resumed = folder.crawler("resume")
    assert resumed.returncode == folder.crawler("job", "verify", "job").returncode == 5
    assert "with 10 pages of the results, is missing" in resumed.stdout

    folder.crawler("job", "accept", "job")
    assert (
        folder.crawler("resume").returncode
        == folder.crawler("job", "verify", "job").returncode
        == 0
    )


@pytest.mark.parametrize("table", ["results", "tasks"])
def test_resume_certifies_no_more_than_a_receipt(folder: Folder, table: str) -> None:
    """Rows that are gone without a trace are missed by `resume`, too, in any of the jobs."""
    crawl(folder.data, 10, 10)
    change(folder.data, f"DELETE FROM {table} WHERE rowid > 5")

    resumed = folder.crawler("resume")

    assert resumed.returncode == folder.crawler("job", "verify", "job").returncode == 5
    assert "UNACCOUNTED: job: 5 " in resumed.stdout


def test_verify_reads_what_it_certifies(folder: Folder) -> None:
    """Where a page of lpm.db keeps the rows or results of a job from being read, `verify` does not
    say that all is well; it names the command that helps, for this very store."""
    # Given a finished job, and which pages of its ledger an export cannot do without
    data = folder.path / "store of one"
    job = crawl(data, 40, 40)
    path = data / "lpm.db"
    good = path.read_bytes()
    needed = []
    for number in range(len(good) // PAGE):
        path.write_bytes(good[: number * PAGE] + bytes(PAGE) + good[(number + 1) * PAGE :])
        if not is_readable(data, job):
            needed.append(number)
            # When the job is verified without that page, then that fails, or tells that something
            # is missing
            lpm = LocalPersistenceManager(data)
            try:
                assert lpm.verify(job).problems, f"page {number}"
            except StoreError:
                pass
            finally:
                lpm.close()
    assert len(needed) > 10

    # And the command says so, with the way out
    path.write_bytes(good)
    page = pages_of(path, "job_links", "leaf")[0] - 1
    path.write_bytes(good[: page * PAGE] + bytes(PAGE) + good[(page + 1) * PAGE :])
    verified = folder.crawler("job", "verify", job.name, "--data-dir", str(data))
    assert verified.returncode == 4, verified.stdout + verified.stderr
    assert "Every task is in a final state" not in verified.stdout
    assert f"python -m crawler --data-dir '{data}' doctor" in verified.stderr


def is_readable(data: Path, job: Job) -> bool:
    """Whether every result and every row of a job can be read."""
    lpm = LocalPersistenceManager(data)
    try:
        return len(list(lpm.results.read(job))) == len(list(lpm.results.input_rows(job))) == 40
    except StoreError:
        return False
    finally:
        lpm.close()


def test_what_a_command_proposes_is_for_its_own_store(folder: Folder, site: Site) -> None:
    """A store that was named with --data-dir is named in every proposed command: typed as given, it
    acts on that."""
    file = folder.write("parcels.txt", [site.page(n // 100) for n in range(6000)])
    where = ("--data-dir", "other store")
    folder.crawler("bulk", "import", str(file), *where, CRAWLER_FAILPOINT="imported:1")
    path = folder.path / "other store"
    shutil.rmtree(path / "pending")
    program = "python -m crawler --data-dir 'other store'"

    shown = {
        command: folder.crawler(*command.split(), *where)
        for command in (
            "job verify parcels.txt",
            "job list",
            "job pause parcels.txt",
            "doctor",
            "sync status",
        )
    }

    for command, typed in shown.items():
        said = typed.stdout + typed.stderr
        assert said.count("python -m crawler") == said.count(program), (command, said)
    assert f"{program} job accept parcels.txt" in shown["job verify parcels.txt"].stdout
    assert f"{program} job resume parcels.txt" in shown["job pause parcels.txt"].stdout


HANDED_OVER = {
    "all rows": ("results", "export", "--all-rows", "--output", "parcels.jsonl"),
    "plain": ("results", "export", "--job", "parcels.txt", "--output", "parcels.csv"),
    "stdout": ("results", "export", "--format", "jsonl", "--output", "-"),
    "bundle": ("results", "bundle", "--output", "stick.tar.zst"),
}


@pytest.mark.parametrize("how", HANDED_OVER)
def test_who_hands_over_is_told_what_is_missing(folder: Folder, site: Site, how: str) -> None:
    """Rows that never came in are told with code 5, open tasks in a line, and a whole job without a
    word."""
    # Given an import that broke off, and one page of it
    file = folder.write("parcels.txt", [site.page(n // 100) for n in range(6000)])
    folder.crawler("bulk", "import", str(file), CRAWLER_FAILPOINT="imported:1")
    lpm = folder.lpm()
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner")))

    # When results are handed over, before and after the rest was given up
    broken = folder.crawler(*HANDED_OVER[how])
    lpm.accept(lpm.jobs.named("parcels.txt"))
    accepted = folder.crawler(*HANDED_OVER[how])
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 1000)))
    lpm.close()
    whole = folder.crawler(*HANDED_OVER[how])

    # Then it is done, and what is not in it is said where a pipe does not hide it
    assert broken.returncode == 5, broken
    assert "UNACCOUNTED: parcels.txt: its import was broken off after 5,000 rows" in broken.stderr
    assert accepted.returncode == whole.returncode == 0, (accepted, whole)
    assert "49 tasks are still open" in broken.stderr
    assert "49 tasks are still open" in accepted.stderr
    assert "UNACCOUNTED" not in accepted.stderr
    assert "open" not in whole.stderr


@pytest.mark.parametrize("which", ["job", "all"])
@pytest.mark.parametrize("as_json", [False, True])
def test_text_and_exit_code_of_a_run_are_of_one_reading(
    folder: Folder, capsys: pytest.CaptureFixture[str], which: str, as_json: bool
) -> None:
    """Rows that came in after the crawl had ended are told as open by its report, and its exit code
    is 5 then."""
    lpm = folder.lpm()
    job = open_job(lpm)
    lpm.persist_tasks([new("http://a.example/1")], job=job)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner")))
    lpm.persist_tasks([new("http://a.example/2")], job=job)
    lpm.imports.close(job, time.time())
    lpm.close()

    code = report(folder.settings, job if which == "job" else None, as_json)

    told = capsys.readouterr().out
    assert code == 5
    assert ('"pending": 1' if as_json else "1 of 2 pages collected") in told
    assert as_json or "1 tasks were added meanwhile and are still open" in told


def test_resume_certifies_no_torn_files(folder: Folder, pages: Pages) -> None:
    """Files that were emptied after a finished run are told by `job verify`, and made again by
    `resume`."""
    file = folder.write("parcels.txt", pages.parcels(3))
    assert folder.crawler("run", str(file)).returncode == 0
    for path in (folder.data / "pending").iterdir():
        path.write_bytes(b"")

    told = folder.crawler("job", "verify", "parcels.txt")
    resumed = folder.crawler("resume")

    assert told.returncode == 5
    assert "3 files of its results in pending/ are missing or torn" in told.stdout
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert torn(folder.data / "pending") == []
    assert folder.crawler("job", "verify", "parcels.txt").returncode == 0


WRITTEN = {
    "csv": ("results", "export", "--output"),
    "jsonl": ("results", "export", "--all-rows", "--output"),
    "md": ("results", "export", "--output"),
    "parquet": ("results", "export", "--output"),
    "warc.gz": ("results", "export", "--job", "job", "--output"),
    "xlsx": ("results", "export", "--output"),
    "tar.zst": ("results", "bundle", "--output"),
    "archive": ("results", "archive", "--output"),
}


@pytest.mark.parametrize("ending", WRITTEN)
def test_what_ends_while_results_are_read_is_told_to_be_open(folder: Folder, ending: str) -> None:
    """Whoever reads results while the last tasks end is told that these may be missing, although
    none is open then."""
    # Given a job with one task at work, and results that are read but not noted as handed over yet
    lpm = folder.lpm()
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(20)], job=open_job(lpm))
    last, *others = lpm.get_next_pending("owner", 20)
    lpm.save_result(*(done(task) for task in others))
    file = folder.path / f"results.{ending}"
    with writing(lpm.store.durable):
        reader = folder.start("crawler", *WRITTEN[ending], str(file))
        wait_for(
            lambda: [*folder.path.glob(f"*{file.name}*")] or reader.poll() is not None,
            60,
            "the file",
        )

    # When that task ends before the reader does
    lpm.save_result(done(last))
    lpm.close()
    reader.wait(240)

    assert "1 tasks are still open" in folder.log(reader)


def test_a_later_file_of_the_same_name_is_told_by_whoever_is_given_the_name(folder: Folder) -> None:
    """A job's name is that of its first file: nobody takes its receipt for that of today's file
    without a word."""
    # Given yesterday's file, collected, and today's of the same name
    file = folder.write("a.csv", ["url", "http://a.example/1"])
    assert "earlier files" not in folder.crawler("bulk", "import", str(file)).stderr
    lpm = folder.lpm()
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 1)))
    lpm.jobs.finalise(lpm.now())
    lpm.close()
    assert folder.crawler("job", "verify", "a.csv").stdout.startswith("a.csv (imported ")
    (folder.path / "today").mkdir()
    today = folder.path / "today" / "a.csv"
    today.write_text("url\nhttp://a.example/2\nhttp://a.example/3\n")
    second = folder.crawler("bulk", "import", str(today))
    assert (
        "this is the job a.csv-2; earlier files of the same name made a.csv (imported "
        in second.stderr
    )

    # When the file is not here, or not as it was read
    file.write_text("url\nhttp://a.example/4\n")
    commands = {
        ("job", "verify", "a.csv"): 0,
        ("job", "show", "a.csv"): 0,
        ("results", "list", "--job", "a.csv"): 0,
        ("results", "export", "--job", "a.csv", "-o", "a.jsonl"): 0,
        ("results", "bundle", "--job", "a.csv", "-o", "a.tar.zst"): 0,
        ("results", "archive", "--job", "a.csv"): 0,
        ("tasks", "list", "--job", "a.csv"): 0,
        ("retry", "--failed", "--job", "a.csv"): 0,
        ("audit", "--job", "a.csv"): 0,
        ("job", "accept", "a.csv"): 2,
        ("job", "pause", "a.csv"): 2,
    }

    # Then the name is that of the first job, and each command says that there is a later one
    for command, code in commands.items():
        said = folder.crawler(*command)
        assert said.returncode == code, (command, said.stdout, said.stderr)
        assert "this is a.csv (imported " in said.stderr, command
        assert "later files of the same name made a.csv-2 (imported " in said.stderr, command
    assert (
        "the latest of a file of the same name is a.csv-2"
        in folder.crawler("analyze", "a.csv").stdout
    )
    for verb in ("verify", "show"):
        facts = json.loads(folder.crawler("job", verb, "a.csv", "--json").stdout)
        assert facts["later_jobs"] == ["a.csv-2"]
        assert facts["created_at"] > 0

    # And a file that was read into a job is that job, wherever it is called by its name
    for name in ("today/a.csv", str(today)):
        shown = folder.crawler("job", "show", name, "--json")
        assert json.loads(shown.stdout)["name"] == "a.csv-2"
        assert f"{name} was imported as a.csv-2" in shown.stderr
    shutil.copy(today, file)
    verified = folder.crawler("job", "verify", "a.csv", "--json")
    assert verified.returncode == 5
    assert json.loads(verified.stdout)["job"] == "a.csv-2"
    assert "Paused a.csv-2" in folder.crawler("job", "pause", "a.csv").stdout

    # And no other command says a word about it
    assert not folder.crawler("job", "show", "a.csv-2").stderr


def test_pages_without_what_was_wanted_are_told(folder: Folder, site: Site) -> None:
    """A required field that no page has is in the summaries of `run` and `resume`, and in the
    receipt; its records are stored as invalid, and no command calls them good."""
    sites = folder.path / "config" / "sites"
    sites.mkdir(parents=True)
    (sites / "ours.yaml").write_text(
        "hosts: [127.0.0.1]\nfields:\n  price: {css: .no-such, required: true}\n"
    )
    folder.write("parcels.txt", [site.page(n) for n in range(5)])

    run = folder.crawler("run", "parcels.txt")
    resumed = folder.crawler("resume")
    verified = folder.crawler("job", "verify", "parcels.txt", "--json")

    assert "5 of 5 pages collected" in run.stdout, run.stderr
    for told in (run, resumed):
        assert "  price is missing on 5 of 5 pages\n" in told.stdout
        assert "  5 of 5 records are invalid\n" in told.stdout
        assert told.returncode == 1
    receipt = json.loads(verified.stdout)
    assert receipt["missing_fields"] == [{"name": "price", "pages": 5, "of": 5}]
    assert (receipt["invalid"], receipt["invalid_reasons"]) == (5, {"price is missing": 5})
    listed = folder.crawler("results", "list", "--limit", "9")
    assert listed.stdout.count("ok, invalid") == 5
    assert "invalid: price is missing" in folder.crawler("scrape", site.page(0), "--stored").stdout
    assert "price is missing" in folder.crawler("why", site.page(0)).stdout
    analysis = folder.crawler("analyze", "data/pending")
    assert "invalid  5 records (price is missing: 5)" in analysis.stdout
