"""Links of a page become tasks in the transaction that ends it: none is lost, none is doubled."""

from pathlib import Path
from typing import Any

import pytest

from crawler.db.links import Start
from crawler.lpm import LocalPersistenceManager
from crawler.models import LINKS, Job, LeftOut, Role, TaskStatus
from tests.support.links import NOW, Crawl, link
from tests.support.tasks import done, new, open_job


def test_links_have_what_their_page_had(tmp_path: Path) -> None:
    """A found task has its parent, its depth and role, and the columns of the row that led to
    it."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()

    crawl.end(start, link("/1", role=Role.LISTING), link("/2", modified_at=5.0))

    assert crawl.rows("url, role, depth, parent, parcel_id, modified_at")[1:] == [
        ("http://a.example/1", "listing", 1, start.id, "P1", None),
        ("http://a.example/2", "index", 1, start.id, "P1", 5.0),
    ]
    [first, _] = crawl.claim(2)
    assert (first.role, first.depth, first.method) == (Role.LISTING, 1, "GET")
    receipt = crawl.lpm.receipt(crawl.job)
    assert receipt.problems == []
    assert receipt.crawl is not None
    assert receipt.crawl.roles == {
        "start": {"completed": 1}, "listing": {"processing": 1}, "index": {"processing": 1},
    }  # fmt: skip


def test_the_beginnings_of_ids_tell_tasks_apart(tmp_path: Path) -> None:
    """Commands show the first 12 digits of a task's id, also for the links of one page."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()

    crawl.end(start, *(link(f"/{n}") for n in range(20)))

    ids = [task_id for (task_id,) in crawl.rows("task_id")]
    assert {len(each) for each in ids} == {32}
    assert len({each[:12] for each in ids}) == 21


def test_a_page_is_one_task_in_every_state(tmp_path: Path) -> None:
    """Linked again, whether its task waits, has failed or is done, it is not fetched again."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, link("/1"), link("/2"), link("/3"), link("/"))
    waiting, failed, finished = crawl.claim(3)
    crawl.end(failed, status=TaskStatus.FAILED, page=None, error_type="http_404")
    crawl.end(finished, link("/1"), link("/2"), link("/3"), link("/"), link("/1?utm_source=x"))

    assert [row[0] for row in crawl.rows("url")] == [
        f"http://a.example/{path}" for path in ("", "1", "2", "3")
    ]
    crawl.end(waiting)
    crawl.lpm.jobs.finalise(NOW)
    assert crawl.lpm.jobs.get(crawl.job.id).status == "done"


def test_requests_differ_by_method_and_body(tmp_path: Path) -> None:
    """One URL is several tasks if other things are sent to it."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()

    crawl.end(start, *(link("/s", method=m, body=b) for m, b in
                       [("GET", ""), ("FORM", "a"), ("FORM", "b"), ("FORM", "a")]))  # fmt: skip

    assert crawl.rows("method, body")[1:] == [("GET", ""), ("FORM", "a"), ("FORM", "b")]


def test_a_crawl_shares_no_task_with_other_jobs(tmp_path: Path) -> None:
    """Its pages are fetched although an import or another crawl wants them too, and the other way
    round."""
    crawl = Crawl(tmp_path)
    other = Crawl(tmp_path, "other")
    file = open_job(crawl.lpm, "file")
    imported = crawl.lpm.persist_tasks([new("http://a.example/", line=1)], job=file)

    assert (imported.accepted, imported.known) == (1, 0)
    call = crawl.lpm.tasks.add_call(new("http://a.example/x"), loopback=False)
    tasks = {task.job_id: task for task in crawl.claim(9)}
    crawl.end(tasks[crawl.job.id], link("/x"))
    assert [row[0] for row in crawl.rows("url")] == ["http://a.example/", "http://a.example/x"]
    assert len(other.rows("url")) == 1
    assert call not in [row[0] for row in crawl.rows("id")]


def test_a_dead_claim_brings_no_links(tmp_path: Path) -> None:
    """A late twin of a page is dropped with all that it found."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.lpm.dispatch.give_back("owner", [], NOW)
    [again] = crawl.claim()

    assert crawl.end(start, link("/late")) == [False]
    assert crawl.end(again, link("/live")) == [True]
    assert [row[0] for row in crawl.rows("url")] == ["http://a.example/", "http://a.example/live"]


def test_a_page_that_is_tried_again_brings_no_links_yet(tmp_path: Path) -> None:
    """Links come with the end of a task, not with an attempt."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()

    crawl.end(start, status=TaskStatus.PENDING, page=None, error_type="timeout")

    assert len(crawl.rows("id")) == 1


