"""Firecrawl's official clients work against this server after a change of their base URL.

They are imported by the tests that use them: it takes seconds, and each process that runs tests
collects this module.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import websockets

from crawler.api.backend import MAX_DIRECT
from crawler.api.firecrawl_jobs import PAGE_DOCUMENTS
from crawler.batches import BatchOptions, submit
from crawler.config import Settings
from crawler.models import CrawlOptions
from crawler.scraping.scope import OUT, Scope
from tests.support.dialect_server import Server
from tests.support.pages import Answer, Pages, parcel
from tests.support.stack import Folder, wait_for

if TYPE_CHECKING:
    from firecrawl import Firecrawl

HAS_FORMATS = find_spec("crawler.page_formats") is not None
LOOPBACK = {"CRAWLER_ALLOW_NETS": "127.0.0.0/8", "CRAWLER_RATE": "none"}
PAUSE_S = 0.1
MISSING = "00000000-0000-8000-8000-000000000000"
HTML = {"Content-Type": "text/html; charset=utf-8"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the server."""
    return tmp_path_factory.mktemp("firecrawl") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    """A server that may fetch from loopback."""
    with Server(data, **LOOPBACK) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Firecrawl:
    """The official client, with another base URL."""
    from firecrawl import Firecrawl

    return Firecrawl(api_key="any", api_url=server.url)


@pytest.fixture
def web(pages: Pages) -> Pages:
    """A site: a start with links, a folder of posts, a sitemap, and a page that robots.txt
    forbids."""
    links = ("/blog/1", "/blog/2", "/about", "/secret", "/gone", "/list?page=2")
    start = parcel(0) + "".join(f'<a href="{link}">x</a>' for link in links)
    pages.answers |= {
        "/": Answer(start, headers=HTML),
        "/blog/1": Answer(parcel(1) + '<a href="/blog/1/more">x</a>', headers=HTML),
        "/blog/1/more": Answer(parcel(11), headers=HTML),
        "/blog/2": Answer(parcel(2), headers=HTML),
        "/about": Answer(parcel(3), headers=HTML),
        "/list?page=2": Answer(parcel(4), headers=HTML),
        "/robots.txt": Answer(
            f"User-agent: *\nDisallow: /secret\nSitemap: {pages.url}/sitemap.xml",
            headers={"Content-Type": "text/plain"},
        ),
        "/sitemap.xml": Answer(
            f"<urlset><url><loc>{pages.url}/only-listed</loc></url></urlset>",
            headers={"Content-Type": "application/xml"},
        ),
        "/only-listed": Answer(parcel(5), headers=HTML),
    }
    return pages


def paths_of(web: Pages, documents: Any) -> set[str]:
    """The paths of some documents."""
    return {each.metadata.source_url.removeprefix(web.url) for each in documents}


def post(server: Server, path: str, body: object, **headers: str) -> httpx.Response:
    """Send a body as any program would."""
    return httpx.post(f"{server.url}/v2/{path}", json=body, headers=headers, timeout=120)


def start_batch(server: Server, urls: list[str], **headers: str) -> dict[str, Any]:
    """Begin a batch by hand."""
    answer = post(server, "batch/scrape", {"urls": urls}, **headers)
    assert answer.status_code == 200, answer.text
    begun: dict[str, Any] = answer.json()
    return begun


def ended(client: Firecrawl, id_: str) -> Any:
    """A crawl that is completed."""
    status = client.get_crawl_status
    return wait_for(
        lambda: (now := status(id_)).status == "completed" and now, 60, "the end of a crawl"
    )


def held(web: Pages, path: str) -> threading.Event:
    """Let a path answer only after an event."""
    event = threading.Event()

    def rule(asked: str) -> None:
        if asked == path:
            event.wait(600)

    web.rule = rule
    return event


# One page


