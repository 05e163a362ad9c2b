"""`results archive`, `bundle`, `unbundle` and `prune` through their doors, killed in the middle and
typed again."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.site import Site
from tests.support.stack import Folder, assert_balanced
from tests.support.tasks import collect, done, new, open_job, page

PAGES = 12
MANY = 1200
"""More than two transactions of archive and unbundle."""


@pytest.fixture(scope="module")
def _crawled(_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data of a small real crawl."""
    folder = Folder(tmp_path_factory.mktemp("crawled"))
    paths = ["/gzip", "/br", "/zstd", "/image"]
    file = folder.write(
        "pages.txt",
        [_site.page(n) for n in range(PAGES - len(paths))] + [_site.url + p for p in paths],
    )
    ran = folder.crawler("run", str(file), "--workers", "1")
    assert ran.returncode == 0, ran.stderr
    yield folder.data
    folder.stop()


@pytest.fixture(scope="module")
def _many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a large made-up crawl."""
    folder = Folder(tmp_path_factory.mktemp("many"))
    lpm = folder.lpm()
    job = open_job(lpm, "many")
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(MANY)], job=job)
    tasks = lpm.get_next_pending("owner", MANY)
    lpm.save_result(*(done(task, page=page(task.url, task.url.encode())) for task in tasks))
    lpm.imports.close(job, time.time())
    lpm.jobs.finalise(time.time())
    lpm.close()
    return folder.data


@pytest.fixture
def crawled(folder: Folder, _crawled: Path) -> Folder:
    """A folder with a small real crawl in it."""
    shutil.copytree(_crawled, folder.data, ignore=shutil.ignore_patterns("redis", "run"))
    return folder


@pytest.fixture
def many(folder: Folder, _many: Path) -> Folder:
    """A folder with a large made-up crawl in it."""
    shutil.copytree(_many, folder.data)
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Folder:
    """Another machine."""
    path = tmp_path / "there"
    path.mkdir()
    return Folder(path)


def pending(folder: Folder) -> int:
    return len(list((folder.data / "pending").glob("*.json")))


def test_archive_empties_pending_and_loses_nothing(crawled: Folder) -> None:
    """The last line is the documented one; the results can still be exported, and nothing comes
    back."""
    before = crawled.results()
    archived = crawled.crawler("results", "archive", "--compress")
    again = crawled.crawler("results", "archive", "--compress", "--json")
    listed = crawled.crawler("results", "list")

    [file] = (crawled.data / "archive").iterdir()
    assert archived.returncode == 0, archived.stderr
    assert archived.stdout.splitlines()[-1] == (
        f"Archived {PAGES} results to data/archive/{file.name} "
        f"({file.stat().st_size / 1e3:.1f} kB, verified)"
    )
    assert (again.returncode, json.loads(again.stdout)) == (
        0,
        {"results": 0, "file": None, "bytes": 0},
    )
    assert (
        listed.stdout
        == f"{PAGES} results, 0 of them in {crawled.data}/pending/ ({PAGES} archived)\n"
    )
    assert crawled.results() == before
    assert_balanced(crawled.status())


def test_archive_by_job_age_and_output(crawled: Folder) -> None:
    """What is too young stays, an unknown job and a file that is there are clear errors, and a name
    is obeyed."""
    out = crawled.path / "mine.jsonl"
    young = crawled.crawler("results", "archive", "--older-than", "1h")
    unknown = crawled.crawler("results", "archive", "--job", "pages")
    stdout = crawled.crawler("results", "archive", "--output", "-")
    good = crawled.crawler(
        "results", "archive", "--job", "pages.txt", "--output", str(out), "--json"
    )

    assert (young.returncode, young.stdout.split(":")[0]) == (0, "Nothing to archive")
    assert (unknown.returncode, stdout.returncode) == (2, 2)
    assert "did you mean pages.txt?" in unknown.stderr
    assert json.loads(good.stdout) == {
        "results": PAGES,
        "file": str(out),
        "bytes": out.stat().st_size,
    }
    assert len({json.loads(line)["task_id"] for line in out.read_text().splitlines()}) == PAGES


def test_list_archive_and_prune_count_the_same(folder: Folder) -> None:
    """A result is one, wherever it lies: in pending/, in an archive, with its page or without
    it."""
    lpm = folder.lpm()
    collect(lpm, "first", 4)
    collect(lpm, "second", 3)
    lpm.close()
    for segment in (folder.data / "raw").iterdir():
        os.utime(segment, (0, 0))

    archived = json.loads(folder.crawler("results", "archive", "--job", "first", "--json").stdout)
    listed = json.loads(folder.crawler("results", "list", "--json").stdout)
    of_first = folder.crawler("results", "list", "--job", "first").stdout
    resumed = folder.crawler("resume").stdout
    dry = json.loads(
        folder.crawler("prune", "--raw", "--older-than", "1d", "--dry-run", "--json").stdout
    )
    pruned = json.loads(folder.crawler("prune", "--raw", "--older-than", "1d", "--json").stdout)
    again = folder.crawler("prune", "--raw", "--older-than", "1d").stdout

    assert archived["results"] == listed["delivery"]["archived"] == 4
    assert listed["results"] == dry["results"] == pruned["results"] == 7
    assert (listed["files"]["results"], listed["delivery"]["pending"]) == (3, 3)
    assert of_first == f"4 results, 0 of them in {folder.data}/pending/ (4 archived)\n"
    assert resumed.startswith(
        f"7 of 7 pages collected; 3 results in {folder.data}/pending/; 4 were archived\n"
    )
    assert again == "Nothing to remove\n"


@pytest.mark.parametrize(
    "failpoint", ["archiving:700", "archive-noted:1", "archived:1", "archive-marked:2"]
)
def test_archive_killed_at_a_step(many: Folder, failpoint: str) -> None:
    """Killed while it writes, before it marks, or in the middle of that: typed again, all is there,
    and once."""
    # Given an archive that dies
    killed = many.crawler("results", "archive", "--compress", CRAWLER_FAILPOINT=failpoint)
    assert killed.returncode == -signal.SIGKILL
    assert pending(many) == MANY

    # When it is typed again
    again = many.crawler("results", "archive", "--compress")

    # Then each result is in an archive, none is in pending/, and no half file lies about
    assert again.returncode == 0, again.stderr
    assert pending(many) == 0
    held = []
    for file in (many.data / "archive").iterdir():
        assert not file.name.startswith(".")
        held += task_ids(file)
    assert set(held) == {result["task_id"] for result in many.results()}
    assert len(held) == MANY


def test_the_file_of_a_killed_archive_was_moved(many: Folder) -> None:
    """Without the file that was written, or with another under its name, what is not marked is
    archived again."""
    mine = many.path / "mine.jsonl"
    killed = many.crawler(
        "results", "archive", "--output", str(mine), CRAWLER_FAILPOINT="archived:1"
    )
    assert killed.returncode == -signal.SIGKILL
    mine.write_text("something else\n")

    again = many.crawler("results", "archive", "--compress", "--json")

    assert (again.returncode, json.loads(again.stdout)["results"]) == (0, MANY)
    assert mine.read_text() == "something else\n"


def task_ids(file: Path) -> list[str]:
    """The tasks in an archive."""
    from crawler.results.archive import _reading

    with _reading(file, compress=True) as lines:
        return [json.loads(line)["task_id"] for line in lines]


def test_a_bundle_carries_results_to_another_machine(crawled: Folder, there: Folder) -> None:
    """Results and pages are the same there, held, in balance, once; the checksum is the same on
    both sides."""
    # Given a bundle
    file = crawled.path / "pages.crawlbundle.tar.zst"
    written = crawled.crawler("results", "bundle", "--output", str(file), "--job", "pages.txt")

    # When it is taken in, twice
    first = there.crawler("results", "unbundle", str(file))
    facts = json.loads(there.crawler("results", "unbundle", str(file), "--json").stdout)

    # Then it is all there
    assert (written.returncode, first.returncode) == (0, 0), written.stderr + first.stderr
    checksum, bundled = written.stdout.splitlines()
    assert bundled.startswith(f"Bundled {PAGES} results with {PAGES} pages to {file} (")
    assert first.stdout.splitlines() == [
        checksum,
        "Job pages.txt",
        f"{PAGES} results: {PAGES} new, 0 known",
    ]
    assert (facts["new"], facts["known"], facts["job"], f"Checksum {facts['checksum']}") == (
        0,
        PAGES,
        None,
        checksum,
    )
    ours, theirs = crawled.results(), there.results()
    apart = {
        "raw": None,
        "same_as": None,
    }  # each store has its own places, and its own first of equal pages
    assert [result | apart for result in theirs] == [result | apart for result in ours]
    assert pending(there) == PAGES
    for result in ours[-3:]:
        name = f"page-{result['task_id']}"
        for folder in (crawled, there):
            assert (
                folder.crawler("raw", result["url"], "-o", str(folder.path / name)).returncode == 0
            )
        assert (crawled.path / name).read_bytes() == (there.path / name).read_bytes()
    status = there.status()
    assert_balanced(status)
    assert list(status["jobs"]) == ["pages.txt"]
    lpm = crawled.lpm()
    assert lpm.store.db.all("SELECT results FROM exports WHERE format = 'bundle'") == [(PAGES,)]
    lpm.close()


def test_a_bundle_takes_what_is_asked_for(crawled: Folder, there: Folder) -> None:
    """By time and without pages; with nothing to carry there is no file, and a time that is none is
    an error."""
    file = crawled.path / "b"
    bare = crawled.crawler(
        "results", "bundle", "-o", str(file), "--since", "2020-01-01", "--no-raw", "--json"
    )
    none = crawled.crawler("results", "bundle", "-o", str(crawled.path / "none"), "--since", "0s")
    bad = crawled.crawler("results", "bundle", "-o", str(file), "--since", "lately")
    there.crawler("results", "unbundle", str(file))
    raw = there.crawler("raw", there.results()[0]["url"])

    facts = json.loads(bare.stdout)
    assert (facts["results"], facts["pages"]) == (PAGES, 0)
    assert (none.returncode, none.stdout.split(":")[0], (crawled.path / "none").exists()) == (
        0,
        "Nothing to bundle",
        False,
    )
    assert bad.returncode == 2
    assert (raw.returncode, "no page is stored" in raw.stderr) == (2, True)


@pytest.mark.parametrize("failpoint", ["committing:2", "unbundled:2", "unbundled:3"])
def test_unbundle_killed_at_a_step(many: Folder, there: Folder, failpoint: str) -> None:
    """Killed before a commit, between two of them, and before its job's end: typed again, all is
    there once."""
    # Given a bundle whose storing dies
    file = many.path / "b"
    assert many.crawler("results", "bundle", "-o", str(file)).returncode == 0
    killed = there.crawler("results", "unbundle", str(file), CRAWLER_FAILPOINT=failpoint)
    assert killed.returncode == -signal.SIGKILL

    # When it is typed again
    again = json.loads(there.crawler("results", "unbundle", str(file), "--json").stdout)

    # Then every result is there once, with its page, in one job that has ended
    stored = {"committing:2": 500, "unbundled:2": 1000, "unbundled:3": MANY}[failpoint]
    assert (again["new"], again["known"]) == (MANY - stored, stored)
    status = there.status()
    assert_balanced(status)
    assert list(status["jobs"]) == ["b"]
    lpm = there.lpm()
    assert lpm.store.db.all("SELECT status, size FROM jobs") == [("done", MANY)]
    assert all(
        (lpm.pages.read(n) or ("", b""))[1] == f"http://a.example/{n - 1}".encode()
        for n in range(1, MANY + 1)
    )
    lpm.files.restore()
    lpm.close()
    assert pending(there) == MANY


def test_a_damaged_bundle_is_code_2(crawled: Folder, there: Folder) -> None:
    """One line with the file's name, and no store."""
    file = crawled.path / "b"
    crawled.crawler("results", "bundle", "-o", str(file))
    file.write_bytes(file.read_bytes()[:-100])
    refused = there.crawler("results", "unbundle", str(file))

    assert refused.returncode == 2
    assert refused.stderr.startswith(f"Error: {file}: ")
    assert "Traceback" not in refused.stderr
    assert not there.data.exists()