@pytest.mark.parametrize(
    ("options", "about", "guard", "left"),
    [
        ({"limit": 4}, {}, "limit", 2),
        ({"depth": 0}, {}, "depth", 5),
        ({}, {"site": ("county", 2)}, "site_limit", 3),
    ],
)
def test_limits(
    tmp_path: Path, options: dict[str, Any], about: dict[str, Any], guard: str, left: int
) -> None:
    """What is above a limit is counted and named, once for each link that is not known."""
    crawl = Crawl(tmp_path, **options)
    [start] = crawl.claim()
    links = [link(f"/{n}", **about) for n in range(5)]

    crawl.end(start, *links, link("/"))

    report = crawl.lpm.receipt(crawl.job).crawl
    assert report is not None
    [guarded] = report.left_out
    assert (guarded.guard, guarded.links) == (guard, left)
    assert guarded.example == links[5 - left].address.url
    assert len(crawl.rows("id")) == 6 - left


def test_sitemaps_do_not_count_as_pages(tmp_path: Path) -> None:
    """A limit of pages is one of pages: what names them is bounded by itself."""
    crawl = Crawl(tmp_path, limit=3)
    robots = Start(link("/robots.txt", role=Role.SITEMAP, depth=0))
    crawl.lpm.crawls.add_starts(crawl.job, [robots], NOW)
    start, names = crawl.claim(2)
    crawl.end(names, link("/s.xml", role=Role.SITEMAP), page=None, status=TaskStatus.SKIPPED)

    crawl.end(start, *(link(f"/{n}") for n in range(5)), link("/t.xml", role=Role.SITEMAP))

    report = crawl.lpm.receipt(crawl.job).crawl
    assert report is not None
    assert (report.pages, report.left_out) == (3, [LeftOut("limit", 3, "http://a.example/2")])
    assert report.roles["sitemap"] == {"skipped": 1, "pending": 2}


def test_a_sitemap_tells_of_a_page_that_a_link_has_found(tmp_path: Path) -> None:
    """As long as such a page waits, the sitemap's date is noted with it; afterwards it is not."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, link("/1"), link("/2"), link("/s.xml", role=Role.SITEMAP))
    [(done_page,), _, (names,)] = crawl.rows("id")[1:]
    for id_ in (done_page, names):
        claimed = crawl.lpm.dispatch.claim_one("owner", id_, NOW)
        assert claimed is not None
        crawl.end(claimed, link("/1", modified_at=7.0), link("/2", modified_at=8.0))

    assert crawl.rows("modified_at")[1:3] == [(None,), (8.0,)]


def test_redirects_do_not_count_as_pages(tmp_path: Path) -> None:
    """The limit is one of pages, however many URLs lead to them."""
    crawl = Crawl(tmp_path, limit=2)
    [start] = crawl.claim()
    crawl.end(start, link("/old"), link("/left-out"))
    [moved] = crawl.claim()
    end = {"page": None, "status": TaskStatus.SKIPPED, "error_type": "redirected"}
    crawl.end(moved, link("/new", hops=1), **end)

    assert [row[0] for row in crawl.rows("url")] == [
        f"http://a.example/{path}" for path in ("", "old", "new")
    ]


def test_a_site_that_redirects_every_link_ends(tmp_path: Path) -> None:
    """There are no more redirects than pages: each could free the place of the next."""
    crawl = Crawl(tmp_path, limit=5)
    [start] = crawl.claim()
    crawl.end(start, *(link(f"/{n}") for n in range(50)))
    end = {"page": None, "status": TaskStatus.SKIPPED, "error_type": "redirected"}
    number = 0
    while found := crawl.claim():
        number += 1
        crawl.end(found[0], *(link(f"/{number}/{n}", hops=1) for n in range(3)), **end)

    assert len(crawl.rows("id")) <= 2 * 5


def test_redirects_in_a_circle_are_a_failure(tmp_path: Path) -> None:
    """No page comes of them; a redirect to a page that others have found is none."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, link("/a"), link("/other"))
    end = {"page": None, "status": TaskStatus.SKIPPED, "error_type": "redirected"}
    [(_,), (a,), (other,)] = crawl.rows("id")
    for id_, target in ((a, "/b"), (other, "/a")):
        claimed = crawl.lpm.dispatch.claim_one("owner", id_, NOW)
        assert claimed is not None
        crawl.end(claimed, link(target, hops=1), **end)
    [b] = crawl.claim()
    crawl.end(b, link("/a", hops=2), **end)

    assert crawl.rows("error_type")[1:] == [
        ("redirected",), ("redirected",), ("too_many_redirects",),
    ]  # fmt: skip
    report = crawl.lpm.receipt(crawl.job).crawl
    assert report is not None
    assert report.bad == 1