def test_scrape_gives_a_document(client: Firecrawl, web: Pages) -> None:
    """A page comes with what is known of it, and under the URL as it was given."""
    document = client.scrape(f"{web.url}/blog/1#top")

    about = document.metadata_typed
    assert about.title == "Parcel 1"
    assert (about.source_url, about.url) == (f"{web.url}/blog/1#top", f"{web.url}/blog/1")
    assert (about.status_code, about.content_type) == (200, HTML["Content-Type"])
    assert document.warning is None
    if HAS_FORMATS:
        assert "behind the mill" in (document.markdown or "")


def test_formats_and_warnings(client: Firecrawl, web: Pages) -> None:
    """Formats that are there come; those that are not, and options without effect, are told."""
    document = client.scrape(
        f"{web.url}/blog/1",
        formats=["markdown", "rawHtml", "links", {"type": "json", "prompt": "owner"}],
        mobile=True,
    )

    warning = document.warning or ""
    for name in ("the format json", "mobile", "skipTlsVerification"):
        assert name in warning
    if HAS_FORMATS:
        assert document.links == [f"{web.url}/blog/1/more"]
        assert (document.raw_html or "").startswith("<html>")


def test_an_error_page_is_a_document_with_its_status(client: Firecrawl, web: Pages) -> None:
    """As with Firecrawl, the status of the server is in the metadata."""
    document = client.scrape(f"{web.url}/nowhere")

    about = document.metadata_typed
    assert about.status_code == 404
    assert "404" in (about.error or "")


def test_failures_have_their_own_errors(client: Firecrawl, web: Pages) -> None:
    """A page that cannot be had at all is an error that says why."""
    from firecrawl.v2.utils.error_handler import (
        BadRequestError,
        DNSResolutionError,
        WebsiteNotSupportedError,
    )

    with pytest.raises(WebsiteNotSupportedError, match=r"robots\.txt"):
        client.scrape(f"{web.url}/secret")
    with pytest.raises(DNSResolutionError, match=r"nowhere\.invalid"):
        client.scrape("http://nowhere.invalid/")
    with pytest.raises(BadRequestError, match=r"actions\.0: executeJavascript is not supported"):
        client.scrape(web.url, actions=[{"type": "executeJavascript", "script": "1"}])


def test_a_wait_is_told_and_the_client_comes_again(client: Firecrawl, web: Pages) -> None:
    """A page that takes longer than the timeout is not fetched twice: the client is told to ask
    again, and finds the same job."""
    released = held(web, "/blog/2")
    timer = threading.Timer(2, released.set)
    timer.start()

    document = client.scrape(f"{web.url}/blog/2", timeout=1000, max_age=0)

    assert document.metadata_typed.title == "Parcel 2"
    assert web.paths() == ["/blog/2"]


def test_max_age_is_the_freshness_of_a_page(server: Server, web: Pages) -> None:
    """A page that was collected within it is not fetched again, unless headers are sent."""
    url = f"{web.url}/about"
    first = post(server, "scrape", {"url": url}).json()["data"]
    again = post(server, "scrape", {"url": url, "maxAge": 60_000}).json()["data"]

    assert again["metadata"]["cacheState"] == "hit"
    assert again["metadata"]["cachedAt"] == first["metadata"]["scrapedAt"]
    assert web.paths() == ["/about"]

    body = {"url": url, "maxAge": 60_000, "headers": {"X-Who": "me"}}
    own = post(server, "scrape", body).json()["data"]
    assert own["metadata"]["cacheState"] == "miss"
    assert web.asked[-1].headers["x-who"] == "me"


# Batches


def test_a_batch_of_several_pages(client: Firecrawl, web: Pages) -> None:
    """All documents come, in as many pages as they need; failures are in the errors."""
    urls = web.parcels(PAGE_DOCUMENTS + 5)
    job = client.start_batch_scrape([*urls, f"{web.url}/nowhere", "http://", "http://[bad"])
    status = client.get_batch_scrape_status
    found = wait_for(
        lambda: (now := status(job.id)).status == "completed" and now, 60, "the end of the batch"
    )

    assert job.invalid_urls == ["http://", "http://[bad"]
    assert (found.total, found.completed) == (len(urls) + 1, len(urls))
    assert sorted(each.metadata.source_url for each in found.data) == sorted(urls)
    errors = client.get_batch_scrape_errors(job.id).errors
    assert [(each.url, each.code) for each in errors] == [
        (f"{web.url}/nowhere", "http_404"),
        ("http://", "invalid_url"),
        ("http://[bad", "invalid_url"),
    ]
    skipped = httpx.get(f"{job.url}?skip={len(urls) - 2}").json()
    assert len(skipped["data"]) == 2
    assert skipped["next"] is None


