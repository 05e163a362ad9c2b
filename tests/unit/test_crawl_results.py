"""Results of a crawl say what their page was to it: in files, lists, exports and bundles."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from crawler.lpm import LocalPersistenceManager
from crawler.models import Role, TaskStatus
from crawler.results import bundle, export
from tests.support.links import Crawl, link
from tests.support.stack import Folder
from tests.support.tasks import collect, page

START = "http://a.example/"
ROLES = ("role", "depth", "parent")


def crawl_of(folder: Path, name: str = "crawl") -> Crawl:
    """A crawl of a start, a listing, and a page behind a form; all are fetched."""
    crawl = Crawl(folder, name)
    [start] = crawl.claim()
    form = link("/search", method="FORM", body='{"page":2}')
    crawl.end(start, link("/1", role=Role.LISTING), form, page=page(start.url, b"start"))
    for task in crawl.claim(2):
        crawl.end(task, page=page(task.url, task.url.encode()))
    return crawl


def run(folder: Path, *arguments: str) -> str:
    """What a command prints."""
    done = Folder(folder).crawler(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(crawl: Crawl, form: str, **about: Any) -> bytes:
    """What an export of a crawl's results has."""
    target = crawl.lpm.folder.parent / f"out.{form}"
    export(crawl.lpm, target, form, **about)
    return target.read_bytes()


def test_a_result_has_role_depth_and_parent(tmp_path: Path) -> None:
    """Only a crawl's results have them, right behind `same_as`; a form's has its request, too."""
    crawl = crawl_of(tmp_path)
    collect(crawl.lpm, "plain", 1)
    start, listing, form, plain = crawl.lpm.results.read()

    names = list(listing)
    assert names[names.index("same_as") + 1 :] == [*ROLES]
    assert [listing[name] for name in ROLES] == ["listing", 1, start["task_id"]]
    assert [start[name] for name in ROLES] == ["start", 0, None]
    assert (form["method"], form["body"]) == ("FORM", '{"page":2}')
    assert not {*ROLES, "method", "body"} & set(plain)
    file = json.loads((crawl.lpm.pending / f"{listing['task_id']}.json").read_text())
    assert file == listing
    crawl.lpm.close()


def test_results_and_tasks_are_chosen_by_role(tmp_path: Path) -> None:
    """`--role` of an export, of `results list` and of `tasks list` names one or several roles."""
    data = tmp_path / "data"
    crawl = crawl_of(data)
    collect(crawl.lpm, "plain", 1)

    listings = exported(crawl, "jsonl", roles=["listing"]).splitlines()
    assert [json.loads(line)["url"] for line in listings] == ["http://a.example/1"]
    table = exported(crawl, "csv").decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["role"] for row in rows] == ["start", "listing", "index", ""]
    assert [row["depth"] for row in rows] == ["0", "1", "1", ""]
    assert rows[1]["parent"] == rows[0]["task_id"]
    crawl.lpm.close()

    newest = run(tmp_path, "results", "list", "--role", "listing", "--limit", "9", "--json")
    assert [item["role"] for item in json.loads(newest)["items"]] == ["listing"]
    both = run(tmp_path, "tasks", "list", "--role", "listing", "--role", "start", "--json")
    assert [json.loads(line)["role"] for line in both.splitlines()] == ["start", "listing"]
    target = tmp_path / "listings.csv"
    run(tmp_path, "results", "export", "--role", "listing", "--output", str(target))
    assert len(target.read_text().splitlines()) == 2


def test_an_export_of_one_role_is_told_of_no_other(tmp_path: Path) -> None:
    """A result that an export left out because of its role does not name that export."""
    crawl = crawl_of(tmp_path / "data")
    exported(crawl, "jsonl", roles=["listing"])
    told = [
        crawl.lpm.timeline.exports(id_, crawl.lpm.timeline.result(id_) or {})
        for (id_,) in crawl.rows("id")
    ]
    assert [len(each) for each in told] == [0, 1, 0]
    crawl.lpm.close()


