"""The progress of one and of several jobs: bars and tables on a terminal, lines elsewhere."""

import io
import re

import pytest
from rich.console import Console

from crawler.cli.progress import MAX_SHOWN, CrawlProgress, JobProgress
from crawler.models import CrawlOptions, Job, JobOptions, JobStatus, TaskCounts
from tests.support.clock import Clock


def crawl_of(site: str) -> Job:
    """The job of a site."""
    crawl = CrawlOptions(starts=(site,), hosts=(f"{site}.example",), site=site)
    return Job(id=1, name=f"{site}-2026-11-17", status=JobStatus.OPEN, queue="default",
               source_file=None, created_at=0, completed_at=None,
               options=JobOptions(crawl=crawl))  # fmt: skip


def books(found: int, fetched: int, failed: int = 0) -> TaskCounts:
    """The counts of a crawl of which the rest is pending."""
    pending = found - fetched - failed
    return TaskCounts(accepted=found, pending=pending, completed=fetched, failed=failed)


class Screen:
    """A terminal of some columns and 24 lines."""

    def __init__(self, columns: int) -> None:
        self._file = io.StringIO()
        self.console = Console(file=self._file, force_terminal=True, width=columns, height=24)

    def drawn(self) -> list[str]:
        """The lines that were drawn since the last call, without colours."""
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._file.getvalue())
        self._file.seek(0)
        self._file.truncate()
        return [line.rstrip() for line in text.splitlines() if line.strip()]


def several(progress: CrawlProgress, sites: int) -> list[JobProgress]:
    """The crawls of so many sites, none of which has begun to fetch."""
    jobs = [progress.add(f"site{n}", crawl_of(f"site{n}")) for n in range(sites)]
    for job in jobs:
        job.update(books(1, 0))
    return jobs


# Lines


def test_each_site_that_changed_has_a_line_and_all_have_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A site without news is not repeated; the last line adds up all of them, and promises no end
    while sites have not begun."""
    clock = Clock(0.0)
    progress = CrawlProgress(every_s=0.0, clock=clock)
    first, second, _ = several(progress, 3)
    progress.show(waiting=2)
    capfd.readouterr()

    clock.now = 10.0
    first.update(books(30, 20, failed=1))
    second.update(books(5, 5), is_done=True)
    progress.show(waiting=2)

    assert capfd.readouterr().err.splitlines() == [
        "site1: 5 found, 5 fetched, 0 failed, done",
        "site0: 30 found, 20 fetched, 1 failed, 2/s, about 4 s left",
        "all 5 sites: 1 done, 1 under way, 3 waiting: 36 found, 25 fetched, 1 failed, 3/s",
    ]


def test_of_many_sites_some_have_a_line_and_no_end_is_left_out(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A thousand sites that change together print a page, not a thousand lines; those that end
    are told one after the other."""
    clock = Clock(0.0)
    progress = CrawlProgress(every_s=0.0, clock=clock)
    jobs = several(progress, 1000)
    progress.show()
    for job in jobs[:20]:
        job.update(books(2, 2), is_done=True)
    capfd.readouterr()

    told = list[list[str]]()
    for _ in range(2):
        progress.show()
        told.append(capfd.readouterr().err.splitlines())

    assert all(len(lines) == MAX_SHOWN + 1 for lines in told)
    ends = [line.partition(":")[0] for lines in told for line in lines if "done" in line]
    assert [name for name in ends if "all" not in name] == [f"site{n}" for n in range(20)]
    assert told[0][-1].startswith("all 1,000 sites: 20 done, 980 waiting: ")


def test_what_several_sites_wait_for_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """A trouble of the machine is one warning, with the names of the first sites."""
    progress = CrawlProgress(clock=Clock(0.0))
    jobs = several(progress, 5)
    for reason in ("Redis does not answer; it is started again", "", None):
        for job in jobs:
            job.update(books(1, 0), reason)
        progress.show()

    assert capfd.readouterr().err.splitlines() == [
        "site0, site1, site2 and 2 more: warning: Redis does not answer; it is started again",
        "site0, site1, site2 and 2 more: resolved: Redis does not answer",
    ]


def test_a_site_of_which_nobody_asks_keeps_its_trouble(capfd: pytest.CaptureFixture[str]) -> None:
    """A site that is shown no more is not called resolved."""
    progress = CrawlProgress(clock=Clock(0.0))
    [job] = several(progress, 1)
    for reason in ("the domain is shut", None, "the domain is shut"):
        job.update(books(1, 0), reason)
        progress.show()

    assert capfd.readouterr().err.splitlines() == ["site0: warning: the domain is shut"]