def test_documents_can_be_followed_while_a_job_goes_on(server: Server, web: Pages) -> None:
    """The status alone has no documents; `next` leads to those that are there, and stays the same
    while there are no more."""
    released = held(web, "/blog/2")
    job = start_batch(server, [f"{web.url}/blog/1", f"{web.url}/blog/2"])

    def status(url: str) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(url).json()
        return answer

    first = wait_for(
        lambda: (now := status(job["url"]))["completed"] == 1 and now, 60, "the first page"
    )
    assert (first["status"], first["data"]) == ("scraping", [])
    page = status(first["next"])
    assert [each["metadata"]["sourceURL"] for each in page["data"]] == [f"{web.url}/blog/1"]
    waiting = status(page["next"])
    assert (waiting["data"], waiting["next"]) == ([], page["next"])

    released.set()
    rest = wait_for(lambda: (now := status(page["next"]))["data"] and now, 60, "the second page")
    assert [each["metadata"]["sourceURL"] for each in rest["data"]] == [f"{web.url}/blog/2"]
    wait_for(lambda: status(job["url"])["status"] == "completed", 60, "the end")
    assert status(page["next"])["next"] is None


def test_a_request_that_comes_again_is_one_job(server: Server, web: Pages) -> None:
    """With a key it is replayed; without one, an equal request within a short time is the same. A
    key with another request is refused."""
    urls = [f"{web.url}/blog/1", "http://"]
    keyed = [start_batch(server, urls, **{"x-idempotency-key": "k1"}) for _ in range(2)]
    equal = [start_batch(server, urls) for _ in range(2)]
    other = post(server, "batch/scrape", {"urls": urls[:1]}, **{"x-idempotency-key": "k1"})

    assert keyed[0] == keyed[1]
    assert equal[0] == equal[1]
    assert keyed[0]["id"] != equal[0]["id"]
    assert (other.status_code, other.json()["success"]) == (409, False)


def test_urls_are_appended_to_a_job(client: Firecrawl, web: Pages) -> None:
    """They become a part of it, also after it has ended."""
    from firecrawl.v2.utils.error_handler import FirecrawlError

    first = client.batch_scrape([f"{web.url}/blog/1"], poll_interval=PAUSE_S)
    assert first.total == 1
    job = client.start_batch_scrape([f"{web.url}/blog/1"])
    client.start_batch_scrape([f"{web.url}/about"], append_to_id=job.id)

    wait_for(lambda: client.get_batch_scrape_status(job.id).completed == 2, 60, "both pages")
    with pytest.raises(FirecrawlError, match="there is no job"):
        client.start_batch_scrape([f"{web.url}/about"], append_to_id=MISSING)


def test_a_killed_server_loses_no_job(tmp_path: Path, web: Pages) -> None:
    """More jobs than may run at a time are accepted, and the server is killed: after its start,
    each of them ends, and an equal request finds its job."""
    server = Server(tmp_path / "data", **LOOPBACK)
    with server:
        bodies = [[f"{web.url}/blog/1?n={n}", f"{web.url}/about?n={n}"] for n in range(6)]
        jobs = [start_batch(server, urls) for urls in bodies]
        server.stop(signal.SIGKILL)
        server.start()

        assert start_batch(server, bodies[-1])["id"] == jobs[-1]["id"]
        wait_for(
            lambda: {httpx.get(job["url"]).json()["status"] for job in jobs} == {"completed"},
            60,
            "the end of all jobs",
        )


