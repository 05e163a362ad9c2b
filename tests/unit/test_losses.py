"""What a repair could not save: told everywhere, until the file is imported again or the loss is
accepted."""

import random
from pathlib import Path

import msgspec
import pytest

from crawler.bulk import import_file
from crawler.config import Settings, load
from crawler.doctor import exit_code
from crawler.errors import InputError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from tests.support.patient import change, ledger, look, pages_of, wipe, wrong
from tests.support.tasks import done

ROWS = 400


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a store in the test's folder."""
    return msgspec.structs.replace(load({}), data_dir=tmp_path / "data")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with rows of every kind: new ones, some that mean the same page, some that mean
    none."""
    path = tmp_path / "parcels.csv"
    lines = [f"http://a.example/{n},p{n}" for n in range(ROWS)]
    lines[50:50] = ["http://a.example/3,p3", "no address at all,x"]
    path.write_text("\n".join(["url,parcel_id", *lines]) + "\n")
    return path


def crawled(
    settings: Settings, file: Path, completed: int = 300, job_name: str | None = None
) -> Job:
    """A job of that file with so many results, closed in order; nothing is left in pending/."""
    _, job = import_file(settings, file, job_name=job_name)
    lpm = LocalPersistenceManager(settings.data_dir)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", completed)))
    lpm.store.durable.execute("UPDATE outbox SET archived_at = 1")
    for path in lpm.pending.iterdir():
        path.unlink()
    lpm.close()
    return job


def stand(settings: Settings) -> tuple[int, int, list[str]]:
    """Tasks, results, and all problems of all jobs."""
    lpm = LocalPersistenceManager(settings.data_dir)
    try:
        books = lpm.counts.totals()
        jobs = lpm.jobs.all()
        return (
            books.accepted,
            books.results,
            [text for job in jobs for text in lpm.receipt(job).problems],
        )
    finally:
        lpm.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_repair_tells_what_it_could_not_save(settings: Settings, file: Path, seed: int) -> None:
    """Pages of a ledger destroyed at random: each lost task is told, and the same file brings all
    of them back."""
    # Given a ledger with three destroyed pages somewhere behind its schema
    crawled(settings, file)
    path, chance = settings.data_dir / "lpm.db", random.Random(seed)
    for number in chance.sample(range(5, path.stat().st_size // 4096), 3):
        wipe(path, number)

    # When it is mended
    mended = look(settings.data_dir, repair=True)

    # Then a loss is wrong for the doctor, and leaves the job unaccounted for
    accepted, _, problems = stand(settings)
    if accepted < ROWS:
        assert exit_code(mended) == 1
        assert problems
        assert any("lost" in finding.detail for finding in wrong(mended)), mended
    assert bool(problems) == bool(wrong(mended))

    # And the same file again brings the rest into the same job, which then is whole
    before = stand(settings)[1]
    summary, job = import_file(settings, file)
    again = stand(settings)
    assert again == (ROWS, before, [])
    assert job.name == "parcels.csv"
    assert summary.accepted == ROWS - accepted
    assert wrong(look(settings.data_dir)) == []
    rows = ledger(
        settings.data_dir, "SELECT url, parcel_id, json_extract(input, '$.parcel_id') FROM tasks"
    )
    assert sorted(rows) == sorted((f"http://a.example/{n}", f"p{n}", f"p{n}") for n in range(ROWS))


@pytest.mark.parametrize("table", ["tasks", "job_links", "rejected_rows"])
def test_each_kind_of_row_has_its_witness(settings: Settings, file: Path, table: str) -> None:
    """Tasks, rows that meant known tasks and rejected rows: a lost page of any of them is told."""
    crawled(settings, file, completed=0)
    wipe(settings.data_dir / "lpm.db", pages_of(settings.data_dir / "lpm.db", table, "leaf")[0])

    mended = look(settings.data_dir, repair=True)

    what = {"tasks": "tasks", "job_links": "known tasks", "rejected_rows": "rejected rows"}[table]
    told = next(
        finding.detail for finding in wrong(mended) if f"{what} were lost" in finding.detail
    )
    assert "no row is left of the lines" in told or table != "tasks"
    assert str(file) in told
    import_file(settings, file)
    assert stand(settings)[2] == []


def test_a_job_whose_row_was_lost_is_found_by_its_file(settings: Settings, file: Path) -> None:
    """`run FILE` goes on with the job that a repair has made again: no second one, nothing fetched
    twice."""
    crawled(settings, file)
    wipe(settings.data_dir / "lpm.db", pages_of(settings.data_dir / "lpm.db", "jobs", "leaf")[0])
    mended = look(settings.data_dir, repair=True)
    moved = file.rename(file.with_name("moved.csv"))  # it is known by its rows, not by its place

    summary, job = import_file(settings, moved)

    assert any("its row was lost" in finding.detail for finding in wrong(mended))
    assert (summary.accepted, summary.known, summary.rejected) == (0, ROWS + 1, 1)
    lpm = LocalPersistenceManager(settings.data_dir)
    assert [each.name for each in lpm.jobs.all()] == [job.name] == ["parcels.csv"]
    assert (lpm.counts.totals().completed, lpm.counts.totals().pending) == (300, ROWS - 300)
    assert lpm.receipt(job).problems == []
    lpm.close()


def test_another_file_is_not_taken_for_that_of_a_lost_job(settings: Settings, file: Path) -> None:
    """A job without a row is only adopted by the file that its tasks came from."""
    crawled(settings, file)
    wipe(settings.data_dir / "lpm.db", pages_of(settings.data_dir / "lpm.db", "jobs", "leaf")[0])
    look(settings.data_dir, repair=True)
    other = file.with_name("other.csv")
    other.write_text("url\n" + "".join(f"http://b.example/{n}\n" for n in range(20)))

    _, job = import_file(settings, other)

    assert job.name == "other.csv"
    assert len(stand(settings)[2]) == 1


def test_a_loss_is_accepted_by_a_command_and_stays_in_the_receipt(
    settings: Settings, file: Path
) -> None:
    """After `job accept` the job is accounted for, and its receipt says what is missing."""
    job = crawled(settings, file)
    change(settings.data_dir, f"DELETE FROM tasks WHERE id > {ROWS - 10}")
    look(settings.data_dir, repair=True)
    lpm = LocalPersistenceManager(settings.data_dir)

    [accepted] = lpm.accept(job)

    assert f"10 of its {ROWS:,} tasks were lost" in accepted
    receipt = lpm.receipt(job)
    assert (receipt.problems, receipt.accepted) == ([], [accepted])
    assert lpm.accept(job) == []
    lpm.close()
    assert wrong(look(settings.data_dir)) == []
    # A later repair does not tell of it again.
    wipe(settings.data_dir / "lpm.db", pages_of(settings.data_dir / "lpm.db", "events", "leaf")[0])
    assert wrong(look(settings.data_dir, repair=True)) == []


def test_a_named_job_is_whole_only_with_as_many_rows_as_it_had(
    settings: Settings, file: Path
) -> None:
    """Another file under the same name does not make up for what was lost."""
    crawled(settings, file, job_name="auction")
    change(settings.data_dir, "DELETE FROM tasks WHERE id <= 20")
    look(settings.data_dir, repair=True)
    other = file.with_name("other.csv")
    other.write_text("url\n" + "".join(f"http://b.example/{n}\n" for n in range(30)))

    import_file(settings, other, job_name="auction")
    assert len(stand(settings)[2]) > 0


def test_an_import_that_was_broken_off_is_unaccounted_for(settings: Settings, file: Path) -> None:
    """Until it is completed, or accepted; while it runs it cannot be."""
    lpm = LocalPersistenceManager(settings.data_dir)
    _, job = import_file(settings, file)
    lpm.store.durable.execute(
        "UPDATE jobs SET status = 'importing'"
    )  # as a kill before the last commit leaves it
    job = lpm.jobs.named(job.name)

    with lpm.importing(job), pytest.raises(UsageError, match="has not ended"):
        lpm.accept(job)
    [problem] = lpm.receipt(job).problems
    assert problem.startswith(f"its import was broken off after {ROWS + 2:,} rows")
    assert lpm.jobs.finalise(lpm.now()) == []
    import_file(settings, file)
    assert lpm.receipt(job).problems == []
    lpm.close()


def write(file: Path, urls: list[str]) -> Path:
    """A TXT file with these URLs."""
    file.write_text("".join(f"{url}\n" for url in urls))
    return file


def collected(settings: Settings) -> None:
    """Collect all that is due."""
    lpm = LocalPersistenceManager(settings.data_dir)
    while tasks := lpm.get_next_pending("owner", 500):
        lpm.save_result(*(done(task) for task in tasks))
    lpm.jobs.finalise(lpm.now())
    lpm.close()


def test_the_number_of_a_lost_task_is_nobody_elses(settings: Settings, tmp_path: Path) -> None:
    """Rows of another job that meant a lost task are told as lost, and never mean the next task of
    its number."""
    # Given a job whose rows all mean another job's tasks, of which the last are lost
    shared = [f"http://a.example/{n}" for n in range(ROWS)]
    again = [*shared, shared[0]]
    first, second = write(tmp_path / "first.txt", shared), write(tmp_path / "second.txt", again)
    import_file(settings, first)
    import_file(settings, second)
    for number in pages_of(settings.data_dir / "lpm.db", "tasks", "leaf")[-2:]:
        wipe(settings.data_dir / "lpm.db", number)
    mended = look(settings.data_dir, repair=True)

    # Then both jobs are told
    told = [finding.detail for finding in wrong(mended)]
    assert any(text.startswith("job first.txt: ") and "tasks were lost" in text for text in told), (
        told
    )
    assert any(
        text.startswith("job second.txt: ") and "known tasks were lost" in text for text in told
    ), told

    # And when others come first, and both files are read again, every row has its own page
    import_file(
        settings, write(tmp_path / "other.txt", [f"http://c.example/{n}" for n in range(50)])
    )
    import_file(settings, second)
    import_file(settings, first)
    collected(settings)
    lpm = LocalPersistenceManager(settings.data_dir)
    for name, rows in (("first.txt", shared), ("second.txt", again)):
        job = lpm.jobs.named(name)
        assert lpm.receipt(job).problems == []
        assert [row["url"] for row in lpm.results.input_rows(job)] == rows
    lpm.close()


def test_a_job_of_known_rows_only_is_found_again(settings: Settings, tmp_path: Path) -> None:
    """A job that has no task of its own does not vanish with its row, and reading its file again
    fetches nothing."""
    shared = [f"http://a.example/{n}" for n in range(50)]
    first, second = (
        write(tmp_path / "first.txt", shared),
        write(tmp_path / "second.txt", [*shared, "no address"]),
    )
    import_file(settings, first)
    import_file(settings, second)
    collected(settings)
    wipe(settings.data_dir / "lpm.db", pages_of(settings.data_dir / "lpm.db", "jobs", "leaf")[0])
    mended = look(settings.data_dir, repair=True)
    assert sorted(finding.detail.partition(":")[0] for finding in wrong(mended)) == [
        "job first.txt",
        "job second.txt",
    ]

    for file in (first, second):
        assert import_file(settings, file)[0].accepted == 0
    assert stand(settings) == (50, 50, [])


def test_lost_links_are_made_again_without_fetching_anything(
    settings: Settings, tmp_path: Path
) -> None:
    """Rows that meant tasks which are completed by now mean them again."""
    shared = [f"http://a.example/{n}" for n in range(200)]
    second = write(tmp_path / "second.txt", [*shared, shared[0]])
    import_file(settings, write(tmp_path / "first.txt", shared))
    import_file(settings, second)
    collected(settings)
    change(settings.data_dir, "DELETE FROM job_links")
    assert len(wrong(look(settings.data_dir, repair=True))) == 1

    assert import_file(settings, second)[0].accepted == 0
    assert stand(settings) == (200, 200, [])


@pytest.mark.parametrize("kind", ["shorter", "other"])
def test_only_the_same_files_make_up_for_a_loss(settings: Settings, file: Path, kind: str) -> None:
    """A shorter file, or other rows under the same name and at the same place, bring nothing
    back."""
    named = "auction" if kind == "other" else None
    crawled(settings, file, job_name=named)
    change(settings.data_dir, "DELETE FROM tasks WHERE id <= 20")
    change(
        settings.data_dir,
        "DELETE FROM jobs" if kind == "shorter" else "DELETE FROM results WHERE task <= 20",
    )
    look(settings.data_dir, repair=True)
    lines = file.read_text().splitlines()
    others = [f"http://b.example/{n},q{n}" for n in range(60)]
    file.write_text("\n".join(lines[:200] if kind == "shorter" else [lines[0], *others]) + "\n")

    import_file(settings, file, job_name=named)

    lpm = LocalPersistenceManager(settings.data_dir)
    [job] = [job for job in lpm.jobs.all() if job.name == (named or "parcels.csv")]
    assert lpm.receipt(job).problems != []
    lpm.close()


def test_one_file_of_several_that_was_broken_off_is_not_forgotten(
    settings: Settings, tmp_path: Path
) -> None:
    """The end of another file's import does not close a job of which a file is not all in."""
    first = write(tmp_path / "first.txt", ["http://a.example/1"])
    second = write(tmp_path / "second.txt", ["http://a.example/2"])
    lpm = LocalPersistenceManager(settings.data_dir)
    import_file(settings, first, job_name="auction")
    lpm.store.durable.execute(
        "UPDATE imports SET ended_at = NULL"
    )  # as a kill before the last commit leaves it
    lpm.store.durable.execute("UPDATE jobs SET status = 'importing'")

    import_file(settings, second, job_name="auction")

    job = lpm.jobs.named("auction")
    [problem] = lpm.receipt(job).problems
    assert problem.startswith("its import of first.txt was broken off")
    assert f"bulk import {first} --job auction" in problem
    import_file(settings, first, job_name="auction")
    assert lpm.receipt(job).problems == []
    lpm.close()


