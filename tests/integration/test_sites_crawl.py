"""`sites crawl`: many sites by name, at once or one after the other, and what is killed goes on."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from crawler import crawls, sites, urls
from crawler.cli.commands.sites_crawl import _print_table
from crawler.db.site_jobs import SiteCall
from crawler.examples.county import PASSWORD, USER, County
from crawler.examples.imoti import Imoti
from crawler.examples.library import Library
from crawler.examples.server import Running
from crawler.models import Job
from tests.support.pages import Answer, Pages, parcel
from tests.support.stack import Folder, left_behind, wait_for
from tests.support.terminal import Terminal

SIZE = 80
EXAMPLES = Path(__file__).parents[2] / "examples" / "sites"
LIBRARY = """hosts: [library.localhost]
rate: none
start: ["http://library.localhost:8090/books"]
follow: [{css: .book a, role: listing}]
pagination: [{next: a.next}]
pages: [{regex: '/book/[0-9]+$', role: listing, required: [title], fields: {title: h1}}]
"""
NAMES = ["library", "imoti", "county"]


@pytest.fixture
def examples() -> Iterator[Running]:
    """The example sites; they take a moment for each page, so that a kill comes in between."""
    given = ("--port", 0, "--size", SIZE, "--latency-ms", 20)
    with Running("crawler.examples", *given) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, examples: Running) -> Iterator[Folder]:
    """A folder with the files of the example sites, and secrets where the county's file says."""
    config = tmp_path / "config" / "sites"
    config.mkdir(parents=True)
    texts = {name: (EXAMPLES / f"{name}.yaml").read_text() for name in ("imoti", "county")}
    texts["county"] = texts["county"].replace("login:\n", "login:\n  secrets: county.txt\n")
    for name, text in (texts | {"library": LIBRARY}).items():
        (config / f"{name}.yaml").write_text(text.replace(":8090/", f":{examples.port}/"))
    (tmp_path / "config" / "county.txt").write_text(f"user={USER}\npassword={PASSWORD}\n")
    folder = Folder(tmp_path, CRAWLER_PAGES="8", CRAWLER_CONFIG_DIR=str(tmp_path / "config"))
    yield folder
    folder.stop()


def expected(examples: Running) -> Counter[bytes]:
    """Every listing that can be found without rows, once."""
    county, imoti, library = County(SIZE), Imoti(SIZE), Library()
    found = [
        each.url for each in county.listings(examples.url(county.host)) if each.way != "search"
    ]
    found += [each.url for each in imoti.listings(examples.url(imoti.host))]
    found += [each.url for each in library.books(examples.url(library.host))]
    return Counter(urls.parse(url).key for url in found)


def collected(folder: Folder) -> Counter[bytes]:
    """How often each listing was collected."""
    listings = (each["url"] for each in folder.results() if each["role"] == "listing")
    return Counter(urls.parse(url).key for url in listings)


def jobs_of(folder: Folder) -> list[Job]:
    """All jobs, the oldest first."""
    with folder.lpm() as lpm:
        return lpm.jobs.all()


def ends_of(folder: Folder) -> dict[str, tuple[float, float]]:
    """When each job began, and when its last task ended."""
    with folder.lpm() as lpm:
        return {job.name: (job.created_at, lpm.jobs.ended_at(job) or 0) for job in lpm.jobs.all()}


def has_asked(examples: Running, count: int) -> bool:
    """Whether more pages than so many were asked for."""
    return len(examples.requests()) > count