def test_pages_that_wait_for_another_attempt_hold_no_job(server: Server, web: Pages) -> None:
    """Hosts without an address are tried again later. Meanwhile, other jobs get their turn."""
    dead = [start_batch(server, [f"http://nowhere.invalid/?n={n}"]) for n in range(MAX_DIRECT)]
    job = start_batch(server, [f"{web.url}/blog/1?again"])

    wait_for(lambda: httpx.get(job["url"]).json()["status"] == "completed", 60, "the job's turn")
    states = {httpx.get(each["url"]).json()["status"] for each in dead}
    assert states == {"scraping"}
    for each in dead:
        httpx.delete(each["url"])


# Crawls


def test_a_crawl_of_a_site(client: Firecrawl, web: Pages) -> None:
    """Links and sitemaps are followed, the rest is in the errors."""
    job = client.crawl(f"{web.url}/", poll_interval=PAUSE_S)

    everything = {"/", "/blog/1", "/blog/1/more", "/blog/2", "/about", "/list?page=2"}
    assert job.status == "completed"
    assert paths_of(web, job.data) == everything | {"/only-listed"}
    assert job.completed == len(job.data)
    started = client.start_crawl(f"{web.url}/", sitemap="skip")
    ended(client, started.id)
    errors = client.get_crawl_errors(started.id)
    assert [(each.url, each.code) for each in errors.errors] == [(f"{web.url}/gone", "http_404")]
    assert errors.robots_blocked == [f"{web.url}/secret"]
    assert client.cancel_crawl(started.id) is False


SCOPES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("/", {"include_paths": ["^/blog/[0-9]+$"]}, {"/", "/blog/1", "/blog/2"}),
    ("/", {"exclude_paths": ["blog", "list", "only"]}, {"/", "/about"}),
    ("/", {"max_discovery_depth": 0, "sitemap": "skip"}, {"/"}),
    ("/", {"sitemap": "only"}, {"/only-listed"}),
    ("/", {"limit": 1, "sitemap": "skip"}, {"/"}),
    ("/blog/1", {"sitemap": "skip"}, {"/blog/1", "/blog/1/more"}),
]


def test_the_scope_of_a_crawl(client: Firecrawl, web: Pages) -> None:
    """Patterns are searched in the path, and a crawl stays below its start."""
    jobs = [client.start_crawl(web.url + start, **options) for start, options, _ in SCOPES]

    for job, (_, options, expected) in zip(jobs, SCOPES, strict=True):
        assert paths_of(web, ended(client, job.id).data) == expected, options


def test_patterns_of_paths_see_no_host() -> None:
    """The host and the query are no part of the path."""
    options = CrawlOptions(
        starts=(), hosts=("a.example",), include=("^/x", "b"), exclude=("q",), on_path=True,
        below="/x",
    )  # fmt: skip
    scope = Scope(options)

    assert scope.refuses("https://a.example/x/1?q=1") == ""
    assert scope.refuses("https://a.example/b") == OUT
    assert scope.refuses("https://a.example/x/q") == OUT
    assert scope.refuses("https://a.example/b", is_start=True) == ""


def test_a_crawl_is_cancelled(client: Firecrawl, web: Pages) -> None:
    """While it goes on it is among the active ones; cancelled, it ends and says so."""
    released = held(web, "/blog/2")
    job = client.start_crawl(f"{web.url}/", limit=50)

    active = [each.id for each in client.get_active_crawls().crawls]
    assert job.id in active
    wait_for(lambda: "/blog/2" in web.paths(), 60, "a page in flight")
    assert client.cancel_crawl(job.id) is True
    assert client.get_crawl_status(job.id).status == "cancelled"
    assert job.id not in [each.id for each in client.get_active_crawls().crawls]
    released.set()
    assert client.cancel_crawl(job.id) is True