def test_a_table_is_readable_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """With `table`, each round prints all columns, one line for each site and one for all."""
    clock = Clock(0.0)
    progress = CrawlProgress(every_s=0.0, clock=clock, table=True)
    first, second = several(progress, 2)
    progress.show()
    capfd.readouterr()
    clock.now = 10.0
    first.update(books(1200, 1100, failed=3))
    first.listings = 1000
    second.update(books(5, 5), is_done=True)

    progress.show()

    lines = [line.split() for line in capfd.readouterr().err.splitlines()]
    assert lines[0] == ["site", "found", "fetched", "listings", "failed", "rate", "state"]
    assert lines[1][:6] == ["site0", "1,200", "1,100", "1,000", "3", "110.3/s"]
    assert lines[2] == ["site1", "5", "5", "0", "0", "done"]
    assert " ".join(lines[3]) == "all 2 sites 1,205 1,105 1,000 3 110.8/s 1 done, 1 under way"


# On a terminal


@pytest.mark.parametrize("columns", [80, 120])
def test_each_site_has_a_bar_on_one_line(columns: int) -> None:
    """Figures fit into 80 columns; a long reason is cut there, and its beginning is on the line."""
    clock, screen = Clock(0.0), Screen(columns)
    with CrawlProgress(clock=clock, terminal=screen.console) as progress:
        first, second, third = several(progress, 3)
        progress.show()
        clock.now = 10.0
        first.update(books(12_345, 10_000, failed=13))
        second.update(books(5, 5), is_done=True)
        third.update(books(40, 10), "third.example: its server said Retry-After, 30 tasks wait")
        screen.drawn()
        progress.show(waiting=1)
        lines = screen.drawn()

    assert lines[0].startswith("site2: warning: third.example: its server said Retry-After")
    del lines[:-4]  # the warning stands above the picture, which is drawn again below it
    assert lines[0].startswith("site0  ━━━━━━━━")
    assert "12,345 found, 10,000 fetched, 13 failed, 1001/s, about" in lines[0]
    assert lines[1].endswith("5 found, 5 fetched, 0 failed, done")
    assert "40 found, 10 fetched, 0 failed, 1/s, third.example" in lines[2]
    assert lines[2].endswith("30 tasks wait" if columns == 120 else "…")
    assert lines[3] == "… and 1 more site: 1 waiting"
    assert max(map(len, lines)) <= columns


def test_long_names_stay_apart() -> None:
    """Those that differ at the end only are cut in the middle."""
    screen = Screen(80)
    with CrawlProgress(clock=Clock(0.0), terminal=screen.console) as progress:
        for day in (17, 18):
            progress.add(f"municipality-2026-11-{day}", None).update(books(2, 1))
        screen.drawn()
        progress.show()
        names = [line.split()[0] for line in screen.drawn()]

    assert names == ["municipali…026-11-17", "municipali…026-11-18"]


def test_of_many_sites_those_under_way_have_a_bar() -> None:
    """At most 15, each as long as it is under way; the others are counted."""
    screen = Screen(80)
    with CrawlProgress(clock=Clock(0.0), terminal=screen.console) as progress:
        jobs = several(progress, 1000)
        for job in jobs[:12]:
            job.update(books(2, 2), is_done=True)
        for job in jobs[20:60]:
            job.update(books(9, 1))
        screen.drawn()
        progress.show()
        before = screen.drawn()
        for job in (jobs[15], jobs[16]):
            job.update(books(9, 1))
        jobs[20].update(books(9, 9), is_done=True)
        progress.show()
        after = screen.drawn()

    names = [line.split()[0] for line in before]
    assert names == [*(f"site{n}" for n in range(20, 35)), "…"]
    assert before[-1] == "… and 985 more sites: 12 done, 25 under way, 948 waiting"
    names = [line.split()[0] for line in after]
    assert names == ["site15", *(f"site{n}" for n in range(21, 35)), "…"]


def test_a_bar_never_exceeds_all() -> None:
    """While links are found, more is done of more: the bar is full when nothing is open."""
    screen = Screen(80)
    with CrawlProgress(clock=Clock(0.0), terminal=screen.console) as progress:
        job = progress.add("county", crawl_of("county"))
        for found, fetched in ((0, 0), (1, 1), (30, 1), (30, 29), (30, 30)):
            job.update(books(found, fetched), is_done=found == fetched == 30)
            screen.drawn()
            progress.show()
            assert job.done <= job.books.accepted
        assert screen.drawn() == [f"county  {'━' * 20}  30 found, 30 fetched, 0 failed, done"]
