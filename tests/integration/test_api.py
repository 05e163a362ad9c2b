"""The HTTP API, through its door: real processes, real clients."""

import contextlib
import hmac
import json
import os
import re
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from crawler.api.limits import MAX_BODY, MAX_URLS
from tests.support.api_server import Answer, ApiServer, messages
from tests.support.site import Site
from tests.support.stack import PATIENCE_S, Folder, wait_for

TOKEN = "open-sesame-8"
SHAPE = {"error", "code"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server without tokens, for all tests that do not end it."""
    with ApiServer(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server with the operator's token."""
    path = tmp_path_factory.mktemp("guarded")
    with ApiServer(path, token=TOKEN, CRAWLER_API_TOKEN=TOKEN) as server:
        yield server


def client_of(server: ApiServer, name: str, *options: str) -> ApiServer:
    """The same server as another client sees it."""
    done = server.folder.crawler("serve", "token", "add", name, *options)
    assert done.returncode == 0, done.stderr
    other = ApiServer(server.folder.path, token=done.stdout.strip())
    other.url = server.url
    return other


def refused(answer: Answer, status: int, code: str) -> bool:
    """Whether an answer is this refusal, in the one shape."""
    assert set(answer.body) == SHAPE, answer
    return (answer.status, answer.body["code"]) == (status, code)


# Batches


def test_a_batch_answers_in_the_order_asked(api: ApiServer, site: Site) -> None:
    """Each URL has a result, with the fields that users know; failures have their reason."""
    given = [site.page(2), f"{site.url}/status/404", "no url", site.page(1)]

    status, body, _ = api.batch(given, session_id="in-order")

    good, lost, bad, last = body["results"]
    assert (status, body["status"], body["session_id"]) == (200, "done", "in-order")
    assert [good["url"], lost["url"], bad["url"], last["url"]] == given
    assert (good["status"], good["title"]) == ("success", "Parcel 2 - Millbrook County")
    assert good["data"]["title"] == good["title"]
    assert good["metadata"]["status_code"] == 200
    assert {"session_id", "worker_id", "crawled_at", "task_id"} <= set(good)
    assert (lost["status"], lost["reason"], bad["reason"]) == ("failed", "http_404", "invalid_url")
    assert lost["error"]
    numbers = body["statistics"]
    assert (numbers["total"], numbers["success"], numbers["failed"]) == (4, 2, 2)
    assert numbers["workers_used"] == 1


def test_an_empty_list_is_no_error(api: ApiServer) -> None:
    """No URLs are 200 with no results, and make no session."""
    status, body, _ = api.batch([])

    assert (status, body["results"], body["statistics"]["total"]) == (200, [], 0)
    assert api.batch([], session_id="never").status == 200
    assert refused(api.ask("GET", "/api/crawl/never"), 404, "not_found")


def test_without_waiting_results_come_by_cursor(api: ApiServer, site: Site) -> None:
    """`wait: false` answers 202 with links; each result comes once over several pages."""
    given = [site.page(n) for n in range(7)]

    status, body, _ = api.batch(given, wait=False)
    session = body["links"]["self"]
    wait_for(lambda: api.ask("GET", session).body["status"] == "done", 30, "the crawl")
    seen, cursor, is_complete = [], 0, False
    while not is_complete:
        page = api.ask("GET", f"{session}?cursor={cursor}&limit=3").body
        seen += [each["url"] for each in page["results"]]
        cursor, is_complete = page["cursor"], page["is_complete"]

    assert status == 202
    assert sorted(seen) == sorted(given)


def test_a_timeout_leaves_the_crawl_going(api: ApiServer, site: Site) -> None:
    """After `timeout` the answer is 202 with what is there; the same call again has the rest."""
    given = [site.page(1), f"{site.url}/hold"]
    api.batch(given[:1], session_id="slow")

    first = api.batch(given, session_id="slow", timeout=1)
    site.release()
    again = api.batch(given, session_id="slow")

    assert (first.status, first.body["status"]) == (202, "pending")
    assert [each["status"] for each in first.body["results"]] == ["success", "pending"]
    assert (again.status, again.body["statistics"]["success"]) == (200, 2)
    assert max(site.hits().values()) == 1


def test_the_same_session_is_one_crawl_and_may_grow(api: ApiServer, site: Site) -> None:
    """The same URLs again are not fetched again; further URLs are added."""
    first = api.batch([site.page(1)], session_id="grows")
    again = api.batch([site.page(1)], session_id="grows")
    more = api.batch([site.page(1), site.page(2)], session_id="grows")

    assert first.body["results"] == again.body["results"]
    assert more.body["statistics"]["success"] == 2
    assert site.hits() == {"/page/1": 1, "/page/2": 1}
    assert api.ask("GET", "/api/crawl/grows").body["status"] == "done"


def test_an_idempotency_key_survives_a_restart(tmp_path: Path, site: Site) -> None:
    """The same key is the same crawl, also after a kill; with another body it is refused."""
    body, key = {"urls": [site.page(1)]}, {"Idempotency-Key": "order-1"}
    with ApiServer(tmp_path) as api:
        first = api.ask("POST", "/api/crawl/batch", body, key)
        api.end(signal.SIGKILL)
        api.start()
        again = api.ask("POST", "/api/crawl/batch", body | {"timeout": 5}, key)
        other = api.ask("POST", "/api/crawl/batch", {"urls": [site.page(2)]}, key)
        scraped = api.ask("POST", "/api/scrape", {"url": site.page(3)}, key)

    assert first.status == again.status == 200
    assert first.body["session_id"] == again.body["session_id"]
    assert first.body["results"] == again.body["results"]
    assert refused(other, 409, "key_reused")
    assert refused(scraped, 409, "key_reused")
    assert site.hits() == {"/page/1": 1}


def test_a_killed_server_loses_nothing(tmp_path: Path, site: Site) -> None:
    """A batch that was answered with 202 is done after a kill, and a cut stream goes on behind its
    last number: each URL once."""
    given = [site.page(n, latency_s=0.05) for n in range(40)]
    seen: list[dict[str, Any]] = []
    with ApiServer(tmp_path) as api:
        assert api.batch(given, session_id="big", wait=False).status == 202
        with api.socket("big") as stream:
            for message in messages(stream):
                seen += [message] * (message["type"] == "result")
                if len(seen) == 5:
                    break
            api.end(signal.SIGKILL)
        api.start()
        with api.socket("big", seen[-1]["seq"]) as stream:
            seen += [each for each in messages(stream) if each["type"] == "result"]
        books = api.ask("GET", "/api/crawl/big").body

    assert Counter(each["url"] for each in seen) == Counter(given)
    assert [each["seq"] for each in seen] == sorted({each["seq"] for each in seen})
    assert (books["status"], books["books"]["completed"]) == ("done", 40)


def test_a_cancelled_session_ends(api: ApiServer, site: Site) -> None:
    """DELETE skips what has not begun; the session takes no more URLs, and shows what it has."""
    given = [f"{site.url}/hold?{n}" for n in range(30)]
    api.batch(given, session_id="stopped", wait=False)

    cancelled = api.ask("DELETE", "/api/crawl/stopped")
    site.release()
    done = wait_for(
        lambda: (
            (body := api.ask("GET", "/api/crawl/stopped?limit=1000").body)["is_complete"] and body
        ),
        30,
        "the end of the session",
    )

    assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
    assert done["done"] == done["total"] == 30
    assert done["books"]["skipped"] > 0
    assert refused(api.batch([site.page(1)], session_id="stopped"), 409, "cancelled")
    assert api.batch(given, session_id="stopped").status == 200
    assert refused(api.ask("DELETE", "/api/crawl/nobody"), 404, "not_found")


def test_distributed_without_redis_accepts_nothing(api: ApiServer, site: Site) -> None:
    """`distributed: true` with `wait` is 503 without Redis, and leaves no session."""
    answer = api.batch([site.page(1)], session_id="far", distributed=True)

    assert refused(answer, 503, "unavailable")
    assert refused(api.ask("GET", "/api/crawl/far"), 404, "not_found")
    status = api.ask("GET", "/api/crawl/distributed/status").body
    assert (status["available"], status["redis"], status["workers"]) == (False, False, 0)


def test_workers_fetch_distributed_batches(tmp_path: Path, site: Site, redis_url: str) -> None:
    """With Redis and a worker, batches and single pages go through the workers."""
    with ApiServer(tmp_path, REDIS_URL=redis_url, CRAWLER_RATE="50/s") as api:
        api.folder.make_store()
        api.folder.worker(1)
        batch = api.batch([site.page(n) for n in range(5)], distributed=True)
        single = api.ask("POST", "/api/scrape", {"url": site.page(9)})
        status = api.ask("GET", "/api/crawl/distributed/status").body
        domains = api.ask("GET", "/api/domains").body["domains"]

    assert (batch.status, batch.body["statistics"]["success"]) == (200, 5)
    assert (single.status, single.body["status"]) == (200, "success")
    assert "direct" not in single.body["worker_id"]
    assert (status["available"], status["workers"]) == (True, 1)
    assert [each["domain"] for each in domains] == ["127.0.0.1"]


# Single pages, results and the ledger


def test_scrape_and_what_the_ledger_tells(api: ApiServer, site: Site) -> None:
    """One page now; its result, its stored page, its history and its job are there afterwards."""
    url = site.page(5)

    status, body, _ = api.ask("POST", "/api/scrape", {"url": url})
    result = api.ask("GET", f"/api/results/{body['task_id']}")
    page = api.ask("GET", f"/api/results/{body['task_id']}/page")
    why = api.ask("GET", f"/api/why?url={url}")
    jobs = api.ask("GET", "/api/jobs?limit=1000").body["jobs"]

    assert (status, body["status"], body["title"]) == (200, "success", result.body["title"])
    assert result.body == body
    assert b"Parcel 5" in page.body
    assert page.headers["content-security-policy"].startswith("sandbox")
    assert "completed" in [step["what"] for step in why.body["tasks"][0]["steps"]]
    [books] = [job["books"] for job in jobs if job["name"] == body["session_id"]]
    states = ("pending", "processing", "completed", "failed", "skipped", "expired")
    assert books == {"accepted": 1} | dict.fromkeys(states, 0) | {"completed": 1}
    assert refused(api.ask("GET", f"/api/results/{'0' * 32}"), 404, "not_found")
    assert refused(api.ask("GET", "/api/why?url=http://never.example/"), 404, "not_found")


def test_results_of_other_doors_are_shown(tmp_path: Path, site: Site) -> None:
    """The operator sees results of `scrape` on the command line, too."""
    with ApiServer(tmp_path) as api:
        done = api.folder.crawler("scrape", site.page(1), "--json")
        task = json.loads(done.stdout)["task_id"]

        assert api.ask("GET", f"/api/results/{task}").body["status"] == "success"
        assert b"Parcel 1" in api.ask("GET", f"/api/results/{task}/page").body


def test_headers_are_sent_and_stay_secret(api: ApiServer, site: Site) -> None:
    """Options reach the fetch, and a secret header is in no file that others can read."""
    secret = "s3cret-8f1c2b"
    options = {"headers": {"X-Key": secret}}

    body = api.batch([site.page(1)], session_id="secret", options=options).body

    assert body["statistics"]["success"] == 1
    files = [path for path in api.folder.data.rglob("*") if path.is_file()]
    holders = [path for path in files if secret.encode() in path.read_bytes()]
    assert {path.parent.name for path in holders} == {"sessions"}
    assert {path.stat().st_mode & 0o077 for path in holders} == {0}


# Streams


def events(server: ApiServer, path: str, **headers: str) -> list[dict[str, Any]]:
    """The Server-Sent Events of a path, each with its id and kind."""
    answer = server.ask("GET", path, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            found.append(fields)
    return found


def test_rows_that_are_no_url_are_handed_on_once(tmp_path: Path, site: Site) -> None:
    """A cursor behind them stays behind them, also before any page has ended."""
    with ApiServer(tmp_path) as server:
        given = ["no url", "ftp://x/", f"{site.url}/hold/1"]
        assert server.batch(given, session_id="rows", wait=False).status == 202
        first = server.ask("GET", "/api/crawl/rows").body
        again = server.ask("GET", f"/api/crawl/rows?cursor={first['cursor']}").body
        then = server.ask("GET", f"/api/crawl/rows?cursor={again['cursor']}").body
        site.release()

        assert [each["url"] for each in first["results"]] == given[:2]
        assert (again["results"], then["results"]) == ([], [])


def test_a_session_that_grows_hands_on_its_new_rows_that_are_no_url(
    tmp_path: Path, site: Site
) -> None:
    """Whoever has read the first call gets each row of the later ones once, by any way."""
    with ApiServer(tmp_path) as server, Receiver(refusals=0) as receiver:
        path = "/api/crawl/g"
        server.batch(["no url", site.page(1)], session_id="g", webhook={"url": receiver.url})
        first = server.ask("GET", path).body
        server.batch(["bad two", site.page(2)], session_id="g")
        second = server.ask("GET", f"{path}?cursor={first['cursor']}").body
        wait_for(lambda: "bad two" in str(receiver.told("results")), 30, "the second call's rows")
        server.batch(["bad three"], session_id="g")
        behind = f"cursor={second['cursor']}"
        third = server.ask("GET", f"{path}?{behind}").body
        lines = server.ask("GET", f"{path}/results.ndjson?{behind}").body.splitlines()
        sent = events(server, f"{path}/events?{behind}")
        with server.socket("g", second["cursor"]) as stream:
            by_socket = [each["url"] for each in messages(stream) if each["type"] == "result"]
        wait_for(lambda: "bad three" in str(receiver.told("results")), 30, "the third call's row")
        whole = server.ask("GET", path).body

    assert [each["url"] for each in first["results"]] == ["no url", site.page(1)]
    assert [each["url"] for each in second["results"]] == ["bad two", site.page(2)]
    assert [each["url"] for each in third["results"]] == by_socket == ["bad three"]
    assert [json.loads(line)["url"] for line in lines] == ["bad three"]
    assert [json.loads(each["data"]).get("url") for each in sent] == ["bad three", None, None]
    pages = first["results"] + second["results"] + third["results"]
    assert whole["results"] == pages
    assert [each["seq"] for each in pages] == sorted({each["seq"] for each in pages})
    assert whole["is_complete"]
    assert whole["total"] == len(pages) == 5
    pushed = [row["url"] for each in receiver.told("results") for row in each["results"]]
    assert pushed == [each["url"] for each in pages]


def test_server_sent_events_resume(api: ApiServer, site: Site) -> None:
    """`Last-Event-ID` goes on behind a result: nothing is lost and nothing comes twice."""
    given = ["nonsense", *(site.page(n) for n in range(30))]
    api.batch(given, session_id="events")
    path = "/api/crawl/events/events"

    whole = [each for each in events(api, path) if each["event"] == "result"]
    for cut in (0, 1, 12, 30):
        rest = events(api, path, **{"Last-Event-ID": whole[cut]["id"]})

        assert [each for each in rest if each["event"] == "result"] == whole[cut + 1 :]
        assert rest[-1]["event"] == "done"
    assert [json.loads(each["data"])["url"] for each in whole][:1] == ["nonsense"]
    assert len(whole) == 31


def test_ndjson_has_one_result_per_line(api: ApiServer, site: Site) -> None:
    """With `follow` the lines come until the session ends; without, those that are there."""
    given = [site.page(n, latency_s=0.02) for n in range(25)]
    api.batch(given, session_id="lines", wait=False)
    path = "/api/crawl/lines/results.ndjson"

    followed = api.ask("GET", f"{path}?follow=true").body.decode().splitlines()
    again = api.ask("GET", path).body.decode().splitlines()
    behind = api.ask("GET", f"{path}?cursor={json.loads(again[9])['seq']}").body.decode()

    assert sorted(json.loads(line)["url"] for line in followed) == sorted(given)
    assert followed == again
    assert behind.splitlines() == again[10:]


def test_a_removed_session_is_not_taken_for_a_new_one_of_its_name(tmp_path: Path) -> None:
    """After `prune`, a stream of a new session has none of the results that streams of the old one
    shared."""

    def shown(word: str) -> set[str]:
        server.batch([f"{word} {n}" for n in range(30)], session_id="again", wait=False)
        lines = server.ask("GET", "/api/crawl/again/results.ndjson").body.splitlines()
        assert len(lines) == 30
        return {json.loads(line)["url"].split()[0] for line in lines}

    with ApiServer(tmp_path) as server:
        assert shown("old") == {"old"}
        server.batch(["no URL"], session_id="newest")  # which `prune` would keep
        done = server.folder.crawler("prune", "--jobs", "--older-than", "0s")
        assert done.returncode == 0, done.stderr
        assert server.ask("GET", "/api/crawl/again").status == 404

        assert shown("new") == {"new"}


def test_a_websocket_tells_progress_and_the_end(api: ApiServer, site: Site) -> None:
    """Results come with rising numbers, progress between them, `done` at last; then it closes."""
    api.batch([site.page(n, latency_s=0.02) for n in range(10)], session_id="ws", wait=False)

    with api.socket("ws") as stream:
        stream.send("what a client says is ignored")
        got = list(messages(stream))

    kinds = [each["type"] for each in got]
    assert kinds.count("result") == 10
    assert (kinds[-1], got[-1]["done"], got[-1]["total"]) == ("done", 10, 10)
    assert "progress" in kinds


def test_a_websocket_is_refused_in_words(api: ApiServer) -> None:
    """An unknown session or a bad cursor is an HTTP answer with the usual shape."""
    unknown = "nobody/x"  # which makes a path that there is not
    for session_id, cursor, status in (("nobody", 0, 404), ("nobody", "x", 422), (unknown, 0, 404)):
        with pytest.raises(InvalidStatus) as caught:
            api.socket(session_id, cursor)  # type: ignore[arg-type]

        response = caught.value.response
        assert response.status_code == status
        assert set(json.loads(response.body or b"{}")) == SHAPE


def test_silent_clients_hold_nobody_up(api: ApiServer, site: Site) -> None:
    """Streams whose clients read nothing neither stop a crawl nor other streams."""
    given = [site.page(n) for n in range(300)]
    api.batch([f"{site.url}/hold"], session_id="crowd", wait=False)
    silent = [_silent_socket(api, "crowd") for _ in range(40)]
    try:
        api.batch(given, session_id="crowd", wait=False)
        site.release()
        with api.socket("crowd") as stream:
            urls = [each["url"] for each in messages(stream) if each["type"] == "result"]
    finally:
        for connection in silent:
            connection.close()

    assert len(urls) == len(set(urls)) == 301
    assert api.ask("GET", "/health").status == 200


def _silent_socket(api: ApiServer, session_id: str) -> socket.socket:
    """A WebSocket whose client never reads."""
    address = urlsplit(api.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((address.hostname, address.port))
    connection.sendall(
        f"GET /api/crawl/{session_id}/stream HTTP/1.1\r\nHost: {address.netloc}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    return connection


# Webhooks


class Receiver:
    """A server that takes webhooks, after it has refused the first few."""

    def __init__(self, refusals: int) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        left = [refusals]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                left[0] -= 1
                if left[0] < 0:
                    self.bodies.append((handler.headers["X-Crawler-Signature"], body))
                handler.send_response(500 if left[0] >= 0 else 204)
                handler.end_headers()

            def log_message(handler, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def told(self, event: str) -> list[dict[str, Any]]:
        """The bodies of an event so far."""
        found = [json.loads(body) for _, body in self.bodies]
        return [body for body in found if body["event"] == event]


def test_webhooks_are_delivered_after_failures_and_a_kill(tmp_path: Path, site: Site) -> None:
    """Each result is told at least once, signed, and at last the end; secrets are in one file."""
    secret = "hook-s3cret-77"
    given = ["no url", *(site.page(n) for n in range(15))]
    with Receiver(refusals=2) as receiver, ApiServer(tmp_path) as api:
        webhook = {"url": f"{receiver.url}?key=hidden-8", "secret": secret}
        assert api.batch(given, session_id="told", wait=False, webhook=webhook).status == 202
        wait_for(lambda: "tried again" in api.log(), 30, "the first failure")
        api.end(signal.SIGKILL)
        api.start()
        wait_for(lambda: receiver.told("done"), 60, "the end of the session")
        results = [each for body in receiver.told("results") for each in body["results"]]
        files = [path for path in api.folder.data.rglob("*") if path.is_file()]
        holders = [path for path in files if secret.encode() in path.read_bytes()]
        logged = api.log()

    assert {each["url"] for each in results} == set(given)
    [done] = receiver.told("done")
    assert (done["session_id"], done["session"]["done"]) == ("told", 16)
    for signature, body in receiver.bodies:
        expected = hmac.new(secret.encode(), body, "sha256").hexdigest()
        assert signature == f"sha256={expected}"
    assert [path.parent.name for path in holders] == ["sessions"]
    assert holders[0].stat().st_mode & 0o077 == 0
    assert secret not in logged
    assert "hidden-8" not in logged


def test_webhooks_lead_nowhere_inside(api: ApiServer, site: Site) -> None:
    """A webhook's address is under the egress rule, and must be an address."""
    for url, status, code in (
        ("http://169.254.169.254/", 403, "forbidden_address"),
        ("http://10.1.1.1/hook", 403, "forbidden_address"),
        ("ftp://example.com/", 400, "bad_url"),
        ("http://me:pass@example.com/", 400, "bad_url"),
    ):
        answer = api.batch([site.page(1)], session_id="inside", webhook={"url": url})
        assert refused(answer, status, code)
        assert ("CRAWLER_ALLOW_NETS" in answer.body["error"]) == (status == 403)
    assert refused(api.ask("GET", "/api/crawl/inside"), 404, "not_found")


# Tokens


def test_a_token_opens_the_door(guarded: ApiServer) -> None:
    """Without the right token every path but the monitors' is 401, also for WebSockets."""
    right = guarded.ask("GET", "/api/jobs")
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        stranger = ApiServer(guarded.folder.path)
        stranger.url = guarded.url
        for path in ("/api/jobs", "/openapi.json", "/nowhere"):
            answer = stranger.ask("GET", path, headers=header)
            assert refused(answer, 401, "no_token")
            assert answer.headers["www-authenticate"] == "Bearer"
        with pytest.raises(InvalidStatus, match="401"):
            stranger.socket("any")
        assert stranger.ask("GET", "/health").body == {"status": "ok"}
        assert stranger.ask("GET", "/ready").body == {"status": "ok"}

    assert right.status == 200


def test_clients_see_only_their_own(guarded: ApiServer, site: Site) -> None:
    """Sessions, results, pages, histories and jobs of others are not there."""
    ann, bob = client_of(guarded, "ann"), client_of(guarded, "bob")
    url = site.page(77)

    task = ann.batch([url], session_id="shared").body["results"][0]["task_id"]

    for path in (
        "/api/crawl/shared", "/api/crawl/shared/events", "/api/crawl/shared/results.ndjson",
        f"/api/results/{task}", f"/api/results/{task}/page", f"/api/why?url={url}",
        f"/api/why?url={task}",
    ):  # fmt: skip
        assert ann.ask("GET", path).status == 200
        assert bob.ask("GET", path).status == 404
        if "/crawl/" not in path:
            assert guarded.ask("GET", path).status == 200
    assert bob.ask("DELETE", "/api/crawl/shared").status == 404
    assert bob.ask("GET", "/api/jobs").body == {"jobs": []}
    assert len(ann.ask("GET", "/api/jobs").body["jobs"]) == 1
    with pytest.raises(InvalidStatus, match="404"):
        bob.socket("shared")
    # The same name is another session for another client.
    assert bob.batch([url], session_id="shared").body["results"][0]["task_id"] != task


def test_what_a_refused_call_sends_along_reaches_nobody(guarded: ApiServer, site: Site) -> None:
    """Nothing of it is kept, and nothing that is kept under a name crosses clients; no client
    learns which names others use."""
    eve, dan = client_of(guarded, "eve"), client_of(guarded, "dan")
    host = urlsplit(site.url).netloc
    twice = [f"http://u:p@{host}/page/1", f"http://u2:p2@{host}/page/2"]
    secret = {"headers": {"X-Secret": "of-eve-7d1f"}}

    webhook = {"url": "http://127.0.0.1:9/?key=of-eve-7d1f", "secret": "of-eve-7d1f"}

    assert eve.batch(twice, session_id="shop", options=secret, webhook=webhook).status == 400
    files = [path for path in guarded.folder.data.rglob("*") if path.is_file()]
    assert [path for path in files if b"of-eve-7d1f" in path.read_bytes()] == []
    assert eve.batch([site.page(3)], session_id="shop", options=secret).status == 200
    dans = dan.batch([site.page(4)], session_id="shop").body
    assert dans["statistics"]["success"] == 1
    assert dan.ask("GET", "/api/crawl/shop").body["job"] == "dan:shop"


def test_no_client_learns_where_the_store_is(guarded: ApiServer, site: Site) -> None:
    """What a page waits for is told without the commands of the operator, which name folders."""
    fay, url = client_of(guarded, "fay"), f"{site.url}/hold/fay"

    fay.batch([url], session_id="waiting", wait=False)
    told = json.dumps(fay.ask("GET", f"/api/why?url={url}").body)
    site.release()

    assert str(guarded.folder.path) not in told
    assert "python -m" not in told


def test_scopes_and_quotas(guarded: ApiServer, site: Site) -> None:
    """`read` sends nothing, `crawl` uses no operator's option, and limits are 429."""
    reader = client_of(guarded, "reader", "--scope", "read")
    small = client_of(guarded, "small", "--max-urls", "3", "--max-sessions", "1")
    admin = client_of(guarded, "admin", "--scope", "admin")
    hold = f"{site.url}/hold"

    assert reader.ask("GET", "/api/jobs").status == 200
    assert refused(reader.batch([hold]), 403, "scope")
    for options in ({"rate": "5/s"}, {"ignore_robots": True}):
        assert refused(small.batch([hold], options=options), 403, "operator_only")
        assert admin.batch([site.page(1)], options=options).status == 200
    too_many = small.batch([hold] * 4)
    assert refused(too_many, 429, "quota")
    assert "this call has 4; send fewer at a time" in too_many.body["error"]
    assert small.batch([hold], session_id="one", wait=False).status == 202
    assert refused(small.batch([site.page(1)], session_id="two"), 429, "quota")
    assert small.batch([hold], session_id="one", wait=False).status == 202
    site.release()
    wait_for(lambda: small.ask("GET", "/api/crawl/one").body["status"] == "done", 30, "its end")
    assert small.batch([site.page(1)], session_id="two").status == 200


def test_a_crawl_counts_with_what_is_left_of_its_limit(guarded: ApiServer, site: Site) -> None:
    """Crawls that begin at once do not all fit where each alone would; one that has ended leaves
    its room."""
    ivy = client_of(guarded, "ivy", "--max-urls", "10")

    def crawl(name: str, limit: int) -> Answer:
        url = f"{site.url}/hold?{name}"
        return ivy.ask("POST", "/v2/crawl", {"url": url, "limit": limit, "sitemap": "skip"})

    first = crawl("one", 8)
    second, other = crawl("two", 8), ivy.batch([site.page(n) for n in range(5)], wait=False)
    again = crawl("one", 8)
    site.release()
    path = f"/v2/crawl/{first.body['id']}"
    wait_for(lambda: ivy.ask("GET", path).body["status"] == "completed", 60, "its end")

    assert (first.status, second.status, other.status) == (200, 429, 429)
    assert again.body["id"] == first.body["id"]
    assert crawl("three", 8).status == 200


def test_the_maps_of_one_client_hold_up_no_other(guarded: ApiServer, site: Site) -> None:
    """However many it wants of a server that does not answer."""
    kim, leo = client_of(guarded, "kim"), client_of(guarded, "leo")

    def slow(n: int) -> Answer:
        body = {"url": f"{site.url}/hold?{n}", "sitemap": "skip", "timeout": 120_000}
        return kim.ask("POST", "/v2/map", body)

    with ThreadPoolExecutor(4) as pool:
        maps = [pool.submit(slow, n) for n in range(4)]
        try:
            wait_for(
                lambda: sum("/hold" in path for path in site.hits()) >= 2, 60, "the first maps"
            )
            body = {"url": site.page(1), "sitemap": "skip", "timeout": 60_000}
            answer = leo.ask("POST", "/v2/map", body)
            open_maps = sum(not each.done() for each in maps)
        finally:
            site.release()

    assert (answer.status, open_maps) == (200, 4)
    assert [each.result().status for each in maps] == [200] * 4


def test_a_token_is_known_at_once_and_gone_at_once(tmp_path: Path) -> None:
    """The first token closes a server on loopback, removing the last opens it again; only a hash
    is stored, in a file for its owner."""
    with ApiServer(tmp_path) as api:
        assert api.ask("GET", "/api/jobs").status == 200
        ann = client_of(api, "ann")
        assert refused(api.ask("GET", "/api/jobs"), 401, "no_token")
        assert ann.ask("GET", "/api/jobs").status == 200
        file = api.folder.data / "api-tokens.json"
        assert ann.token not in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        limits = ("--max-urls", "50000", "--max-sessions", "1")
        client_of(api, "much-longer", "--scope", "read", *limits)
        short, long = api.folder.crawler("serve", "token", "list").stdout.splitlines()
        assert short.startswith("ann          crawl  since 2")
        assert long.startswith("much-longer  read   since 2")
        assert long.endswith("at most 50,000 URLs, at most 1 session")
        assert api.folder.crawler("serve", "token", "remove", "much-longer").returncode == 0
        assert api.folder.crawler("serve", "token", "add", "ann").returncode == 2
        assert api.folder.crawler("serve", "token", "add", "../x").returncode == 2
        assert api.folder.crawler("serve", "token", "remove", "bob").returncode == 2
        assert api.folder.crawler("serve", "token", "remove", "ann").returncode == 0
        assert api.ask("GET", "/api/jobs").status == 200


def test_pages_of_other_sites_are_refused(api: ApiServer) -> None:
    """A foreign Host (DNS rebinding) or Origin is 403, also for WebSockets; our own is not."""
    own = urlsplit(api.url).netloc

    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1:80", "[::2]", ""):
        assert refused(api.ask("GET", "/health", headers={"Host": host}), 403, "wrong_host")
    for host in ("localhost", "LOCALHOST:99", "api.localhost:8000", "[::1]:8000", "127.9.9.9"):
        assert api.ask("GET", "/health", headers={"Host": host}).status == 200
    for origin in ("https://evil.example", "null", "http://localhost:1", f"ftp://{own}"):
        answer = api.ask("POST", "/api/scrape", {"url": "http://x"}, {"Origin": origin})
        assert refused(answer, 403, "wrong_origin")
        with pytest.raises(InvalidStatus, match="403"):
            api.socket("any", origin=origin)
    assert api.ask("GET", "/health", headers={"Origin": f"http://{own}"}).status == 200


# Limits


def hostile() -> Iterator[tuple[str, str, object, int]]:
    """Requests that nobody sends in good faith: method, path, body and the status that is due."""
    batch, scrape = "/api/crawl/batch", "/api/scrape"
    ok = "http://example.com/"
    yield "POST", batch, b"", 422
    yield "POST", batch, b"{", 422
    yield "POST", batch, b"[]", 422
    yield "POST", batch, b"null", 422
    yield "POST", batch, b"[" * 100_000, 400
    yield "POST", batch, b'{"urls":' + b"[" * 500 + b"]" * 500 + b"}", 422
    yield "POST", batch, b'{"a":' * 50_000, 400
    yield "POST", batch, b"\xff\xfe\x00", 400
    yield "POST", batch, b'{"urls": ["http://a/\\ud800"]}', 422
    yield "POST", batch, b'{"urls": [], "timeout": NaN}', 422
    yield "POST", batch, b'{"urls": [], "timeout": 1e400}', 422
    yield "POST", batch, b'{"urls": [], "timeout": ' + b"9" * 5000 + b"}", 400
    yield "POST", batch, b"x" * (MAX_BODY + 1), 413
    yield "POST", batch, {"urls": ["http://a/"] * (MAX_URLS + 1)}, 422
    yield "POST", batch, {"urls": "http://a/"}, 422
    yield "POST", batch, {"urls": {"0": "http://a/"}}, 422
    yield "POST", batch, {"urls": [None]}, 422
    yield "POST", batch, {"urls": [["http://a/"]]}, 422
    yield "POST", batch, {"urls": ["http://a/" + "x" * 10_000]}, 422
    yield "POST", batch, {"urls": [], "unknown": 1}, 422
    yield "POST", batch, {"urls": [], "timeout": -1}, 422
    yield "POST", batch, {"urls": [], "timeout": "1"}, 422
    yield "POST", batch, {"urls": [], "timeout": 10**9}, 422
    yield "POST", batch, {"urls": [], "wait": "yes"}, 422
    yield "POST", batch, {"urls": [], "distributed": 1}, 422
    for name in ("", "a b", "../x", "a/b", "a\n", "ä", "x" * 101, "a\x00", ".."):
        yield "POST", batch, {"urls": [ok], "session_id": name}, 422
    odd: Any
    for odd in (
        {"formats": ["exe"]}, {"formats": "html"}, {"formats": ["html"] * 11}, {"headers": []},
        {"headers": {"a": 1}}, {"queue": "mine"}, {"priority": 0}, {"priority": "5"},
        {"priority": 10**30}, {"loopback": True}, {"proxy": "http://x"}, {"rate": 5}, [], "x",
        {"headers": {f"h{n}": "" for n in range(101)}}, {"ignore_robots": "true"},
    ):  # fmt: skip
        yield "POST", batch, {"urls": [ok], "options": odd}, 422
    for options in (
        {"rate": "fast"}, {"headers": {"a\r\nb": "x"}}, {"headers": {"a": "x\r\nHost: y"}},
        {"headers": {"Host": "internal"}},
    ):  # fmt: skip
        yield "POST", batch, {"urls": [ok], "options": options}, 400
    for url in (
        "http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/",
        "http://192.168.0.1:8080/", "http://0x0a000001/", "http://[::ffff:10.0.0.1]/",
    ):  # fmt: skip
        yield "POST", scrape, {"url": url}, 403
        yield "POST", batch, {"urls": [url]}, 403
    for url in ("file:///etc/passwd", "gopher://x/", "no url", "http://", "javascript:alert(1)"):
        yield "POST", scrape, {"url": url}, 400
    yield "POST", scrape, {"url": ""}, 422
    yield "POST", scrape, {}, 422
    yield "POST", scrape, {"url": ok, "urls": []}, 422
    yield "GET", "/api/crawl/x?cursor=a", None, 422
    yield "GET", "/api/crawl/x?cursor=1e999", None, 422
    yield "GET", f"/api/crawl/x?cursor={2**70}", None, 422
    yield "GET", "/api/crawl/x?limit=0", None, 422
    yield "GET", "/api/crawl/x?limit=100000", None, 422
    yield "GET", f"/api/crawl/{'x' * 2000}", None, 422
    yield "GET", "/api/crawl/%00", None, 404
    yield "GET", "/api/crawl/%ff%fe", None, 404
    yield "GET", "/api/crawl/..%2f..%2fetc", None, 404
    yield "GET", "/api/results/%2e%2e%2fetc", None, 404
    yield "GET", "/api/results/zzz", None, 404
    yield "GET", "/api/why", None, 422
    yield "GET", f"/api/why?url=http://a/{'x' * 9000}", None, 422
    yield "GET", "/api/why?url=%00", None, 404
    yield "PUT", batch, b"{}", 405
    yield "PATCH", "/api/jobs", b"{}", 405
    yield "TRACE", "/health", None, 405
    yield "GET", "/admin", None, 404
    yield "GET", "/docs", None, 404


def test_hostile_requests_get_a_clear_answer(api: ApiServer) -> None:
    """Each is refused with its status and a message, and none with a traceback."""
    cases = list(hostile())
    assert len(cases) >= 64

    for method, path, body, status in cases:
        answer = api.ask(method, path, body)
        shown = f"{method} {path[:80]} {str(body)[:80]}: {answer.status} {str(answer.body)[:200]}"
        assert answer.status == status, shown
        assert set(answer.body) == SHAPE, shown
        assert 0 < len(answer.body["error"]) < 1000, shown

    assert "Traceback" not in api.log()
    assert api.ask("GET", "/ready").status == 200


def test_bodies_are_counted_while_they_stream(api: ApiServer) -> None:
    """A body without a length is refused once it is too large; what is no HTTP is, too."""
    address = urlsplit(api.url).netloc
    connection = HTTPConnection(address, timeout=60)
    connection.request(
        "POST", "/api/crawl/batch", iter([b" " * 1_000_000] * 12),
        {"Content-Type": "application/json"}, encode_chunked=True,
    )  # fmt: skip
    answer = connection.getresponse()
    assert (answer.status, set(json.load(answer))) == (413, SHAPE)
    connection.close()

    host, _, port = address.partition(":")
    for noise in (b"\x16\x03\x01\x02\x00 hello\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 66_000):
        with socket.create_connection((host, int(port)), 30) as raw:
            raw.sendall(noise)
            said = raw.makefile("rb").read()
        assert said.startswith(b"HTTP/1.1 400")
        assert set(json.loads(said.partition(b"\r\n\r\n")[2])) == SHAPE


OPENING = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "request_of",
    [
        "POST /any HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n" + OPENING,
        "GET /any HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n" + OPENING,
        "GET /any HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + OPENING,
    ],
)
def test_what_opens_no_websocket_is_answered(tmp_path: Path, request_of: str) -> None:
    """A request that asks for a WebSocket and cannot have one is 400, and its connection ends."""
    with (
        ApiServer(tmp_path) as api,
        socket.create_connection(
            (urlsplit(api.url).hostname, urlsplit(api.url).port), timeout=PATIENCE_S
        ) as connection,
    ):
        connection.sendall(f"{request_of}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        said = api.log()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"bad_http"' in answer
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        ("/api/crawl/any/stream", ("Sec-WebSocket-Key", "X-Key"), 400),
        ("/api/crawl/any/stream", ("Version: 13", "Version: 8"), 400),
        ("/api/crawl/any/stream", ("Connection: Upgrade", "Connection: close, Upgrade"), 404),
        ("/api/nothing", ("", ""), 404),
    ],
)
def test_a_refused_websocket_is_told_in_the_one_shape(
    api: ApiServer, path: str, change: tuple[str, str], status: int
) -> None:
    """Also by a handshake that is none, or at a path that there is not."""
    opening = OPENING.replace(*change, 1) if change[0] else OPENING
    address = (urlsplit(api.url).hostname, urlsplit(api.url).port)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{opening}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"application/json" in head
    assert set(json.loads(body)) == SHAPE


def test_an_unknown_path_says_where_the_known_ones_are(api: ApiServer) -> None:
    """In the one shape, whatever the method."""
    for method in ("GET", "POST", "DELETE"):
        answer = api.ask(method, "/api/nothing")

        assert refused(answer, 404, "not_found")
        assert "/openapi.json" in answer.body["error"]


def test_what_a_websocket_says_has_no_effect(tmp_path: Path, site: Site) -> None:
    """Text that is none, and messages without end, are dropped; the stream goes on."""
    with ApiServer(tmp_path) as api:
        api.batch([f"{site.url}/hold"], session_id="said", wait=False)
        with api.socket("said") as stream:
            stream.send(b"\xff\xfe", text=True)
            stream.send(["a"] * 2000)
            site.release()
            told = [message["type"] for message in messages(stream)]
        said = api.log()

    assert (told.count("result"), told[-1]) == (1, "done")
    assert "Traceback" not in said


def test_many_connections_leave_files_for_the_ledger(tmp_path: Path, site: Site) -> None:
    """Clients that open more connections than the server may have files end no crawl."""
    with ApiServer(tmp_path) as api, contextlib.ExitStack() as stack:
        resource.prlimit(api.process.pid, resource.RLIMIT_NOFILE, (800, 800))
        address = (urlsplit(api.url).hostname, urlsplit(api.url).port)
        opened = [stack.enter_context(socket.create_connection(address)) for _ in range(380)]
        for _ in range(500):
            stack.enter_context(socket.create_connection(address))
        opened[0].sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        ready = opened[0].recv(1000)
        opened[1].settimeout(PATIENCE_S)
        body = json.dumps({"urls": [site.page(1)]}).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        opened[1].sendall(
            f"POST /api/crawl/batch HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body
        )
        answer = opened[1].recv(1000)
        said = api.log()

    assert ready.startswith(b"HTTP/1.1 200 ")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert "Traceback" not in said


def test_bad_keys_and_content_types(api: ApiServer) -> None:
    """A key is printable and short, and a body says that it is JSON."""
    body = {"urls": ["http://example.com/"]}
    for key in ("", "a b", "x" * 201):
        answer = api.ask("POST", "/api/crawl/batch", body, {"Idempotency-Key": key})
        assert refused(answer, 422, "invalid")
    plain = {"Content-Type": "text/plain"}
    unnamed = api.ask("POST", "/api/crawl/batch", body, plain)
    assert refused(unnamed, 422, "invalid")
    assert "'Content-Type: application/json'" in unnamed.body["error"]


# The process


def test_serve_ends_in_order(tmp_path: Path, site: Site) -> None:
    """SIGTERM ends it within ten seconds with 143, whoever waits; a stream is closed to resume."""
    with ApiServer(tmp_path) as api:
        api.batch([f"{site.url}/hold"], session_id="held", wait=False)
        answers: list[Answer] = []
        waiting = threading.Thread(
            target=lambda: answers.append(api.batch([f"{site.url}/hold"], session_id="held"))
        )
        waiting.start()
        with api.socket("held") as stream:
            next(messages(stream))
            began = time.monotonic()
            code = api.end(signal.SIGTERM)
            took_s = time.monotonic() - began
            with pytest.raises(ConnectionClosedError, match="1012"):
                list(messages(stream))
        waiting.join()
        assert "Traceback" not in api.log()

        assert code == 143
        assert took_s < 10
        assert answers[0].status == 202
        site.release()
        api.start()
        assert api.batch([f"{site.url}/hold"], session_id="held").status == 200
        assert api.end(signal.SIGINT) == 130


def test_an_end_answers_what_waits_in_the_other_dialect(tmp_path: Path, site: Site) -> None:
    """A scrape and a map that wait when the server ends are told to come again."""
    asked = {
        "/v2/scrape": {"url": f"{site.url}/hold/1"},
        "/v2/map": {"url": f"{site.url}/hold/2", "sitemap": "skip"},
    }
    with ApiServer(tmp_path) as api, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(api.ask, "POST", path, body) for path, body in asked.items()]
        wait_for(lambda: {"/hold/1", "/hold/2"} <= set(site.hits()), 60, "both requests")
        api.end()
        scraped, mapped = (each.result() for each in waiting)
        said = api.log()

    assert (scraped.status, scraped.body["details"]["state"]) == (408, "processing_continues")
    assert (mapped.status, mapped.body["success"]) == (503, False)
    assert "Traceback" not in said


def test_a_map_whose_process_dies_leaves_no_files(tmp_path: Path, site: Site) -> None:
    """A page may kill the process that lists URLs: its answer says so, and its folder goes."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    body = {"url": f"{site.url}/hold", "sitemap": "skip"}
    with ApiServer(tmp_path, TMPDIR=str(folder)) as api, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.ask, "POST", "/v2/map", body)
        wait_for(lambda: "/hold" in site.hits(), 60, "the request of the map")
        assert list(folder.iterdir())
        children = psutil.Process(api.process.pid).children()
        [child] = [each for each in children if "crawler.site_map" in each.cmdline()]
        child.kill()
        mapped = waiting.result()
        left = list(folder.iterdir())

    assert mapped.status == 503
    assert left == []


def test_up_serves_the_api_and_restarts_it(folder: Folder) -> None:
    """`up --api` says where it is; a killed one comes back at the same address."""
    started = folder.crawler("up", "--workers", "1", "--api")
    assert started.returncode == 0, started.stderr
    [url] = re.findall(r"^API: (http://\S+)$", started.stdout, re.MULTILINE)
    api = ApiServer(folder.path)
    api.url = url
    first = folder.status()["pids"]["api"]

    available = api.ask("GET", "/api/crawl/distributed/status").body["available"]
    os.kill(first, signal.SIGKILL)
    second = wait_for(
        lambda: (pid := folder.status()["pids"]["api"]) not in (None, first) and pid,
        30,
        "another API",
        pause_s=0.2,
    )
    wait_for(lambda: _is_ready(api), 30, "its answer")

    assert available
    assert second != first
    assert f"api {second}" in folder.crawler("status").stdout
    folder.crawler("down")
    assert not psutil.pid_exists(second)


def _is_ready(api: ApiServer) -> bool:
    try:
        return api.ask("GET", "/ready").status == 200
    except OSError:
        return False


def test_serve_says_why_it_cannot_start(folder: Folder) -> None:
    """A port in use is one line and code 3; a door without a token to other machines is refused."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = folder.crawler("serve", "--port", port)
    nowhere = folder.crawler("serve", "--host", "nowhere.invalid", "--port", "0")
    is_open = folder.crawler("serve", "--host", "0.0.0.0", "--port", "0")
    unread = folder.crawler("serve", "--port", "0", CRAWLER_API_TOKEN_FILE="missing.txt")

    assert (busy.returncode, len(busy.stderr.splitlines())) == (3, 1)
    assert f"--port {port}: it cannot be listened there (Address already in use); " in busy.stderr
    assert (nowhere.returncode, "--port 0 takes" in nowhere.stderr) == (3, False)
    assert is_open.returncode == 2
    assert "CRAWLER_API_TOKEN" in is_open.stderr
    assert (unread.returncode, len(unread.stderr.splitlines())) == (2, 1)


def test_a_port_that_only_this_machine_reaches_needs_no_token(tmp_path: Path) -> None:
    """As in a container that publishes it on 127.0.0.1; other names than this machine's are
    refused there, too."""
    with ApiServer(tmp_path, "--host", "0.0.0.0", "--local") as api:
        api.url = api.url.replace("0.0.0.0", "127.0.0.1")
        assert api.ask("GET", "/api/jobs").status == 200
        strange = api.ask("GET", "/api/jobs", headers={"Host": "rebound.example"})

    assert (strange.status, strange.body["code"]) == (403, "wrong_host")


def test_a_token_file_may_be_replaced(tmp_path: Path) -> None:
    """CRAWLER_API_TOKEN_FILE is read again when it changes; the token is in no log."""
    secret = tmp_path / "token.txt"
    secret.write_text("first-token\n")
    with ApiServer(tmp_path, token="first-token", CRAWLER_API_TOKEN_FILE=str(secret)) as api:
        assert api.ask("GET", "/api/jobs").status == 200
        secret.write_text("the-second-token\n")
        assert api.ask("GET", "/api/jobs").status == 401
        api.token = "the-second-token"
        assert api.ask("GET", "/api/jobs").status == 200
        assert not re.search("first-token|second-token", api.log())