def test_a_file_that_changes_while_it_is_read(settings: Settings, tmp_path: Path) -> None:
    """What was read is not the file that the job is known by: its import has not ended, until it is
    accepted."""
    file = write(tmp_path / "grows.txt", [f"http://a.example/{n}" for n in range(6000)])

    def change_it(line: str) -> None:
        write(file, ["http://a.example/1"])

    with pytest.raises(
        InputError, match=r"changed while it was read; import it again, .* job accept grows\.txt"
    ):
        import_file(settings, file, progress=change_it)
    assert len(stand(settings)[2]) == 1
    _, again = import_file(settings, file)
    lpm = LocalPersistenceManager(settings.data_dir)
    first = lpm.jobs.named("grows.txt")
    lpm.accept(first)
    problems = [lpm.receipt(lpm.jobs.named(name)).problems for name in (first.name, again.name)]
    lpm.close()
    assert problems == [[], []]


def test_a_repair_tells_that_a_pause_may_be_lost(settings: Settings, file: Path) -> None:
    """Nothing proves that a job whose row was lost was paused: that its pages are due again is
    told."""
    job = crawled(settings, file)
    lpm = LocalPersistenceManager(settings.data_dir)
    lpm.jobs.hold(job, "paused", lpm.now())
    lpm.close()
    wipe(settings.data_dir / "lpm.db", pages_of(settings.data_dir / "lpm.db", "jobs", "leaf")[0])

    mended = look(settings.data_dir, repair=True)

    assert any(
        "100 tasks due again, because nothing holds them" in finding.detail for finding in mended
    )
    assert any(
        "how many tasks it had and whether it was paused" in finding.detail
        for finding in wrong(mended)
    )


def test_lost_rows_are_told_although_lost_pages_are_not_accepted_yet(
    settings: Settings, file: Path
) -> None:
    """One loss of a job does not hide the next one."""
    job = crawled(settings, file)
    change(
        settings.data_dir,
        f"INSERT INTO losses (job_id, at, kind, what) VALUES ({job.id}, 1, 'pages', 'a page')",
    )
    change(settings.data_dir, f"DELETE FROM tasks WHERE id > {ROWS - 10}")

    look(settings.data_dir, repair=True)

    assert any(f"10 of its {ROWS:,} tasks were lost" in problem for problem in stand(settings)[2])
