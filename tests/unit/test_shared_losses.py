"""What is missing of results that several jobs share: each job tells it, and accepts it for itself
alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.errors import StoreError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from crawler.results import export
from crawler.results.bundle import bundle, unbundle
from tests.support.patient import change, ledger, look, of, wrong
from tests.support.tasks import done, new, open_job, page

PAGES = 20
PLACES = "SELECT task, raw_segment, raw_offset, raw_length FROM results ORDER BY 1"


class Shared:
    """A store with two jobs: the second one has all pages of the first, and one of its own."""

    def __init__(self, data: Path) -> None:
        self.data, self.lpm = data, LocalPersistenceManager(data)
        self.first = self.job("first", PAGES)
        self.second = self.job("second", PAGES + 1)
        self.collect()

    def job(self, name: str, count: int) -> Job:
        """A job of the first so many pages."""
        job = open_job(self.lpm, name)
        self.lpm.persist_tasks(
            [new(f"http://a.example/{n}", line=n + 1) for n in range(count)], job=job
        )
        self.lpm.imports.close(job, self.lpm.now())
        return job

    def collect(self) -> None:
        """Collect all that is due."""
        tasks = self.lpm.get_next_pending("owner", 100)
        self.lpm.save_result(
            *(done(task, page=page(task.url, task.url.encode() * 9)) for task in tasks)
        )
        self.lpm.jobs.finalise(self.lpm.now())

    def problems(self) -> list[list[str]]:
        """What the receipts of both jobs say."""
        return [self.lpm.verify(job).problems for job in (self.first, self.second)]

    def unmount(self) -> None:
        """Let the disk of raw/ be gone for a while."""
        self.lpm.close()
        self.lpm.raw.rename(self.data / "away")
        self.lpm.raw.mkdir()

    def mount(self) -> None:
        """Bring it back."""
        self.lpm.close()
        self.lpm.raw.rmdir()
        (self.data / "away").rename(self.lpm.raw)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    """Two jobs, collected."""
    shared = Shared(tmp_path / "data")
    assert shared.problems() == [[], []]
    yield shared
    shared.lpm.close()


def test_a_job_accepts_missing_pages_for_itself_alone(shared: Shared) -> None:
    """The receipt of another job says the same before and after, and with the pages all is there
    again."""
    # Given two jobs that miss the same pages
    places = ledger(shared.data, PLACES)
    shared.unmount()
    missed, also = shared.problems()
    assert f"with {PAGES:,} pages of its results, is missing" in missed[0]
    assert f"with {PAGES + 1:,} pages of its results, is missing" in also[0]

    # When one of them does without
    [accepted] = shared.lpm.accept(shared.second)

    # Then it is accounted for, and the other one is not
    assert f"with {PAGES + 1:,} pages" in accepted
    assert shared.problems() == [missed, []]
    assert shared.lpm.verify(shared.second).accepted == [accepted]
    assert any(
        f"with {PAGES:,} pages of the results" in what for what in shared.lpm.pages.missing()
    )
    assert of(look(shared.data), "segments", "wrong")
    # And what comes back is found again
    shared.mount()
    assert shared.problems() == [[], []]
    assert ledger(shared.data, PLACES) == places
    assert wrong(look(shared.data)) == []


def test_when_all_jobs_have_accepted_it_nobody_is_told(shared: Shared) -> None:
    """Neither the doctor nor `resume` asks for pages that every job does without."""
    shared.unmount()

    for job in (shared.first, shared.second):
        assert shared.lpm.accept(job)

    assert shared.problems() == [[], []]
    assert shared.lpm.pages.missing() == []
    assert wrong(look(shared.data)) == []


def test_pages_that_come_later_are_not_accepted_with_earlier_ones(shared: Shared) -> None:
    """What was accepted are the pages that were missing then, not the segment."""
    shared.unmount()
    shared.lpm.accept(shared.second)
    shared.mount()
    shared.lpm.persist_tasks([new("http://a.example/later", line=99)], job=shared.second)
    shared.collect()
    assert len({row[1] for row in ledger(shared.data, PLACES)}) == 1

    shared.unmount()

    assert ["with 1 pages of its results, is missing" in what for what in shared.problems()[1]] == [
        True
    ]


def test_a_job_hands_over_without_the_pages_that_it_does_without(
    shared: Shared, tmp_path: Path
) -> None:
    """An export of its own goes on without them; one of a job that wants them breaks off."""
    shared.unmount()
    shared.lpm.accept(shared.second)
    said: list[str] = []

    export(shared.lpm, tmp_path / "second.warc.gz", "warc", job=shared.second, say=said.append)
    done = export(
        shared.lpm, tmp_path / "second.jsonl", "jsonl", job=shared.second, pages=tmp_path / "pages"
    )
    carried = bundle(
        shared.lpm, tmp_path / "second.tar.zst", job=shared.second, since=None, raw=True
    )

    assert said == [f"{PAGES + 1} results have no stored page, and are not in the file"]
    assert (done.results, done.pages) == (PAGES + 1, 0)
    assert (carried.results, carried.pages, carried.unreadable) == (PAGES + 1, 0, 0)
    with pytest.raises(StoreError, match="cannot be read"):
        export(shared.lpm, tmp_path / "first.warc.gz", "warc", job=shared.first)


@pytest.mark.parametrize("accepted", [False, True])
def test_a_bundle_brings_missing_pages_back(shared: Shared, tmp_path: Path, accepted: bool) -> None:
    """Pages whose segment is gone are taken from a bundle, accepted or not."""
    bundle(shared.lpm, tmp_path / "all.tar.zst", job=None, since=None, raw=True)
    shared.unmount()
    if accepted:
        shared.lpm.accept(shared.second)

    brought = unbundle(shared.lpm, tmp_path / "all.tar.zst", 1 << 20)

    assert brought.added_pages == PAGES + 1
    assert shared.problems() == [[], []]
    assert shared.lpm.pages.missing() == []


def test_a_page_that_a_repair_gives_up_is_a_loss_of_every_job_that_shares_it(
    shared: Shared,
) -> None:
    """A damaged page is told by the job that has its task, and by the job of a later row for it."""
    for task, segment, offset, length in ledger(shared.data, PLACES)[:5]:
        assert isinstance(offset, int)
        assert isinstance(length, int)
        path = shared.lpm.raw / str(segment)
        content = bytearray(path.read_bytes())
        content[offset + length // 2] ^= 0xFF
        path.write_bytes(content)
        assert task
    shared.lpm.close()

    look(shared.data, repair=True)

    for problems in shared.problems():
        assert ["the stored pages of 5 of its results were lost" in what for what in problems] == [
            True
        ]


def test_a_repair_tells_a_job_nothing_that_it_has_accepted(shared: Shared) -> None:
    """A segment that was cut short is accepted by one job; its repair is a loss of the other one
    alone."""
    [path] = shared.lpm.raw.iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    shared.lpm.accept(shared.second)
    assert shared.problems()[1] == []
    shared.lpm.close()

    look(shared.data, repair=True)

    first, second = shared.problems()
    assert second == []
    assert ["of its results were lost" in what for what in first] == [True]


def test_a_row_that_means_a_task_that_is_gone_is_told(shared: Shared) -> None:
    """The receipt of the job that shares a lost task counts it, as that of its own job does."""
    change(shared.data, "DELETE FROM tasks WHERE id <= 5")

    first, second = shared.problems()

    assert any(what.startswith("5 tasks more or fewer") for what in first)
    assert any(what.startswith("5 known rows whose tasks are gone") for what in second)
    assert any(
        "5 rows of input that refer to missing tasks" in what
        for what in of(look(shared.data), "books")
    )


def test_rows_that_are_gone_without_a_word_are_not_accepted_with_pages(shared: Shared) -> None:
    """Accepting what is named does not accept what nobody has named."""
    change(shared.data, f"DELETE FROM tasks WHERE id = {PAGES + 1}")
    shared.unmount()

    accepted = shared.lpm.accept(shared.second)

    assert ["pages of its results" in what for what in accepted] == [True]
    assert any(what.startswith("1 tasks more or fewer") for what in shared.problems()[1])


@pytest.mark.parametrize("rows_too", [False, True])
def test_every_reason_is_named_and_accepted_by_name(shared: Shared, rows_too: bool) -> None:
    """A lost page, or a lost row, does not hide that the import was broken off."""
    # Given a job whose import was broken off, of which a repair has lost something
    noted = f"VALUES ({shared.first.id}, 'first', 'checksum', 'first.csv')"
    change(shared.data, f"INSERT INTO imports (job_id, key, checksum, file) {noted}")
    change(
        shared.data,
        f"UPDATE jobs SET status = 'importing', completed_at = NULL WHERE id = {shared.first.id}",
    )
    change(
        shared.data,
        f"INSERT INTO losses (job_id, at, kind, what) VALUES ({shared.first.id}, 1, 'pages', 'its "
        "pages were lost')",
    )
    if rows_too:
        change(shared.data, "DELETE FROM results WHERE task = 1")
        change(shared.data, "DELETE FROM tasks WHERE id = 1")
        (file,) = (
            p
            for p in (shared.data / "pending").iterdir()
            if '"url":"http://a.example/0"' in p.read_text()
        )
        file.unlink()
    shared.lpm.close()
    look(shared.data, repair=True)

    # When that is told, and accepted
    told = shared.problems()[0]
    accepted = shared.lpm.accept(shared.first)

    # Then each reason has its line, in both
    reasons = [
        "import was broken off" if not rows_too else "its import had been broken off before",
        "its pages were",
    ]
    reasons += [f"1 of its {PAGES} tasks were lost"] if rows_too else []
    for reason in reasons:
        assert sum(reason in what for what in told) == 1, told
        assert sum(reason in what for what in accepted) == 1, accepted
    assert len(accepted) == len(reasons)
    assert shared.problems()[0] == []
    assert shared.lpm.verify(shared.first).accepted == accepted or rows_too


def test_the_rest_of_a_broken_import_is_accepted_alone(shared: Shared) -> None:
    """Who wants no more of a file accepts no lost page by that."""
    change(
        shared.data,
        f"UPDATE jobs SET status = 'importing', completed_at = NULL WHERE id = {shared.first.id}",
    )
    shared.unmount()

    [accepted] = shared.lpm.accept_import(shared.first)

    assert accepted.startswith("its import was broken off")
    [left] = shared.problems()[0]
    assert f"with {PAGES:,} pages of its results, is missing" in left
    assert shared.lpm.accept_import(shared.first) == []