def test_prune_removes_pages_that_are_old_enough(crawled: Folder) -> None:
    """Young pages stay, old ones go, results stay, and `raw` says what has become of the page."""
    url = crawled.results()[0]["url"]
    segments = list((crawled.data / "raw").iterdir())
    young = crawled.crawler("prune", "--raw", "--older-than", "1h")
    for path in segments:
        os.utime(path, (time.time() - 7200,) * 2)
    size = sum(path.stat().st_size for path in segments)
    dry = json.loads(
        crawled.crawler("prune", "--raw", "--older-than", "1h", "--dry-run", "--json").stdout
    )
    there = crawled.crawler("raw", url)
    pruned = crawled.crawler("prune", "--raw", "--older-than", "1h")
    gone = crawled.crawler("raw", url)

    assert young.stdout == "Nothing to remove\n"
    assert (dry["segments"], dry["bytes"], dry["results"]) == (len(segments), size, PAGES)
    assert there.returncode == 0
    many = "segment" if len(segments) == 1 else "segments"
    assert (
        pruned.stdout
        == f"Removed {len(segments)} {many}, {size / 1e3:.1f} kB, pages of {PAGES} results\n"
    )
    assert list((crawled.data / "raw").iterdir()) == []
    assert (gone.returncode, "the page was removed by prune" in gone.stderr) == (2, True)
    assert len(crawled.results()) == PAGES


def test_prune_killed_between_ledger_and_file(crawled: Folder) -> None:
    """The file that the ledger has forgotten goes at the next prune, or with the next death."""
    killed = crawled.crawler("prune", "--raw", "--older-than", "0s", CRAWLER_FAILPOINT="pruned:1")
    left = list((crawled.data / "raw").iterdir())
    again = json.loads(crawled.crawler("prune", "--raw", "--older-than", "0s", "--json").stdout)

    assert killed.returncode == -signal.SIGKILL
    assert (again["segments"], again["results"]) == (len(left), 0)
    assert list((crawled.data / "raw").iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ("prune",),
        ("prune", "--raw"),
        ("prune", "--raw", "--older-than", "1d"),
        ("results", "archive"),
        ("results", "bundle", "-o", "b"),
        ("results", "unbundle", "nothing"),
    ],
)
def test_what_is_missing_is_code_2(folder: Folder, args: tuple[str, ...]) -> None:
    """Without a store, a file or an option there is one clear error, and nothing is made."""
    refused = folder.crawler(*args)
    assert refused.returncode == 2
    assert refused.stderr
    assert "Traceback" not in refused.stderr
    assert not folder.data.exists()
