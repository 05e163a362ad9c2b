"""A damaged ledger of a crawl: tasks keep what they are to it, and nothing is fetched again or left
out unsaid."""

from pathlib import Path
from typing import Any

import pytest

from crawler import crawls
from crawler.config import Settings
from crawler.doctor import exit_code
from crawler.errors import StoreError
from crawler.lpm import LocalPersistenceManager
from crawler.models import MAX_CRAWL_PAGES, Job, JobOptions, Role
from crawler.sites import load
from tests.support.links import link
from tests.support.patient import change, empty_index, ledger, look, of, pages_of, wipe, wrong
from tests.support.tasks import done, page

START = "http://a.example/"
TASKS = """SELECT t.task_id, t.url, t.status, t.role, t.depth, t.method, t.body, p.task_id
    FROM tasks t LEFT JOIN tasks p ON p.id = t.parent ORDER BY t.url, t.method, t.body"""
FORM = link("/search", method="FORM", body='{"page":2}')


def begin(data: Path, name: str | None = None, **scope: Any) -> Job:
    """Type the command of a crawl."""
    given = {"depth": None, "include": (), "exclude": (), "limit": MAX_CRAWL_PAGES} | scope
    plan = crawls.plan(
        load(data / "config"), [START], JobOptions(), subdomains=False, sitemap="skip", **given
    )
    return crawls.begin(Settings(data_dir=data), plan, job_name=name).job


def fetch(data: Path, *links: Any, count: int = 1) -> list[str]:
    """Fetch the next pages, each with these links; returns their URLs."""
    with LocalPersistenceManager(data) as lpm:
        tasks = lpm.get_next_pending("owner", count)
        for task in tasks:
            assert task.job_id is not None
            crawl = lpm.jobs.get(task.job_id).options.crawl
            body = f"{task.url} {task.body}".encode()
            lpm.save_result(done(task, page=page(task.url, body), crawl=crawl, links=links))
        return [task.url for task in tasks]


def crawled(data: Path, name: str | None = None, **scope: Any) -> Job:
    """A crawl of four pages: three are fetched, and one waits."""
    job = begin(data, name, **scope)
    fetch(data, link("/1", role=Role.LISTING), FORM, link("/2"))
    fetch(data, count=2)
    return job


def test_tasks_from_files_keep_what_they_are_to_their_crawl(tmp_path: Path) -> None:
    """A lost ledger: each task has its role, depth, parent and request again, and its crawl, typed
    again, fetches no page twice."""
    crawled(tmp_path, "mine")
    before = [row for row in ledger(tmp_path, TASKS) if row[2] == "completed"]
    assert len(before) == 3
    for path in tmp_path.glob("lpm.db*"):
        path.unlink()

    mended = look(tmp_path, repair=True)

    assert ledger(tmp_path, TASKS) == before
    told = " ".join(of(mended, "jobs", "wrong"))
    assert "which links it follows was lost, so it is paused" in told
    assert "python -m crawler crawl URL --job mine" in told
    assert fetch(tmp_path) == []
    begin(tmp_path, "mine")
    assert "which links" not in " ".join(of(look(tmp_path), "jobs", "wrong"))
    assert [row[0] for row in ledger(tmp_path, "SELECT name FROM jobs")] == ["mine"]
    assert fetch(tmp_path) == []