def test_workers_fetch_the_pages_if_there_are_any(
    folder: Folder, redis_url: str, web: Pages
) -> None:
    """Batches and crawls go through the queues of a stack, and need no process of their own."""
    from firecrawl import Firecrawl

    settings = LOOPBACK | {"REDIS_URL": redis_url}
    folder.env |= settings
    folder.worker(1)
    with Server(folder.data, **settings) as server:
        client = Firecrawl(api_key="any", api_url=server.url)
        job = client.start_crawl(f"{web.url}/", sitemap="skip")
        document = client.scrape(f"{web.url}/about")

        assert document.metadata_typed.title == "Parcel 3"
        assert "/blog/1/more" in paths_of(web, ended(client, job.id).data)
    assert not (folder.data / "logs" / "direct.log").exists()


def test_a_map(client: Firecrawl, web: Pages) -> None:
    """Sitemaps come first, then the links of the start; those with a query are left out."""
    found = [each.url.removeprefix(web.url) for each in client.map(web.url).links]

    assert found == ["/only-listed", "/", "/blog/1", "/blog/2", "/about", "/secret", "/gone"]


# Watching


def test_the_watcher_hears_of_pages_and_failures(client: Firecrawl, web: Pages) -> None:
    """Each page comes once, a failure as a document with its error, and then the end."""
    released = held(web, "/blog/2")
    job = client.start_crawl(f"{web.url}/", sitemap="skip")
    heard: list[dict[str, Any]] = []
    is_over = threading.Event()
    watcher = client.watcher(job.id, kind="crawl", timeout=120)
    watcher.add_event_listener("document", lambda event: heard.append(event["data"]["metadata"]))
    watcher.add_event_listener("done", lambda event: is_over.set())
    watcher.start()
    wait_for(lambda: heard, 60, "the first document")
    released.set()

    assert is_over.wait(120)
    told = [each["sourceURL"].removeprefix(web.url) for each in heard]
    wanted = ["/", "/about", "/blog/1", "/blog/1/more", "/blog/2", "/gone", "/list?page=2"]
    assert sorted(path for path in told if path != "/secret") == wanted
    assert {each.get("errorCode") for each in heard} >= {"http_404", "robots"}
    watcher.stop()


def test_a_socket_shows_its_key_as_subprotocol(server: Server, web: Pages) -> None:
    """As the JavaScript client does. A job that has ended is told from its beginning; one that is
    not there is an error."""
    job = start_batch(server, [f"{web.url}/blog/1", f"{web.url}/nowhere"])
    base = server.url.replace("http", "ws", 1)

    async def messages(id_: str) -> list[dict[str, Any]]:
        path = f"{base}/v2/batch/scrape/{id_}"
        async with websockets.connect(path, subprotocols=["key"]) as socket:  # type: ignore[list-item]
            assert socket.subprotocol == "key"
            return [json.loads(text) async for text in socket]

    asyncio.run(messages(job["id"]))
    told = asyncio.run(messages(job["id"]))
    assert [each["type"] for each in told] == ["catchup", "document", "done"]
    assert [each["metadata"]["sourceURL"] for each in told[0]["data"]["data"]] == [
        f"{web.url}/blog/1"
    ]
    assert told[1]["data"]["metadata"]["errorCode"] == "http_404"
    assert (told[2]["data"]["status"], told[2]["data"]["total"]) == ("completed", 2)
    assert [each["type"] for each in asyncio.run(messages(MISSING))] == ["error"]


def test_the_asynchronous_client(server: Server, web: Pages) -> None:
    """It does all that the synchronous one does."""
    asyncio.run(use_asynchronous_client(server, web))