def test_a_circle_is_noticed_beside_a_page_that_links_into_it(tmp_path: Path) -> None:
    """What one commit has seen already still says that redirects lead back."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, link("/a"), link("/page"))
    end: dict[str, Any] = {"page": None, "status": TaskStatus.SKIPPED, "error_type": "redirected"}
    a, page = crawl.claim(2)
    crawl.end(a, link("/b", hops=1), **end)
    [b] = crawl.claim()

    crawl.lpm.save_result(
        done(page, crawl=crawl.options, links=(link("/a"),)),
        done(b, crawl=crawl.options, links=(link("/a", hops=2),), **end),
    )

    assert crawl.rows("error_type")[3:] == [("too_many_redirects",)]


def test_a_shorter_way_to_a_waiting_page_counts(tmp_path: Path) -> None:
    """With a limit on the depth, a page that waits has the depth of the shortest way so far."""
    crawl = Crawl(tmp_path, depth=3)
    [start] = crawl.claim()
    crawl.end(start, link("/1"), link("/x", depth=3))
    [page] = crawl.claim()
    crawl.end(page, link("/x", depth=2))

    assert crawl.rows("depth")[2:] == [(2,)]


def test_a_shorter_way_to_a_page_that_is_being_fetched_counts(tmp_path: Path) -> None:
    """Its links are as far away as the page is when they are stored."""
    crawl = Crawl(tmp_path, depth=3)
    [start] = crawl.claim()
    crawl.end(start, link("/x", depth=3), link("/1"))
    page, other = crawl.claim(2)

    crawl.end(other, link("/x", depth=2))
    crawl.end(page, link("/behind", depth=4))

    assert crawl.rows("url, depth")[3:] == [("http://a.example/behind", 3)]


def test_a_shorter_way_to_a_page_that_was_fetched_brings_its_links_back(tmp_path: Path) -> None:
    """They are read again without a fetch; so are those of pages behind it, as often as a way gets
    shorter."""
    crawl = Crawl(tmp_path, depth=4)
    [start] = crawl.claim()
    crawl.end(start, link("/x", depth=3), link("/1"))
    page, other = crawl.claim(2)
    crawl.end(page, link("/y", depth=4))
    [behind] = crawl.claim()
    crawl.end(behind, link("/z", depth=5))
    assert left_out(crawl) == ["depth"]

    crawl.end(other, link("/x", depth=2))
    [again] = crawl.claim()
    assert (again.method, again.body, again.depth) == (LINKS, str(page.id), 2)
    assert again.known is not None
    assert again.known.task == page.id
    crawl.end(again, link("/y", depth=3), **READ)
    [again] = crawl.claim()
    assert (again.body, again.depth) == (str(behind.id), 3)
    crawl.end(again, link("/z", depth=4), **READ)
    [last] = crawl.claim()
    crawl.end(last)

    assert crawl.rows("url, depth, parent")[-1] == ("http://a.example/z", 4, behind.id)
    report = crawl.lpm.receipt(crawl.job).crawl
    assert report is not None
    assert (report.pages, report.bad) == (5, 0)
    assert crawl.lpm.receipt(crawl.job).problems == []


READ = {"status": TaskStatus.SKIPPED, "page": None, "verdict": None, "error_type": "read_again"}


def left_out(crawl: Crawl) -> list[str]:
    """The guards that left something out."""
    report = crawl.lpm.receipt(crawl.job).crawl
    assert report is not None
    return [each.guard for each in report.left_out]


@pytest.mark.parametrize(
    ("options", "raised", "about"),
    [
        ({"limit": 3}, {"limit": 5}, {}),
        ({"limit": 3}, {"limit": 0}, {}),
        ({"depth": 0}, {"depth": 1}, {}),
        ({}, {}, {"site": ("county", 2)}),
    ],
)
def test_a_raised_limit_brings_links_back(
    tmp_path: Path, options: dict[str, Any], raised: dict[str, Any], about: dict[str, Any]
) -> None:
    """Each page is read again once, and the guard counts only what is left out then; a limit that
    is the same brings nothing back."""
    crawl = Crawl(tmp_path, **options)
    [start] = crawl.claim()
    links = [link(f"/{n}", **about) for n in range(4)]
    crawl.end(start, *links)
    assert len(left_out(crawl)) == 1
    was = len(crawl.rows("id"))
    assert crawl.lpm.crawls.bring_back(crawl.job, {"county": 2}, NOW) == 0

    higher = crawl.with_options(**raised)
    site_limits = {"county": 4}
    assert crawl.lpm.crawls.bring_back(higher, site_limits, NOW) == 1
    assert crawl.lpm.crawls.bring_back(higher, site_limits, NOW) == 0
    again = [task for task in crawl.claim(10) if task.method == LINKS]
    assert [task.body for task in again] == [str(start.id)]
    now = [link(f"/{n}", **(about and {"site": ("county", 4)})) for n in range(4)]
    crawl.end(again[0], *now, **READ)

    assert len(crawl.rows("id")) == 1 + 1 + 4
    assert was < 5
    assert left_out(crawl) == []
    report = crawl.lpm.receipt(higher).crawl
    assert report is not None
    assert report.pages == 5


def test_links_come_back_after_a_kill_in_between(tmp_path: Path) -> None:
    """A call that was killed before its last transaction is made up for by the next one; no page
    is read twice for it."""
    crawl = Crawl(tmp_path, limit=1)
    [start] = crawl.claim()
    crawl.end(start, link("/1"))
    higher = crawl.with_options(limit=0)
    db = crawl.lpm.store.durable
    rows = db.all("SELECT * FROM crawl_counts WHERE kind IN ('reached', 'guard')")
    crawl.lpm.crawls.bring_back(higher, {}, NOW)
    db.executemany("INSERT INTO crawl_counts VALUES (?, ?, ?, ?, ?)", rows)

    assert crawl.lpm.crawls.bring_back(higher, {}, NOW) == 1

    [again] = crawl.claim(10)
    crawl.end(again, link("/1"), **READ)
    [page] = crawl.claim(10)
    assert page.url == "http://a.example/1"
    assert crawl.lpm.receipt(higher).problems == []


def test_a_raised_limit_is_not_passed(tmp_path: Path) -> None:
    """Tasks that read pages again are no pages; a page in flight keeps the limit of now."""
    crawl = Crawl(tmp_path, limit=2)
    [start] = crawl.claim()
    crawl.end(start, link("/1"), link("/2"))
    [page] = crawl.claim()
    higher = crawl.with_options(limit=3)
    crawl.lpm.crawls.bring_back(higher, {}, NOW)
    crawl.end(page, link("/3"), link("/4"))
    [again, *_] = crawl.claim()
    crawl.end(again, link("/1"), link("/2"), **READ)

    urls = [url for url, method in crawl.rows("url, method") if method == "GET"]
    assert urls == [f"http://a.example/{path}" for path in ("", "1", "3")]
    assert left_out(crawl) == ["limit"]


def test_a_limit_holds_over_all_pages(tmp_path: Path) -> None:
    """A site's limit counts what every page before has found."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, *(link(f"/{n}", site=("county", 3)) for n in range(2)))
    first, second = crawl.claim(2)

    crawl.lpm.save_result(
        done(first, crawl=crawl.options, links=(link("/8", site=("county", 3)),)),
        done(second, crawl=crawl.options, links=(link("/9", site=("county", 3)),)),
    )

    assert len(crawl.rows("id")) == 4
    report = crawl.lpm.receipt(crawl.job).crawl
    assert report is not None
    assert report.left_out == [LeftOut("site_limit", 1, "http://a.example/9")]