def kill_all(process: subprocess.Popen[str]) -> None:
    """kill -9 a command with all its processes."""
    parent = psutil.Process(process.pid)
    for each in [parent, *parent.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def today() -> str:
    """The date in names of jobs."""
    return f"{datetime.now().astimezone():%Y-%m-%d}"


# Both modes


@pytest.mark.parametrize(
    ("options", "env", "is_parallel"),
    [
        (["--parallel"], {}, True),
        (["--sequential"], {"PARALLEL_SCRAPING": "true"}, False),
        ([], {"PARALLEL_SCRAPING": "true"}, True),
        ([], {}, False),
    ],
)
def test_every_listing_of_all_sites_comes_once(
    folder: Folder, examples: Running, options: list[str], env: dict[str, str], is_parallel: bool
) -> None:
    """Each site is a job of this day. PARALLEL_SCRAPING decides where no option does."""
    folder.env |= env

    done = folder.crawler("sites", "crawl", *options, "--workers", "2", "--json")

    assert done.returncode == 0, done.stderr
    assert collected(folder) == expected(examples)
    ends = ends_of(folder)
    assert sorted(ends) == [f"{site}-{today()}" for site in sorted(NAMES)]
    began = [begin for begin, _ in ends.values()]
    ended = [end for _, end in ends.values()]
    assert (max(began) < min(ended)) == is_parallel
    if not is_parallel:
        assert all(end <= begin for end, begin in zip(ended, began[1:], strict=False))
    facts = json.loads(done.stdout)
    assert list(facts["sites"]) == sorted(NAMES)
    assert facts["sites"]["library"]["listings"] == 60
    assert facts["sites"]["imoti"]["job"] == f"imoti-{today()}"
    assert facts["totals"]["listings"] == sum(expected(examples).values())
    assert facts["totals"]["fetched"] == folder.books().completed
    assert f"library: begins the crawl library-{today()}, with 1 start" in done.stderr
    assert "county: the form at" in done.stderr
    assert left_behind(folder) == []


def test_the_summary_has_a_line_for_each_site(folder: Folder) -> None:
    """With figures below each other and their sum; --limit holds for each site, and is named; a
    command after the report is a new crawl."""
    first = folder.crawler("sites", "crawl", "library", "imoti", "--limit", "12", "--workers", "1")
    # Without a limit: which twelve pages come first is a matter of chance.
    second = folder.crawler("sites", "crawl", "imoti", "--workers", "1", "--watch")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    head, library, imoti, total, *guards, place = first.stdout.splitlines()
    assert head.split() == ["site", "found", "fetched", "listings", "failed", "seconds", "job"]
    assert library.split()[-1] == f"library-{today()}"
    assert library.split()[:2] == ["library", "12"]
    assert imoti.split()[0] == "imoti"
    assert total.split()[0] == "total"
    columns = zip(library.split()[1:5], imoti.split()[1:5], total.split()[1:5], strict=True)
    assert all(int(a) + int(b) == int(c) for a, b, c in columns)
    changes, name, guard, *_ = guards
    assert changes.startswith("imoti, listings: ")
    assert changes.endswith(" new")
    assert name == f"library, job library-{today()}:"
    assert guard.startswith("  guard limit: ")
    assert place == f"results in {folder.data}/pending/"
    assert [job.name for job in jobs_of(folder)] == [
        f"library-{today()}",
        f"imoti-{today()}",
        f"imoti-{today()}-2",
    ]
    for job in jobs_of(folder)[:2]:
        with folder.lpm() as lpm:
            crawled = lpm.receipt(job).crawl
        assert crawled is not None
        assert crawled.pages <= 12
    assert "total" not in second.stdout
    figures = dict(zip(*(line.split() for line in second.stdout.splitlines()[:2]), strict=True))
    assert figures["unchanged"] == changes.split()[2]
    assert "site   found  fetched  listings  failed" in second.stderr


@pytest.mark.parametrize("name", ["library", "municipality-of-springfield"])
def test_the_summary_fits_into_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the columns that only some crawls have: jobs come below the figures, uncut."""
    figures = ("found", "fetched", "listings", "failed", "invalid", "unchanged", "seconds")
    jobs = [f"{each}-2026-11-18-2" for each in ("imoti", name)]
    rows = [("site", *figures, "job"), ("imoti", *["1,234"] * 7, jobs[0])]
    rows += [(name, *["0"] * 7, jobs[1]), ("total", *["1,234"] * 7, "")]

    _print_table(rows, 80)
    narrow = capsys.readouterr().out.splitlines()
    _print_table(rows, 200)
    wide = capsys.readouterr().out.splitlines()

    assert max(map(len, narrow)) <= 80
    assert narrow[0].split() == ["site", *figures]
    assert [line.split()[0][:5] for line in narrow[1:4]] == ["imoti", name[:5], "total"]
    assert narrow[4:] == [f"imoti, job {jobs[0]}", f"{name}, job {jobs[1]}"]
    assert [line.split()[-1] for line in wide] == ["job", *jobs, "1,234"]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_terminal_shows_a_bar_for_each_site(folder: Folder, columns: str) -> None:
    """The summary follows on the same screen."""
    folder.env["COLUMNS"] = columns
    terminal = Terminal(
        folder, "crawler", "sites", "crawl", "library", "imoti", "--parallel", "--workers", "2"
    )

    assert terminal.process.wait(120) == 0, terminal.text
    wait_for(lambda: "results in" in terminal.text, 10, "the summary")
    assert "library  \x1b[" in terminal.text
    assert "63 found, 63 fetched, 0 failed, done" in terminal.text
    assert "site     found  fetched  listings" in terminal.text
    terminal.close()


# Exit codes


def test_failures_of_a_site_are_told_with_the_command_that_lists_them(
    folder: Folder, pages: Pages
) -> None:
    """One bad page of one site makes the exit code 1; what does not add up makes it 5."""
    pages.answers["/"] = Answer(parcel(0) + '<a href="/page/1">1</a> <a href="/gone">2</a>')
    pages.answers["/page/1"] = Answer(parcel(1))
    file = folder.path / "config" / "sites" / "here.yaml"
    file.write_text(f"start: [{pages.url}/]\nrate: none\n")

    bad = folder.crawler("sites", "crawl", "here", "library", "--parallel", "--workers", "1")
    begun = begin(folder, "here")
    with folder.lpm() as lpm:
        lpm.store.durable.execute("UPDATE jobs SET size = size + 1 WHERE id = ?", (begun.job.id,))
    lost = folder.crawler("sites", "crawl", "here", "library", "--workers", "1", "--json")

    assert bad.returncode == 1, bad.stderr
    told = bad.stdout.partition(f"here, job here-{today()}:\n")[2].splitlines()
    assert told[0] == "  1 failed: http_404"
    assert told[1] == f"    {pages.url}/gone: the server answered 404 Not Found"
    assert told[2].endswith(f"tasks list --status failed --job here-{today()}")
    assert "library, job" not in bad.stdout
    assert lost.returncode == 5
    assert "tasks more or fewer" in json.loads(lost.stdout)["sites"]["here"]["problems"][0]


def begin(folder: Folder, site: str) -> crawls.Begun:
    """Begin the crawl of a site as `crawl SITE` does."""
    settings = folder.settings
    known = sites.load(settings.config_dir, settings.rate)
    return crawls.begin(settings, crawls.plan_site(known, site))


BROKEN = {
    "an unknown site": (["imotti"], "", "there is no site 'imotti'; did you mean imoti?"),
    "two unknown sites": (
        ["nosuch", "county", "imotti"],
        "",
        "there are no sites 'nosuch', 'imotti' (did you mean imoti?); known are: county,",
    ),
    "a site without starts": (["other"], "hosts: [o.example]", "other names neither start"),
    "a broken file": ([], "hosts: [o.example]\nrat: 1/s", "other.yaml, line 2"),
    "secrets that are not there": (
        [],
        "start: ['http://o.example/']\nlogin: {url: 'http://o.example/in', secrets: no.txt, "
        "form: {values: {p: $p}}}",
        "no.txt",
    ),
    "a form that needs rows": (
        ["imoti", "other"],
        "start: [{url: 'http://o.example/s', form: {values: {q: '{parcel_id}'}}}]",
        "other: the form at http://o.example/s is left out; it needs the columns parcel_id",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_begin_is_one_error_and_nothing_begins(folder: Folder, case: str) -> None:
    """Exit code 2 before any site is in the ledger, also one that could begin."""
    names, text, told = BROKEN[case]
    if text:
        (folder.path / "config" / "sites" / "other.yaml").write_text(text + "\n")

    done = folder.crawler("sites", "crawl", *names, "--parallel")

    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("Error: ") == 1
    assert not (folder.data / "lpm.db").exists()


@pytest.mark.parametrize("order", [1, -1])
def test_parallel_and_sequential_exclude_each_other(folder: Folder, order: int) -> None:
    """Neither is chosen for the user, and nothing begins."""
    both = ["--parallel", "--sequential"][::order]

    done = folder.crawler("sites", "crawl", "library", *both)

    assert done.returncode == 2
    assert "--parallel and --sequential exclude each other" in done.stderr
    assert not (folder.data / "lpm.db").exists()


def test_among_all_a_site_that_needs_rows_is_skipped(folder: Folder) -> None:
    """With a line, and in the JSON; sites without starts are none of all."""
    config = folder.path / "config" / "sites"
    for name in ("county", "imoti"):
        (config / f"{name}.yaml").unlink()
    form = "start: [{url: 'http://o.example/s', form: {values: {q: '{parcel_id}'}}}]\n"
    (config / "other.yaml").write_text(form)
    (config / "plain.yaml").write_text("hosts: [p.example]\n")

    done = folder.crawler("sites", "crawl", "--limit", "3", "--workers", "1", "--json")

    assert done.returncode == 0, done.stderr
    assert "other is skipped: the form at http://o.example/s" in done.stderr
    facts = json.loads(done.stdout)
    assert list(facts["sites"]) == ["library"]
    assert list(facts["totals"]["skipped"]) == ["other"]


# The same command goes on


def test_a_kill_in_the_second_site_repeats_no_finished_one(
    folder: Folder, examples: Running
) -> None:
    """One after the other: the first site is not asked again and stays ended as it was, the second
    goes on, the third begins."""
    argv = ["sites", "crawl", *NAMES, "--sequential", "--workers", "2"]
    process = folder.start("crawler", *argv)
    wait_for(lambda: len(examples.requests("imoti.localhost")) > 25, 60, "pages of the second")
    kill_all(process)
    [library, imoti] = jobs_of(folder)
    asked = examples.requests("library.localhost")

    again = folder.crawler(*argv)

    assert again.returncode == 0, again.stderr
    assert collected(folder) == expected(examples)
    assert examples.requests("library.localhost") == asked
    assert f"library: the crawl library-{today()} is done and was not reported" in again.stderr
    assert f"imoti: continues the crawl imoti-{today()}, begun on {today()}: " in again.stderr
    assert f"county: begins the crawl county-{today()}" in again.stderr
    jobs = jobs_of(folder)
    assert [job.name for job in jobs] == [f"{name}-{today()}" for name in NAMES]
    assert jobs[0].completed_at == library.completed_at is not None
    assert imoti.completed_at is None
    assert "library     63       63        60" in again.stdout
    assert left_behind(folder) == []


def test_a_kill_of_all_sites_at_once_loses_and_repeats_nothing(
    folder: Folder, examples: Running
) -> None:
    """In parallel, twice killed: no job is begun twice, and each page in no flight is asked for
    once."""
    argv = ["sites", "crawl", "--parallel", "--workers", "2"]
    for count in (60, 120):
        process = folder.start("crawler", *argv)
        wait_for(partial(has_asked, examples, count), 60, "some pages")
        kill_all(process)

    again = folder.crawler(*argv)

    assert again.returncode == 0, again.stderr
    assert collected(folder) == expected(examples)
    assert len(jobs_of(folder)) == 3
    assert again.stderr.count(": continues the crawl ") >= 1


def test_an_interrupted_command_says_what_is_left(folder: Folder, examples: Running) -> None:
    """Ctrl-C ends the stack in order, and the same command continues."""
    argv = ["sites", "crawl", *NAMES, "--workers", "2"]
    process = folder.start("crawler", *argv)
    wait_for(lambda: len(examples.requests("library.localhost")) > 10, 60, "some pages")

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 130
    assert "0 of 3 sites are done; the same command continues" in folder.log(process)
    assert left_behind(folder) == []
    assert folder.crawler(*argv).returncode == 0
    assert collected(folder) == expected(examples)


@pytest.mark.parametrize("how", ["crawl", "call"])
def test_an_open_crawl_of_a_site_is_continued(folder: Folder, how: str) -> None:
    """Also one that `crawl SITE` has begun, or a task: the job is the same."""
    settings = folder.settings
    if how == "crawl":
        job = begin(folder, "library").job
    else:
        plan = crawls.plan_site(sites.load(settings.config_dir, settings.rate), "library")
        job = crawls.begin_site(settings, plan, SiteCall("c1", "library"), "by-call").job

    done = folder.crawler("sites", "crawl", "library", "--workers", "1")

    assert done.returncode == 0, done.stderr
    assert f"begun on {today()}: 0 of 1 done" in done.stderr
    assert [each.name for each in jobs_of(folder)] == [job.name]


def test_an_older_crawl_that_was_never_reported_is_not_taken_for_the_last(folder: Folder) -> None:
    """A crawl that ended unseen is forgotten once a later one of the same site has ended."""
    settings = folder.settings
    old = begin(folder, "library").job
    with folder.lpm() as lpm:
        end(lpm, old)
    plan = crawls.plan_site(sites.load(settings.config_dir, settings.rate), "library")
    new = crawls.begin_site(settings, plan, SiteCall("c1", "library"), "by-call").job
    with folder.lpm() as lpm:
        end(lpm, new)

    third = begin(folder, "library")

    assert old.id < new.id < third.job.id
    assert not third.continued


def end(lpm: Any, job: Job) -> None:
    """End all tasks of a job, and the job."""
    lpm.store.durable.execute("UPDATE tasks SET status = 'failed' WHERE job_id = ?", (job.id,))
    lpm.jobs.finalise(lpm.now())