async def use_asynchronous_client(server: Server, web: Pages) -> None:
    """Ask for everything once."""
    from firecrawl import AsyncFirecrawl
    from firecrawl.v2.types import ScrapeOptions
    from firecrawl.v2.watcher_async import AsyncWatcher

    client = AsyncFirecrawl(api_key="any", api_url=server.url)
    options = ScrapeOptions(formats=["markdown"], skip_tls_verification=True)
    urls = [f"{web.url}/blog/1", f"{web.url}/about"]

    document = await client.scrape(urls[1])
    batch = await client.start_batch_scrape(urls, options=options)
    job = await client.start_crawl(f"{web.url}/", limit=2, scrape_options=options)
    snapshots = [each async for each in AsyncWatcher(client, job.id, kind="crawl", timeout=120)]
    found = await client.map(web.url)

    assert document.metadata_typed.title == "Parcel 3"
    assert snapshots[-1].status == "completed"
    assert len(snapshots[-1].data) == 2
    assert len(found.links) == 7
    watched = AsyncWatcher(client, batch.id, kind="batch", timeout=120)
    *_, state = [each async for each in watched]
    assert state.status == "completed"
    assert paths_of(web, state.data) == {"/blog/1", "/about"}
    assert "skipTlsVerification" in (state.data[0].warning or "")
    assert (await client.get_batch_scrape_errors(batch.id))["errors"] == []


def test_the_loader_of_langchain(server: Server, web: Pages) -> None:
    """Its modes scrape, crawl and map give documents."""
    from langchain_firecrawl import FirecrawlLoader

    def load(mode: Any, **params: Any) -> list[Any]:
        loader = FirecrawlLoader(
            f"{web.url}/", api_key="any", api_url=server.url, mode=mode, params=params
        )
        return loader.load()

    found = [each.page_content for each in load("map", search="BLOG")]
    assert found == [f"{web.url}/blog/1", f"{web.url}/blog/2"]
    pages = load("scrape") + load("crawl", limit=3, poll_interval=PAUSE_S)
    if HAS_FORMATS:
        assert len(pages) == 4
        assert all("behind the mill" in each.page_content for each in pages)


# Who may ask for what


def test_jobs_of_others_are_not_there(server: Server, data: Path, web: Pages) -> None:
    """Neither a job of another client nor one of the other kind is found."""
    job = start_batch(server, [f"{web.url}/blog/1"])
    foreign = "11111111-0000-8000-8000-000000000000"
    submit(
        Settings(data_dir=data),
        foreign,
        [f"{web.url}/blog/1"],
        BatchOptions(),
        direct=False,
        client="another",
        note=lambda lpm, its: lpm.batches.keep_notes(its, {"v2": "batch"}),
    )

    for path in (f"batch/scrape/{foreign}", f"crawl/{job['id']}", f"crawl/{MISSING}/errors"):
        answer = httpx.get(f"{server.url}/v2/{path}")
        assert (answer.status_code, answer.json()["success"]) == (404, False)
    assert httpx.delete(f"{server.url}/v2/batch/scrape/{foreign}").status_code == 404