@pytest.mark.parametrize("files", [True, False])
def test_a_lost_page_of_tasks(tmp_path: Path, files: bool) -> None:
    """Rows of tasks that are lost come back from files, or from results and the index of the
    crawl's tasks; no link makes a second task for a page that has a result."""
    crawled(tmp_path)
    if not files:
        for file in (tmp_path / "pending").iterdir():
            file.unlink()
    wipe(tmp_path / "lpm.db", pages_of(tmp_path / "lpm.db", "tasks", "leaf")[0])

    look(tmp_path, repair=True)

    assert {finding.check for finding in wrong(look(tmp_path))} == {"jobs"}
    rows = ledger(tmp_path, "SELECT url, method, body, role NOT NULL FROM tasks ORDER BY id")
    assert sorted(rows) == [
        (START, "GET", "", 1),
        (f"{START}1", "GET", "", 1),
        (f"{START}search", "FORM", '{"page":2}', 1),
    ]
    if files:
        roles = ledger(tmp_path, "SELECT role FROM tasks ORDER BY url")
        assert roles == [("start",), ("listing",), ("index",)]
    with LocalPersistenceManager(tmp_path) as lpm:
        [job] = lpm.jobs.all()
        told = " ".join(lpm.unaccounted([job])[0])
    assert "1 of its 4 tasks were lost" in told
    assert f"its starts come back with: python -m crawler crawl {START} --sitemap skip" in told
    assert "import its file again" not in told
    begin(tmp_path)
    assert fetch(tmp_path) == []


def test_a_result_goes_to_the_task_that_its_crawl_has_made_again(tmp_path: Path) -> None:
    """A page whose task was lost and whose link was found again is not fetched again if its file is
    there."""
    crawled(tmp_path)
    [(task_id,)] = ledger(tmp_path, "SELECT task_id FROM tasks WHERE role = 'listing'")
    change(tmp_path, "DELETE FROM results WHERE task = 2; DELETE FROM tasks WHERE id = 2")
    change(tmp_path, "DELETE FROM outbox WHERE task = 2; DELETE FROM events WHERE task = 2")
    fetch(tmp_path, link("/1", role=Role.LISTING))

    look(tmp_path, repair=True)

    rows = ledger(tmp_path, "SELECT task_id, status FROM tasks WHERE url LIKE '%/1'")
    assert rows == [(task_id, "completed")]
    assert fetch(tmp_path) == []


@pytest.mark.parametrize("file", [True, False])
def test_a_result_with_a_wrong_number(tmp_path: Path, file: bool) -> None:
    """It goes back to its task, by its file or by its page; there is no second one of the page."""
    crawled(tmp_path)
    [(task_id,)] = ledger(tmp_path, "SELECT task_id FROM tasks WHERE role = 'listing'")
    if not file:
        (tmp_path / "pending" / f"{task_id}.json").unlink()
    change(tmp_path, "UPDATE results SET task = 90 WHERE task = 2")
    before = ledger(tmp_path, TASKS)

    assert exit_code(look(tmp_path, repair=True)) == 0

    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, TASKS) == before
    assert ledger(tmp_path, "SELECT task FROM results ORDER BY 1") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("column", "value", "paused"),
    [
        ("options", '{"crawl":', True),
        ("options", '{"crawl":{"starts":5}}', True),
        ("options", "[]", True),
        ("status", "opem", False),
        ("hold", "pauser", False),
        ("queue", "defauly", False),
        ("deadline", "x", False),
        ("created_at", -5, False),
    ],
)
def test_a_wrong_value_of_a_job(tmp_path: Path, column: str, value: Any, paused: bool) -> None:
    """It is named, not a crash; a crawl that has lost its options waits until they are given again,
    because it would follow no link."""
    job = crawled(tmp_path)
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.store.durable.execute(f"UPDATE jobs SET {column} = ?", (value,))
    if paused or column == "status":
        with LocalPersistenceManager(tmp_path) as lpm, pytest.raises(StoreError, match="doctor"):
            lpm.jobs.all()

    found = look(tmp_path)
    assert exit_code(found) == 4
    assert f"job {job.name}: {column} is" in of(found, "ledger", "wrong")[0]
    look(tmp_path, repair=True)

    told = " ".join(of(look(tmp_path), "jobs", "wrong"))
    assert ("which links it follows was lost, so it is paused" in told) == paused
    if paused:
        assert fetch(tmp_path) == []
        begin(tmp_path)
        assert wrong(look(tmp_path)) == []
    if column != "hold":
        assert fetch(tmp_path, link("/new")) == [f"{START}2"]
        assert fetch(tmp_path) == [f"{START}new"]