def test_bundles_carry_roles(tmp_path: Path) -> None:
    """Unbundled results are the same; those of several crawls of one site go into one job."""
    crawl = crawl_of(tmp_path / "data")
    crawl_of(tmp_path / "data", "second").lpm.close()
    bundle.bundle(crawl.lpm, tmp_path / "b", job=None, since=None, raw=False)
    crawl.lpm.close()

    before = {each["task_id"]: each for each in crawl.lpm.results.read()}
    with LocalPersistenceManager(tmp_path / "other") as lpm:
        bundle.unbundle(lpm, tmp_path / "b", max_body=1_000_000)
        after = list(lpm.results.read())

    assert len(after) == 6
    for each in after:
        for name in (*ROLES, "method", "body"):
            assert each.get(name) == before[each["task_id"]].get(name)


def test_results_are_chosen_by_site(tmp_path: Path) -> None:
    """By the file that made them; the others do not name the export. A site that nobody knows is
    refused."""
    crawl = Crawl(tmp_path / "data")
    [start] = crawl.claim()
    crawl.end(start, link("/1", role=Role.LISTING), page=page(start.url, b"start"))
    [task] = crawl.claim()
    crawl.end(task, page=page(task.url, b"listing"), site=("imoti", "1"))
    crawl.lpm.close()

    text = run(tmp_path, "results", "export", "--site", "imoti", "-o", "-", "--format", "jsonl")
    assert [json.loads(line)["url"] for line in text.splitlines()] == ["http://a.example/1"]
    told = [
        crawl.lpm.timeline.exports(id_, crawl.lpm.timeline.result(id_) or {})
        for (id_,) in crawl.rows("id")
    ]
    assert [len(each) for each in told] == [0, 1]
    crawl.lpm.close()
    refused = Folder(tmp_path).crawler("results", "export", "--site", "imotii", "-o", "-")
    assert refused.returncode == 2


@pytest.mark.parametrize("option", ["--since=1h", "--role=listing", "--site=default"])
def test_all_rows_are_not_chosen_from(tmp_path: Path, option: str) -> None:
    """Every row of the input is all of them."""
    crawl_of(tmp_path / "data").lpm.close()
    arguments = ["results", "export", "--output", "-", "--format", "json", "--all-rows", option]
    done = Folder(tmp_path).crawler(*arguments)
    assert done.returncode == 2
    assert "does not go with" in done.stderr


def test_status_and_jobs_show_how_far_a_crawl_is(tmp_path: Path) -> None:
    """Found, fetched and failed pages, and what guards did, as text and as JSON; other jobs have
    none of it."""
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        collect(lpm, "plain", 1)
    crawl = Crawl(tmp_path / "data", depth=1)
    [start] = crawl.claim()
    crawl.end(start, *(link(f"/{n}") for n in range(3)), link("/deep", depth=2))
    [failed] = crawl.claim()
    crawl.end(failed, status=TaskStatus.FAILED, page=None, error_type="http_404")
    crawl.lpm.close()
    facts = {"found": 4, "fetched": 1, "failed": 1, "guards": {"depth": 1}}
    shown = "4 found, 1 fetched, 1 failed; guards: depth 1"

    status = json.loads(run(tmp_path, "status", "--json"))["job_facts"]
    assert [status[name]["crawl"] for name in ("plain", "crawl")] == [None, facts]
    assert f"crawl is a crawl: {shown}" in run(tmp_path, "status")
    jobs = json.loads(run(tmp_path, "job", "list", "--json"))
    assert [each["crawl"] for each in jobs] == [None, facts]
    lines = run(tmp_path, "job", "list").splitlines()
    assert [shown in line for line in lines] == [False, True]
    assert json.loads(run(tmp_path, "job", "show", "crawl", "--json"))["crawl"] == facts
    text = run(tmp_path, "job", "show", "crawl")
    assert f"crawl: {shown}" in text
    assert "guard depth: 1 link left out" in text
    assert f"from {START}" in text