def test_tasks_that_read_again_are_no_pages_within_one_commit(tmp_path: Path) -> None:
    """A limit holds over the pages of a commit, in which a shorter way to a page was found."""
    crawl = Crawl(tmp_path, depth=4, limit=5)
    [start] = crawl.claim()
    crawl.end(start, link("/x", depth=3), link("/1"), link("/2"))
    page, first, second = crawl.claim(3)
    crawl.end(page)

    crawl.lpm.save_result(
        done(first, crawl=crawl.options, links=(link("/x", depth=2),)),
        done(second, crawl=crawl.options, links=(link("/8", depth=2), link("/9", depth=2))),
    )

    assert crawl.rows("url, method")[4:] == [
        ("http://a.example/x", LINKS), ("http://a.example/8", "GET"),
    ]  # fmt: skip
    receipt = crawl.lpm.receipt(crawl.job)
    assert receipt.problems == []
    assert receipt.crawl is not None
    assert receipt.crawl.left_out == [LeftOut("limit", 1, "http://a.example/9")]


def test_one_commit_of_many_pages_counts_each_link_once(tmp_path: Path) -> None:
    """Pages that are stored together and link to the same pages make one task for each."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, link("/1"), link("/2"))
    pages = crawl.claim(2)
    both = [link("/3"), link("/4")]

    crawl.lpm.save_result(*(done(each, crawl=crawl.options, links=tuple(both)) for each in pages))

    assert len(crawl.rows("id")) == 5
    assert crawl.lpm.receipt(crawl.job).problems == []


def test_what_guards_left_out_adds_up(tmp_path: Path) -> None:
    """Each page adds to the counts; the first link stays the example."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, link("/1"), left_out=(LeftOut("calendar", 3, "http://a.example/c"),))
    [page] = crawl.claim()
    crawl.end(page, left_out=(LeftOut("calendar", 4, "http://a.example/d"),))

    report = crawl.lpm.receipt(crawl.job).crawl

    assert report is not None
    assert report.left_out == [LeftOut("calendar", 7, "http://a.example/c")]