URL = "http://a.example/"
HOSTILE: list[tuple[str, object, int, str]] = [
    ("scrape", {}, 400, "url"),
    ("scrape", [], 400, ""),
    ("scrape", {"url": 5}, 400, "url"),
    ("scrape", {"url": ""}, 400, "empty"),
    ("scrape", {"url": "ftp://a.example/"}, 400, "http"),
    ("scrape", {"url": "http://[::1"}, 400, "not a URL"),
    ("scrape", {"url": "http://a\x00b/"}, 400, "not a URL"),
    ("scrape", {"url": "x" * 20_000}, 400, "url"),
    ("scrape", {"url": URL, "colour": 1}, 400, "colour"),
    ("scrape", {"url": URL, "formats": ["gif"]}, 400, "formats"),
    ("scrape", {"url": URL, "formats": [{"type": "json"}]}, 400, "language model"),
    ("scrape", {"url": URL, "timeout": -1}, 400, "timeout"),
    ("scrape", {"url": URL, "timeout": 10**30}, 400, "timeout"),
    ("scrape", {"url": URL, "maxAge": "1"}, 400, "maxAge"),
    ("scrape", {"url": URL, "headers": {"a b": "c"}}, 400, "a b"),
    ("scrape", {"url": URL, "headers": {"X": "a\r\nY: b"}}, 400, ""),
    ("scrape", {"url": URL, "redactPII": True}, 400, "redactPII"),
    ("scrape", {"url": URL, "zeroDataRetention": True}, 400, "stores every page"),
    ("scrape", {"url": "http://10.0.0.1/"}, 403, "private"),
    ("scrape", {"url": "http://169.254.169.254/latest/meta-data"}, 403, ""),
    ("scrape", {"url": "http://[::ffff:10.0.0.1]/"}, 403, ""),
    ("scrape", {"url": "http://0x0a000001/"}, 403, ""),
    ("batch/scrape", {"urls": []}, 400, "urls"),
    ("batch/scrape", {"urls": "http://a.example/"}, 400, "urls"),
    ("batch/scrape", {"urls": [URL] * 10_001}, 400, "urls"),
    ("batch/scrape", {"urls": ["http://"]}, 400, "urls"),
    ("batch/scrape", {"urls": [URL, "http://"], "ignoreInvalidURLs": False}, 400, "urls"),
    ("batch/scrape", {"urls": ["http://10.0.0.1/", "http://10.0.0.2/"]}, 403, ""),
    ("batch/scrape", {"urls": [URL], "appendToId": "x"}, 404, "no job"),
    ("batch/scrape", {"urls": [URL], "webhook": 5}, 400, "webhook"),
    ("crawl", {"url": URL, "includePaths": ["("]}, 400, "regular expression"),
    ("crawl", {"url": URL, "excludePaths": [r"(a)\1"]}, 400, "regular expression"),
    ("crawl", {"url": URL, "limit": 0}, 400, "limit"),
    ("crawl", {"url": URL, "sitemap": "perhaps"}, 400, "sitemap"),
    ("crawl", {"url": URL, "delay": 1e9}, 400, "delay"),
    ("crawl", {"url": URL, "allowExternalLinks": True}, 400, "allowExternalLinks"),
    ("crawl", {"url": "http://co.uk/", "allowSubdomains": True}, 400, "allowSubdomains"),
    ("crawl", {"url": URL, "scrapeOptions": {"colour": 1}}, 400, "scrapeOptions.colour"),
    ("crawl", {"url": "http://192.168.1.1/"}, 403, ""),
    ("map", {"url": "http://192.168.1.1/"}, 403, ""),
    ("map", {"url": URL, "limit": 10**9}, 400, "limit"),
    ("search", {"query": "x"}, 404, "search"),
]


@pytest.mark.parametrize(("path", "body", "status", "told"), HOSTILE)
def test_odd_requests(server: Server, path: str, body: object, status: int, told: str) -> None:
    """Each gets a clear answer that names what is wrong."""
    answer = post(server, path, body)

    assert answer.status_code == status, answer.text
    assert answer.json()["success"] is False
    assert told in answer.json()["error"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"[" * 200_000, 400),
        (b'{"url": "http://a.example/\\ud800"}', 400),
        (b'{"\\ud800": 1, "url": "http://a.example/"}', 400),
        (b'{"url": "http://a.example/", "headers": {"X": "\\ud800"}}', 400),
        (b"\xff\xfe", 400),
        (b'{"url": "' + b"a" * 11_000_000 + b'"}', 413),
    ],
)
def test_broken_bodies(server: Server, raw: bytes, status: int) -> None:
    """What is no JSON, or too large, is refused in the same shape."""
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}/v2/scrape", content=raw, headers=headers, timeout=60)

    assert (answer.status_code, answer.json()["success"]) == (status, False)


def test_nothing_reaches_this_machine(tmp_path: Path, web: Pages) -> None:
    """Unless the operator has opened its network, no request does."""
    with Server(tmp_path / "data") as server:
        asked: list[Callable[[], httpx.Response]] = [
            lambda: post(server, "scrape", {"url": web.url}),
            lambda: post(server, "scrape", {"url": web.url.replace("127.0.0.1", "localhost")}),
            lambda: post(server, "batch/scrape", {"urls": [web.url]}),
            lambda: post(server, "crawl", {"url": web.url}),
            lambda: post(server, "map", {"url": web.url}),
        ]
        for ask in asked:
            assert ask().status_code == 403
    assert web.asked == []