@pytest.mark.parametrize(
    ("column", "value", "right"),
    [
        ("role", "listinh", "index"),
        ("depth", -1, 0),
        ("hops", "x", 0),
        ("method", "GEU", "GET"),
        ("parent", "x", None),
        ("modified_at", 1e13, None),
        ("list_crc32", "x", None),
    ],
)
def test_a_wrong_value_of_a_task(tmp_path: Path, column: str, value: Any, right: Any) -> None:
    """A value that no crawl writes is found and replaced."""
    crawled(tmp_path)
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.store.durable.execute(f"UPDATE tasks SET {column} = ? WHERE id = 2", (value,))

    assert f"{column} is" in of(look(tmp_path), "ledger", "wrong")[0]
    assert exit_code(look(tmp_path, repair=True)) == 0

    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, f"SELECT {column} FROM tasks WHERE id = 2") == [(right,)]


@pytest.mark.parametrize(
    ("columns", "right"),
    [
        ("role = 'sitemap', body = ''", "SITEMAP"),
        ("body = '1', parent = 1", "LINKS"),
        ("body = '{}', parent = 1", "FORM"),
        ("body = '', parent = 1", "GET"),
    ],
)
def test_a_wrong_method(tmp_path: Path, columns: str, right: str) -> None:
    """The other columns of a task tell which one is right."""
    crawled(tmp_path)
    change(tmp_path, f"UPDATE tasks SET method = 'GEU', {columns} WHERE id = 2")

    assert exit_code(look(tmp_path, repair=True)) == 0

    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, "SELECT method FROM tasks WHERE id = 2") == [(right,)]


def test_the_index_of_its_tasks(tmp_path: Path) -> None:
    """Without its entries a link would make a second task for a page: a repair makes it again."""
    crawled(tmp_path)
    before = ledger(tmp_path, TASKS)
    empty_index(tmp_path, "tasks_of_crawl")

    assert exit_code(look(tmp_path)) == 4
    assert exit_code(look(tmp_path, repair=True)) == 0

    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, TASKS) == before
    assert fetch(tmp_path, link("/1"), link("/")) == [f"{START}2"]
    assert fetch(tmp_path) == []


def test_a_parent_that_is_gone(tmp_path: Path) -> None:
    """Its number must not come to mean another task."""
    crawled(tmp_path)
    change(tmp_path, "UPDATE tasks SET parent = 99 WHERE id = 2")

    assert "1 tasks found on the pages of missing tasks" in of(look(tmp_path), "books", "wrong")[0]
    look(tmp_path, repair=True)

    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, "SELECT parent FROM tasks WHERE id = 2") == [(None,)]


def test_counts_that_make_no_sense(tmp_path: Path) -> None:
    """A damaged count of links is left out of reports, and costs nothing else."""
    crawled(tmp_path)
    change(tmp_path, "INSERT INTO crawl_counts VALUES (1, 'guard', 'depth', 'x', '')")
    change(tmp_path, "INSERT INTO crawl_counts VALUES (1, 'guard', 'limit', 3, '')")

    assert "1 rows of crawl_counts make no sense" in of(look(tmp_path), "ledger", "wrong")[0]
    assert exit_code(look(tmp_path, repair=True)) == 0

    assert ledger(tmp_path, "SELECT name, count FROM crawl_counts") == [("limit", 3)]


def test_the_way_out_is_the_whole_command(tmp_path: Path) -> None:
    """A crawl typed again takes the new options, so the command that is named has the old ones."""
    crawled(tmp_path, "my crawl", depth=3, include=("/a b",), exclude=("x",), limit=50)
    change(tmp_path, "UPDATE jobs SET size = size + 1")
    look(tmp_path, repair=True)

    with LocalPersistenceManager(tmp_path) as lpm:
        [told] = lpm.unaccounted(lpm.jobs.all())
    assert (
        f"crawl {START} --job 'my crawl' --depth 3 --include '/a b' --exclude x --limit 50 "
        "--sitemap skip" in " ".join(told)
    )