def bad(job: Job, lpm: LocalPersistenceManager) -> int:
    """How many tasks should have brought a page."""
    report = lpm.receipt(job).crawl
    assert report is not None
    return report.bad


@pytest.mark.parametrize(
    ("role", "status", "reason", "is_bad"),
    [
        (Role.INDEX, TaskStatus.FAILED, "http_404", True),
        (Role.INDEX, TaskStatus.EXPIRED, "deadline", True),
        (Role.INDEX, TaskStatus.SKIPPED, "robots", False),
        (Role.INDEX, TaskStatus.SKIPPED, "out_of_scope", False),
        (Role.INDEX, TaskStatus.SKIPPED, "login_wall", False),
        (Role.INDEX, TaskStatus.SKIPPED, "redirected", False),
        (Role.INDEX, TaskStatus.SKIPPED, "cancelled", True),
        (Role.START, TaskStatus.SKIPPED, "robots", True),
        (Role.START, TaskStatus.SKIPPED, "out_of_scope", True),
        (Role.START, TaskStatus.SKIPPED, "redirected", False),
        (Role.SITEMAP, TaskStatus.SKIPPED, "sitemap", False),
        (Role.SITEMAP, TaskStatus.SKIPPED, "no_sitemap", False),
        (Role.SITEMAP, TaskStatus.SKIPPED, "no_robots_txt", False),
        (Role.SITEMAP, TaskStatus.FAILED, "bad_sitemap", True),
    ],
)
def test_what_makes_a_crawl_a_failure(
    tmp_path: Path, role: Role, status: TaskStatus, reason: str, is_bad: bool
) -> None:
    """Links may lead to where nothing may be fetched; a start may not, and no page may fail."""
    crawl = Crawl(tmp_path)
    [start] = crawl.claim()
    crawl.end(start, link("/1", role=role))
    [task] = crawl.claim()

    crawl.end(task, status=status, page=None, verdict=None, error_type=reason)

    assert bad(crawl.job, crawl.lpm) == is_bad


def test_rows_of_a_file_are_accounted_for(tmp_path: Path) -> None:
    """A row that means a start that is there already counts as known; the same file again adds
    nothing."""
    crawl = Crawl(tmp_path)
    starts = [
        Start(link("/s", role=Role.START, method="FORM", body=body), {"n": n}, line)
        for line, (body, n) in enumerate([("a", 1), ("b", 2), ("a", 3)], 2)
    ]

    added = [crawl.lpm.crawls.add_starts(crawl.job, starts, NOW, "rows.csv") for _ in range(2)]

    receipt = crawl.lpm.receipt(crawl.job)
    assert added == [2, 0]
    assert (receipt.rows, receipt.known, receipt.problems) == (4, 1, [])
