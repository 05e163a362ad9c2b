"""The reference Gateway over HTTP, as a real process; and its commands."""

import csv
import hashlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from crawler.gateway.reference import incoming
from crawler.gateway.reference.books import Books
from crawler.gateway.reference.intake import task
from tests.support.gateway import Gateway
from tests.support.stack import Folder, wait_for

BOUNDARY = "------------------------cut"


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The value of the body."""
        return json.loads(self.body)


class Caller:
    """A worker that says exactly what it is told to say, one connection for each call."""

    def __init__(self, gateway: Gateway, name: str = "desk-1") -> None:
        self.address = gateway.url.removeprefix("http://")
        self.headers = {"X-Worker-Token": gateway.token, "X-Worker-ID": name}

    def call(
        self, method: str, path: str, body: bytes | None = None, **headers: str | None
    ) -> Answer:
        """Make a call; a header of None is left out."""
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection(self.address, timeout=120)) as connection:
            connection.request(
                method,
                path,
                body,
                {name: value for name, value in sent.items() if value is not None},
            )
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def work(self, capacity: int = 100, **headers: str) -> Any:
        """The answer to a request for work."""
        return self.call("GET", f"/internal/work?capacity={capacity}", None, **headers).json

    def deliver(self, *results: Any, **headers: str) -> Answer:
        """Deliver results."""
        return self.call("POST", "/internal/results", json.dumps(results).encode(), **headers)

    def upload(
        self, name: str, content: bytes, metadata: str | None = None, **headers: str
    ) -> Answer:
        """Upload a raw file."""
        about = (
            json.dumps({"sha256": hashlib.sha256(content).hexdigest()})
            if metadata is None
            else metadata
        )
        return self.call(
            "POST", "/internal/raw-files", multipart(name, content, about), **(MULTIPART | headers)
        )


MULTIPART = {"Content_Type": f"multipart/form-data; boundary={BOUNDARY}"}


def multipart(name: str, content: bytes, metadata: str) -> bytes:
    """The body of an upload."""
    before = (
        f"--{BOUNDARY}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: text/html\r\n\r\n"
    ).encode()
    after = (
        f"\r\n--{BOUNDARY}\r\n"
        f'Content-Disposition: form-data; name="metadata"\r\n\r\n{metadata}\r\n'
        f"--{BOUNDARY}--\r\n"
    ).encode()
    return before + content + after


def rows(count: int) -> list[dict[str, Any]]:
    """Rows of input."""
    return [{"task_id": f"t-{n}", "platform": "beacon", "parcel_id": f"{n}"} for n in range(count)]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A Gateway without faults."""
    with Gateway(tmp_path / "served") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def firm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A Gateway for calls that must change nothing: a task is held, another is not."""
    with Gateway(tmp_path_factory.mktemp("firm")) as gateway:
        gateway.import_tasks(rows(2))
        Caller(gateway).work(1)
        yield gateway


def unchanged(gateway: Gateway) -> bool:
    """Whether the Gateway is as it was."""
    counts = gateway.counts()
    states = ("available", "held", "completed", "failed", "results", "raw_files")
    return [counts[state] for state in states] == [1, 1, 0, 0, 0, 0]


def test_a_day_of_work(gateway: Gateway) -> None:
    """Work is handed out, pages and results come in, a failure is noted, and everything adds up in
    the end."""
    gateway.import_tasks(rows(3))
    worker, page = Caller(gateway), b"<!doctype html><p>123"
    sha256 = hashlib.sha256(page).hexdigest()

    work = worker.work()
    kept = worker.upload("desk-1-t-0.html", page).json
    stored = worker.deliver({"task_id": "t-0", "data": {"n": 1}, "raw_html_hash": sha256})
    completed = worker.call("POST", "/internal/tasks/t-1/complete")
    failed = worker.call(
        "POST", "/internal/tasks/t-2/fail", b'{"reason": "gone", "error_type": "http_404"}'
    )
    beat = worker.call(
        "POST", "/internal/heartbeat", b'{"active_tasks": 0, "queue": {"pending": 7}}'
    )

    assert [task["task_id"] for task in work["tasks"]] == ["t-0", "t-1", "t-2"]
    assert work["retry_after"] == 5
    assert kept == {"status": "ok", "path": f"raw/{sha256[:2]}/{sha256}"}
    assert (gateway.store / kept["path"]).read_bytes() == page
    assert stored.json == {"inserted": 1, "updated": 0, "failed": 0, "errors": []}
    assert completed.json == {"success": True}
    assert failed.json == {"task_id": "t-2", "status": "reported"}
    assert beat.json == {"acknowledged": True, "commands": []}
    assert {
        name: gateway.counts()[name]
        for name in ("available", "held", "completed", "failed", "raw_files")
    } == {
        "available": 0,
        "held": 0,
        "completed": 2,
        "failed": 1,
        "raw_files": 1,
    }
    [result] = gateway.results()
    assert result["raw_name"] == "desk-1-t-0.html"
    assert result["raw_seq"] < result["seq"]
    [known] = worker.call("GET", "/workers").json
    assert (known["worker"], known["held"], known["heartbeat"]["queue"]["pending"]) == (
        "desk-1",
        0,
        7,
    )


@pytest.mark.parametrize("token", [None, "", "wrong", "open-sesame-8", "open-sesame-77", "\xe9"])
def test_nobody_is_let_in_without_the_token(firm: Gateway, token: str | None) -> None:
    """A wrong or missing token is answered with 401 in the contract's form, whatever else is
    wrong."""
    worker = Caller(firm)

    for method, path in (
        ("GET", "/internal/work?capacity=nonsense"),
        ("POST", "/internal/results"),
        ("POST", "/internal/raw-files"),
        ("POST", "/internal/tasks/t-1/fail"),
        ("POST", "/internal/heartbeat"),
        ("GET", "/workers"),
    ):
        answer = worker.call(method, path, X_Worker_Token=token, X_Worker_ID=None)

        assert answer.status == 401
        assert answer.json["error"]["code"] == "UNAUTHORIZED"
        assert re.fullmatch("[0-9a-f]{16}", answer.json["request_id"])
    assert firm.health() == {"status": "ok"}
    assert firm.token not in firm.log.read_text()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/internal/work", {}),
        ("/internal/work?capacity=0", {}),
        ("/internal/work?capacity=101", {}),
        ("/internal/work?capacity=99999999999999999999", {}),
        ("/internal/work?capacity=5&platforms=", {}),
        ("/internal/work?capacity=5" + "&platforms=a" * 101, {}),
        ("/internal/work?capacity=5", {"X_Worker_ID": None}),
        ("/internal/work?capacity=5", {"X_Worker_ID": "two words"}),
        ("/internal/work?capacity=5", {"X_Worker_ID": "é"}),
        ("/internal/work?capacity=5", {"X_Worker_ID": "w" * 201}),
        ("/internal/work?capacity=5", {"Idempotency_Key": "k" * 201}),
    ],
)
def test_bad_requests_for_work_are_refused(
    firm: Gateway, path: str, headers: dict[str, str | None]
) -> None:
    """A capacity, a platform or a name that cannot be is 422, and takes no task."""
    answer = Caller(firm).call("GET", path, None, **headers)

    assert (answer.status, answer.json["error"]["code"]) == (422, "INVALID")
    assert unchanged(firm)


def test_a_worker_may_name_a_hundred_platforms(firm: Gateway) -> None:
    """However long their names are when they are written as a URL has it."""
    names = "".join(f"&platforms={n}{'%F0%9D%84%9E' * 197}" for n in range(100, 200))

    answer = Caller(firm).call("GET", f"/internal/work?capacity=5{names}")

    assert (answer.status, answer.json["tasks"]) == (200, [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b'[{"task_id": "a", "data": {}}',
        b'[{"task_id": "a", "data": {"x": NaN}}',
        b'[{"task_id": "a", "data": {}}, ]',
        b'[{"task_id": "a", "data": {}} {"task_id": "b", "data": {}}]',
        b"[" * 100_000,
        b'\xff[{"task_id": "a", "data": {}}]',
    ],
)
def test_results_that_are_no_array_are_refused(firm: Gateway, body: bytes) -> None:
    """What is not JSON, or no array, is 422, and nothing of it is stored."""
    answer = Caller(firm).call("POST", "/internal/results", body)

    assert (answer.status, answer.json["error"]["code"]) == (422, "INVALID")
    assert unchanged(firm)


def test_awkward_results_are_judged_one_by_one(gateway: Gateway) -> None:
    """Deep nesting, absurd numbers and what is no text cost the result they are in, and no
    other."""
    deep = b'{"task_id": "deep", "data": ' + b'{"a":' * 150_000 + b"1" + b"}" * 150_001
    parts = [
        b'{"task_id": "a", "data": {"n": 1e999}}',
        deep,
        b'{"task_id": "b", "data": {"\xff": 1}}',
    ]
    parts += [
        b'{"task_id": "c", "data": {"n": ' + b"9" * 5000 + b"}}",
        b'{"task_id": "a", "data": {"n": 2}}',
    ]
    parts += [b'{"task_id": "\\ud800", "data": {}}', b'{"task_id": "a", "data": {"n": NaN}}']

    answer = Caller(gateway).call("POST", "/internal/results", b"[" + b",".join(parts) + b"]").json

    assert (answer["inserted"], answer["updated"], answer["failed"]) == (2, 1, 4)
    assert {result["task_id"]: result["applied"] for result in gateway.results()} == {
        "a": 2,
        "c": 1,
    }


def test_too_many_results_are_refused(firm: Gateway) -> None:
    """More than 10,000 in a body are 413, as a body that is too large is."""
    answer = Caller(firm).call("POST", "/internal/results", b"[" + b"1," * 10_000 + b"1]")

    assert (answer.status, answer.json["error"]["code"]) == (413, "TOO_LARGE")
    assert unchanged(firm)


def test_large_bodies_come_in_two_at_a_time(gateway: Gateway) -> None:
    """A third one waits for its turn; small ones do not."""
    worker, body = Caller(gateway), b"[" + b" " * (3 << 20) + b"]"
    with ExitStack() as stack:
        held = [stack.enter_context(begun(worker, body, len(body) // 2)) for _ in range(2)]
        with ThreadPoolExecutor(1) as threads:
            third = threads.submit(worker.call, "POST", "/internal/results", body)
            small = [worker.deliver({"task_id": f"s-{n}", "data": {}}).status for n in range(5)]
            waiting = not third.done()
            held[0].send(body[len(body) // 2 :])
            assert held[0].getresponse().status == 200
            assert third.result(30).status == 200

    assert (small, waiting) == ([200] * 5, True)


@contextmanager
def begun(
    worker: Caller, body: bytes, size: int, path: str = "/internal/results", **headers: str
) -> Iterator[http.client.HTTPConnection]:
    """A connection with a request and so much of its body, all of which the Gateway has read."""
    with closing(http.client.HTTPConnection(worker.address, timeout=120)) as connection:
        connection.putrequest("POST", path)
        sent = worker.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in (sent | {"Content-Length": str(len(body))}).items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(body[:size])
        wait_for(lambda: is_read(connection.sock), 10, "the Gateway to read")
        yield connection


def is_read(connection: socket.socket) -> bool:
    """Whether the process on the other side has read all that was sent to it."""
    ports = [f":{end[1]:04X}" for end in (connection.getpeername(), connection.getsockname())]
    queues = [
        fields[4].split(":")
        for line in Path("/proc/net/tcp").read_text().splitlines()
        if (fields := line.split())[1:3]
        and [fields[1][-5:], fields[2][-5:]] in (ports, ports[::-1])
    ]
    return len(queues) == 2 and all(int(size, 16) == 0 for both in queues for size in both)


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_refused_while_it_comes(gateway: Gateway, announced: bool) -> None:
    """More than 32 MiB is 413, whether its length was told or not; the Gateway goes on."""
    size, worker = (32 << 20) + 1, Caller(gateway)

    for path, body, headers in (
        ("/internal/results", b"[" + b" " * size + b"]", {}),
        ("/internal/raw-files", multipart("a.html", b"x" * size, "{}"), MULTIPART),
    ):
        sent: Any = (
            body
            if announced
            else iter([body[at : at + (1 << 20)] for at in range(0, len(body), 1 << 20)])
        )
        answer = worker.call("POST", path, sent, **headers)

        assert (answer.status, answer.json["error"]["code"]) == (413, "TOO_LARGE")
    assert worker.upload("b.html", b"x" * (32 << 20)).json["status"] == "ok"
    assert gateway.counts()["raw_files"] == 1


@pytest.mark.parametrize(
    ("name", "metadata", "reason"),
    [
        ("a/b.html", "{}", "a path"),
        ("..", "{}", "a path"),
        ("a\\\\b.html", "{}", "a path"),
        ("a\x01b", "{}", "control characters"),
        ("x" * 201, "{}", "more than 200"),
        ("", "{}", "no name"),
        ("a.html", "", "not JSON"),
        ("a.html", "null", "not a JSON object"),
        ("a.html", "[]", "not a JSON object"),
        ("a.html", '{"task_id": 7}', "task_id"),
        ("a.html", '{"sha256": "00"}', "not that of the content"),
        ("a.html", '{"x": "\\ud800"}', "surrogate"),
        ("a.html", '{"x": NaN}', "NaN"),
    ],
)
def test_a_raw_file_that_cannot_be_kept_says_why(
    firm: Gateway, name: str, metadata: str, reason: str
) -> None:
    """As the contract has it, a failure is 200 with a status of error and a message."""
    answer = Caller(firm).upload(name, b"<p>", metadata)

    assert (answer.status, answer.json["status"]) == (200, "error")
    assert reason in answer.json["message"]
    assert unchanged(firm)


def test_an_upload_that_is_none_is_refused(firm: Gateway) -> None:
    """Without its parts, or cut in the middle, it is a 4xx, and nothing is kept."""
    worker, whole = Caller(firm), multipart("a.html", b"<p>", "{}")
    without_file = whole.replace(
        b'name="file"; filename="a.html"', b'name="other"; filename="a.html"'
    )

    for body, headers in (
        (b"{}", {"Content_Type": "application/json"}),
        (whole, {"Content_Type": "multipart/form-data"}),
        (whole[: whole.index(b"<p>") + 2], MULTIPART),
        (without_file, MULTIPART),
        (whole.replace(b'; filename="a.html"', b""), MULTIPART),
        (b"", MULTIPART),
    ):
        answer = worker.call("POST", "/internal/raw-files", body, **headers)

        assert answer.status in (400, 422), body
        assert answer.json["error"]["message"]
    assert unchanged(firm)


def test_contents_are_stored_once_and_names_stay(gateway: Gateway) -> None:
    """Two names of one content are one file; again changes nothing; another content under a name is
    an error."""
    worker = Caller(gateway)

    for name, content in (("a.html", b"one"), ("b.html", b"one"), ("a.html", b"one")):
        assert worker.upload(name, content).json["status"] == "ok"
    [path] = (gateway.store / "raw").glob("??/*")
    answer = worker.upload("a.html", b"two")

    assert (answer.status, answer.json["status"]) == (200, "error")
    assert "another content" in answer.json["message"]
    assert path.read_bytes() == b"one"
    assert gateway.counts()["raw_files"] == 2


@contextmanager
def file_limit(gateway: Gateway, size: int) -> Iterator[None]:
    """No file of the Gateway can grow beyond this size, as on a disk that is full."""
    hard = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_an_upload_that_finds_no_room_may_come_again(gateway: Gateway) -> None:
    """It is 503 with Retry-After; nothing is left of it, and nothing of it was outside the
    store."""
    worker, content = Caller(gateway), b"x" * (4 << 20)

    with file_limit(gateway, 2 << 20):
        refused = worker.upload("a.html", content)
        (gateway.store / "raw" / ".left.part").write_bytes(b"of a server that was killed")

    assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    gateway.stop()
    gateway.start()
    assert list((gateway.store / "raw").iterdir()) == []
    assert worker.upload("a.html", content).json["status"] == "ok"


def test_uploads_need_no_folder_for_temporary_files(tmp_path: Path) -> None:
    """A large one goes to the store's own disk, whatever TMPDIR is."""
    with Gateway(tmp_path, env={"TMPDIR": "/proc"}) as gateway:
        assert Caller(gateway).upload("a.html", b"x" * (4 << 20)).json["status"] == "ok"


def test_the_health_is_that_of_the_disk(gateway: Gateway) -> None:
    """While nothing can be written /health is 503, with and without the token; and 200 as soon as
    it can be."""
    worker = Caller(gateway)

    with file_limit(gateway, 1):
        answer = worker.deliver({"task_id": "a", "data": {}})
        sick = [
            worker.call("GET", "/health", X_Worker_Token=token) for token in (None, gateway.token)
        ]
    well = worker.call("GET", "/health", X_Worker_Token=None)

    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert [(each.status, each.json["status"]) for each in sick] == [(503, "failing")] * 2
    assert (well.status, well.json) == (200, {"status": "ok"})
    assert gateway.counts()["results"] == 0
    assert worker.deliver({"task_id": "a", "data": {}}).status == 200


def test_answers_are_given_again_over_a_kill(gateway: Gateway) -> None:
    """After kill -9, the keys of before get the same tasks, the same answer and the same commands
    again."""
    gateway.import_tasks(rows(5))
    worker = Caller(gateway)
    tasks = worker.work(2, Idempotency_Key="w1")["tasks"]
    answer = worker.deliver({"task_id": "x", "data": {}}, Idempotency_Key="r1")
    gateway.tell("desk-1", "drain")
    beat = worker.call("POST", "/internal/heartbeat", b"{}", Idempotency_Key="h1").json

    gateway.kill()
    gateway.start()

    assert worker.work(2, Idempotency_Key="w1")["tasks"] == tasks
    again = worker.deliver({"task_id": "x", "data": {}}, Idempotency_Key="r1")
    assert (again.body, again.headers["Idempotent-Replay"]) == (answer.body, "true")
    assert answer.headers["Idempotent-Replay"] is None
    assert worker.deliver({"task_id": "y", "data": {}}, Idempotency_Key="r1").status == 409
    assert worker.call("POST", "/internal/heartbeat", b"{}", Idempotency_Key="h1").json == beat
    assert beat["commands"] == ["drain"]
    assert len(worker.work()["tasks"]) == 3


def test_what_was_acknowledged_survives_kills(gateway: Gateway) -> None:
    """Ten kill -9 at any moment of a stream of results and pages: each that was acknowledged is
    there, once."""
    worker = Caller(gateway)
    results, pages = set(), set()
    for turn in range(10):
        for number in range(3):
            name = f"{turn}-{number}"
            if worker.upload(f"{name}.html", name.encode()).json["status"] == "ok":
                pages.add(f"{name}.html")
            if worker.deliver({"task_id": name, "data": {"n": number}}).json["inserted"] == 1:
                results.add(name)
        body = json.dumps([{"task_id": f"{turn}-lost", "data": {}}]).encode()
        with closing(
            http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=120)
        ) as connection:
            connection.request("POST", "/internal/results", body, worker.headers)
            gateway.kill()
        gateway.start()

    stored = {result["task_id"]: result["applied"] for result in gateway.results()}
    assert len(results) == len(pages) == 30
    assert results <= set(stored)
    assert set(stored.values()) == {1}
    assert gateway.counts()["raw_files"] == 30
    for path in (gateway.store / "raw").glob("??/*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_a_silent_workers_tasks_go_to_another(tmp_path: Path) -> None:
    """The lease is that of the command line."""
    with Gateway(tmp_path, lease_s=0.3, idle=9) as gateway:
        gateway.import_tasks(rows(2))
        began = time.monotonic()
        assert len(Caller(gateway).work()["tasks"]) == 2

        other = Caller(gateway, "desk-2")
        assert other.work()["retry_after"] == 9 or time.monotonic() - began > 0.3
        got = wait_for(lambda: other.work()["tasks"], 10, "the silent worker's tasks")

        assert len(got) == 2
        refused = Caller(gateway).call("POST", "/internal/tasks/t-0/fail", b'{"reason": "slow"}')
        assert (refused.status, refused.json["error"]["code"]) == (409, "CONFLICT")


def test_ids_with_signs_in_them_are_found(gateway: Gateway) -> None:
    """A task's id may be any text that can be printed, also with slashes and percent signs."""
    worker, odd = Caller(gateway), "county/12%20 é"
    gateway.import_tasks([{"task_id": odd, "url": "http://a.example/"}])
    worker.work()

    from urllib.parse import quote

    answer = worker.call("POST", f"/internal/tasks/{quote(odd, safe='')}/complete")
    unknown = worker.call("POST", "/internal/tasks/never/complete")

    assert answer.json == {"success": True}
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"reason": 7}',
        b'{"reason": "x", "attempts": "3"}',
        b'{"reason": "\\udfff"}',
        b'{"reason": ' + b"[" * 50_000,
    ],
)
def test_a_failure_without_proper_words_is_refused(firm: Gateway, body: bytes) -> None:
    """It is 422, and the task stays the worker's."""
    assert Caller(firm).call("POST", "/internal/tasks/t-0/fail", body).status == 422
    assert unchanged(firm)


def test_what_does_not_exist_is_said_in_the_same_form(firm: Gateway) -> None:
    """Unknown paths, wrong methods and a switch that was not asked for are errors of the contract's
    form."""
    worker = Caller(firm)

    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("DELETE", "/internal/work", 405),
        ("POST", "/faults", 404),
    ):
        answer = worker.call(method, path)
        assert (answer.status, set(answer.json)) == (status, {"error", "request_id"})


def test_faults_are_played_and_nothing_is_lost(tmp_path: Path) -> None:
    """With a third of all exchanges failing in every way, a patient worker gets every task and
    delivers each once."""
    with Gateway(tmp_path, faults=0.35, seed=11) as gateway:
        gateway.import_tasks(rows(150))
        worker = Caller(gateway)

        got: dict[str, Any] = {}
        poll = 0
        while len(got) < 150:
            work = patiently(
                worker, "GET", "/internal/work?capacity=10", Idempotency_Key=f"w{poll}"
            )
            got |= {task["task_id"]: task for task in work["tasks"]}
            poll += 1
        for name in got:
            body = json.dumps([{"task_id": name, "data": {}}]).encode()
            patiently(worker, "POST", "/internal/results", body, Idempotency_Key=name)

        assert sorted(result["task_id"] for result in gateway.results()) == sorted(got)
        assert {result["applied"] for result in gateway.results()} == {1}
        assert set(gateway.faults()) >= {
            "lost_answer",
            "reset",
            "error_before",
            "error_after",
            "garbage",
            "partial",
        }
        gateway.set_faults(0)
        before = gateway.faults()
        for _ in range(30):
            assert worker.work()["tasks"] == []
        assert gateway.faults() == before
        log = gateway.log.read_text()
        assert "Traceback" not in log
        assert "ASGI" not in log


def patiently(
    worker: Caller, method: str, path: str, body: bytes | None = None, **headers: str
) -> Any:
    """Make a call until its answer is one that can be believed."""
    while True:
        with suppress(OSError, http.client.HTTPException, ValueError):
            answer = worker.call(method, path, body, **headers)
            facts = answer.json
            good = answer.status == 200 and isinstance(facts, dict)
            if good and (
                isinstance(facts.get("tasks"), list)
                or (facts.get("failed") == 0 and facts["errors"] == [])
            ):
                return facts


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: int, code: int) -> None:
    """It ends with the signal's code, with one line for its start and one for its end, and no word
    of the token."""
    gateway = Gateway(tmp_path)
    with closing(
        http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=120)
    ) as idle:
        idle.request("GET", "/health")
        idle.getresponse().read()

        assert gateway.stop(number) == code

    log = gateway.log.read_text()
    assert log.count("the gateway listens on") == 1
    assert log.count("has stopped") == 1
    assert gateway.token not in log
    assert "Traceback" not in log


def test_a_signal_ends_it_whoever_is_in_its_way(tmp_path: Path) -> None:
    """A lock of another process and an upload that hangs do not keep it from ending; both get a
    503."""
    gateway = Gateway(tmp_path)
    worker, upload, results = (
        Caller(gateway),
        multipart("a.html", b"x" * 1000, "{}"),
        b'[{"task_id": "a", "data": {}}]',
    )
    with closing(apsw.Connection(str(gateway.store / "gateway.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        with (
            begun(worker, upload, 500, "/internal/raw-files", **MULTIPART) as hanging,
            begun(worker, results, len(results)) as waiting,
        ):
            assert gateway.stop() == 143

            for answer in (hanging.getresponse(), waiting.getresponse()):
                assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
                assert json.loads(answer.read())["error"]["code"] == "UNAVAILABLE"

    lines = [json.loads(line)["message"] for line in gateway.log.read_text().splitlines()]
    assert lines[-1].endswith("has stopped")
    assert "Traceback" not in gateway.log.read_text()


SERVE = """
import resource
import sys
from pathlib import Path
from crawler import logs
from crawler.gateway.reference.serve import serve
logs.setup("info")
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
serve(
    Path(sys.argv[1]), "t", host="127.0.0.1", port=0, lease_s=300, idle_s=30, faults=None, seed=7,
    silent_s=0.5,
)
"""


@contextmanager
def child(folder: Path, files: int) -> Iterator[tuple[tuple[str, int], Path]]:
    """A server that ends silent connections after half a second and may have so many files open;
    and its log."""
    log = folder / "child.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(folder / "g"), str(files)], stderr=out
        )
    try:
        found = wait_for(
            lambda: re.search(r"http://([\d.]+):(\d+)", log.read_text()), 30, "the server's address"
        )
        yield (found[1], int(found[2])), log
    finally:
        process.terminate()
        process.wait(120)


def test_a_connection_that_says_nothing_is_ended(tmp_path: Path) -> None:
    """No head, half a head, half a body: it is ended, and a line says so; one between two requests
    is not."""
    head = b"POST /internal/results HTTP/1.1\r\nHost: a\r\nX-Worker-Token: t\r\nX-Worker-ID: w\r\n"
    with (
        child(tmp_path, 500) as (address, log),
        closing(http.client.HTTPConnection(*address, timeout=120)) as idle,
    ):
        idle.request("GET", "/health")
        assert idle.getresponse().read() == b'{"status":"ok"}'

        for sent in (b"", b"GET /health HT", head + b"Content-Length: 9\r\n\r\n["):
            with closing(socket.create_connection(address, timeout=120)) as silent:
                silent.sendall(sent)
                with suppress(ConnectionResetError):
                    assert silent.recv(1000) == b""

        idle.request("GET", "/health")
        assert idle.getresponse().status == 200
    assert log.read_text().count("said nothing for 0.5 s") == 1
    assert "Traceback" not in log.read_text()


def test_there_are_only_so_many_connections(tmp_path: Path) -> None:
    """Those beyond what the process may have open are ended at once, and a line says so; the others
    are served."""
    with child(tmp_path, 70) as (address, log), ExitStack() as stack:
        first = stack.enter_context(closing(http.client.HTTPConnection(*address, timeout=120)))
        for _ in range(3):
            first.request("GET", "/health")
            assert first.getresponse().read() == b'{"status":"ok"}'
            for _ in range(20):
                stack.enter_context(closing(socket.create_connection(address, timeout=120)))
        wait_for(lambda: "more than 6 connections" in log.read_text(), 10, "a line about it")

        first.request("GET", "/health")
        assert first.getresponse().status == 200
    assert log.read_text().count("more than 6 connections") == 1
    assert "Traceback" not in log.read_text()


def test_connections_that_cannot_be_taken_are_one_line(gateway: Gateway) -> None:
    """Without a free file it says so once a minute, and goes on as soon as there is one."""
    soft, hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (1, hard))
    with closing(http.client.HTTPConnection(Caller(gateway).address, timeout=3)) as new:
        new.request("GET", "/health")
        with pytest.raises(TimeoutError):  # it is tried every second
            new.getresponse()
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (soft, hard))

    assert gateway.health() == {"status": "ok"}
    log = gateway.log.read_text()
    assert log.count("no connection can be taken") == 1
    assert "Traceback" not in log


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """No token, a port in use and a store that is served already are one line each, and exit code
    2."""
    with Gateway(tmp_path) as gateway:
        port = gateway.url.rpartition(":")[2]
        for args, token, reason in (
            (["--store", str(tmp_path / "x")], "", "GATEWAY_TOKEN"),
            (["--store", str(tmp_path / "x"), "--port", port], "secret", "cannot be listened"),
            (
                ["--store", str(tmp_path / "x"), "--host", "no such host"],
                "secret",
                "cannot be listened",
            ),
            (["--store", str(gateway.store), "--port", "0"], "secret", "serves"),
            (["--store", str(tmp_path / "x"), "--lease", "nan"], "secret", "is not a number"),
            (["--store", str(tmp_path / "x"), "--faults", "2"], "secret", "not in the range"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "crawler", "gateway", "serve", *args],
                env=os.environ | {"GATEWAY_TOKEN": token},
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert done.returncode == 2
            assert reason in done.stderr
            assert [line for line in done.stderr.splitlines() if line.startswith("Error: ")] == [
                done.stderr.splitlines()[-1]
            ]


def test_the_token_may_be_in_a_file(tmp_path: Path) -> None:
    """`serve` reads GATEWAY_TOKEN_FILE where GATEWAY_TOKEN is not set."""
    (tmp_path / "token.txt").write_text("from-a-file\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "crawler",
            "gateway",
            "serve",
            "--store",
            str(tmp_path / "g"),
            "--port",
            "0",
        ],
        env=clean | {"GATEWAY_TOKEN_FILE": str(tmp_path / "token.txt")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = re.search(r"http://([\d.:]+)", process.stderr.readline())
        assert address is not None
        with closing(http.client.HTTPConnection(address[1], timeout=120)) as connection:
            connection.request("GET", "/workers", headers={"X-Worker-Token": "from-a-file"})
            assert connection.getresponse().read() == b"[]"
    finally:
        process.terminate()
        process.communicate(timeout=15)


# The commands.


def test_files_of_every_kind_become_tasks(folder: Folder) -> None:
    """CSV, JSON, JSONL, TXT and XLSX rows are taken in, bad ones are left out with line and reason,
    exit code 1."""
    import xlsxwriter

    table = [
        ["Platform", "Parcel_ID", "state", "Priority", "colour"],
        ["beacon", "007", "FL", "1", "red"],
    ]
    with (folder.path / "a.csv").open("w", newline="") as out:
        csv.writer(out, delimiter=";").writerows(
            [*table, ["beacon", "8", "FL", "5", ""], ["", "9", "", "", ""]]
        )
    with xlsxwriter.Workbook(folder.path / "b.xlsx") as book:
        sheet = book.add_worksheet()
        for number, cells in enumerate([table[0], ["qpublic", "9", "GA", "2", "blue"]]):
            sheet.write_row(number, 0, cells)
    (folder.path / "c.json").write_text(
        '[{"platform": "beacon", "parcel_id": 1.50, "extra": {"a": [1]}}]'
    )
    (folder.path / "d.jsonl").write_text(
        '{"task_id": "d", "target": {"url": "http://a.example/d"}, "priority": 4}\n'
    )
    (folder.path / "e.txt").write_text("http://a.example/e\nftp://a.example/\n")

    names = sorted(path.name for path in folder.path.iterdir())
    codes = {name: folder.crawler("gateway", "import", name).returncode for name in names}

    assert codes == {"a.csv": 1, "b.xlsx": 0, "c.json": 0, "d.jsonl": 0, "e.txt": 1}
    rejects = [
        json.loads(line) for line in (folder.path / "a.csv.rejects.jsonl").read_text().splitlines()
    ]
    assert [(reject["line"], reject["reason"]) for reject in rejects] == [
        (3, "the priority '5' is not a whole number from 1 to 4"),
        (4, "there is no url, nor a platform and a field that could give it"),
    ]
    with Gateway(folder.path) as gateway:
        tasks = {task["task_id"]: task for task in Caller(gateway).work()["tasks"]}
    targets = [task["target"] for task in tasks.values()]
    assert targets == [
        {"parcel_id": "007", "state": "FL"},
        {"parcel_id": "9", "state": "GA"},
        {"parcel_id": "1.50"},
        {"url": "http://a.example/e"},
        {"url": "http://a.example/d"},
    ]
    assert [task.get("colour") for task in tasks.values()] == ["red", "blue", None, None, None]
    assert [task.get("extra") for task in tasks.values()][2] == {"a": [1]}


def test_the_same_file_again_changes_nothing(folder: Folder) -> None:
    """Its rows are known, whether they have ids of their own or not."""
    (folder.path / "a.csv").write_text(
        "task_id,platform,parcel_id\nt-1,beacon,1\n,beacon,2\n,beacon,2\n"
    )

    first = json.loads(folder.crawler("gateway", "import", "a.csv", "--json").stdout)
    again = json.loads(folder.crawler("gateway", "import", "a.csv", "--json").stdout)

    assert (first["rows"], first["accepted"], first["known"], first["rejected"]) == (3, 2, 1, 0)
    assert (again["accepted"], again["known"]) == (0, 3)
    assert json.loads(folder.crawler("gateway", "status", "--json").stdout)["available"] == 2


def test_two_rows_of_a_file_do_not_share_a_task(folder: Folder) -> None:
    """The second of an id is rejected where it says something else, each time; the first stays as
    it was."""
    (folder.path / "a.csv").write_text(
        "task_id,platform,parcel_id\nt-1,beacon,1\nt-1,beacon,2\nt-1,beacon,1\n"
    )

    done = [
        json.loads(folder.crawler("gateway", "import", "a.csv", "--json").stdout) for _ in range(2)
    ]

    assert [(one["accepted"], one["known"], one["changed"], one["rejected"]) for one in done] == [
        (1, 1, 0, 1),
        (0, 2, 0, 1),
    ]
    assert (
        "'t-1' stands in an earlier row with another content"
        in (folder.path / "a.csv.rejects.jsonl").read_text()
    )


def test_a_row_that_says_something_else_changes_its_task(folder: Folder) -> None:
    """As long as nobody works on it and it has no result; else the row is rejected with the
    reason."""
    with Gateway(folder.path) as gateway:
        gateway.import_tasks(rows(2))
        Caller(gateway).work(1)
        (folder.path / "a.csv").write_text(
            "task_id,platform,parcel_id\nt-0,beacon,77\nt-1,beacon,77\nt-2,beacon,2\n"
        )

        done = folder.crawler("gateway", "import", "a.csv")
        listed = folder.crawler("gateway", "tasks").stdout.splitlines()

    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "3 rows: 1 new, 0 known, 1 changed, 1 rejected"
    assert (
        "'t-0' is known with another content" in (folder.path / "a.csv.rejects.jsonl").read_text()
    )
    assert listed == ["t-0  held by desk-1", "t-1  available", "t-2  available"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "foo,bar\n1,2\n", "a 'platform' with any other column would do"),
        ("a.csv", "foo,bar\n1,2\n", "no column 'url'"),
        ("a.csv", "platform,PLATFORM,parcel_id\na,b,c\n", "2 columns 'platform'"),
        ("a.json", '{"platform": "a"}', "not an array"),
        ("a.pdf", "x", "ending"),
        ("a.csv", "", "empty"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    folder: Folder, name: str, text: str, reason: str
) -> None:
    """It names the file and the reason, and exits with 2."""
    (folder.path / name).write_text(text)

    done = folder.crawler("gateway", "import", name)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert reason in done.stderr


def test_the_operators_commands(folder: Folder) -> None:
    """While the server runs: workers are listed and told, failures given out again, results
    exported."""
    with Gateway(folder.path) as gateway:
        gateway.import_tasks(rows(2))
        worker = Caller(gateway)
        worker.work()
        worker.call("POST", "/internal/tasks/t-0/fail", b'{"reason": "gone"}')
        worker.deliver({"task_id": "t-1", "data": {"owner": "Ä"}}, X_Results_Late="true")

        told = folder.crawler("gateway", "tell", "desk-1", "pause")
        listed = folder.crawler("gateway", "workers")
        beat = worker.call("POST", "/internal/heartbeat", b"{}").json
        unknown = folder.crawler("gateway", "tell", "desk-2", "pause")
        counted = folder.crawler("gateway", "status")
        failed = folder.crawler("gateway", "tasks", "--state", "failed")
        every = [
            json.loads(line)
            for line in folder.crawler("gateway", "tasks", "--json").stdout.splitlines()
        ]
        retried = json.loads(folder.crawler("gateway", "retry", "--json").stdout)
        tasks = worker.work()["tasks"]
        exported = folder.crawler("gateway", "results", "export", "--output", "out.jsonl")
        piped = folder.crawler("gateway", "results", "export", "-o", "-")
        as_array = folder.crawler(
            "gateway", "results", "export", "--output", "-", "--format", "json"
        )

    assert told.stdout == "desk-1 will be told to pause at its next heartbeat\n"
    assert re.fullmatch(
        r"desk-1  heard \d+ s ago, holds 0, delivered 1, will be told to pause\n", listed.stdout
    )
    assert beat["commands"] == ["pause"]
    assert (unknown.returncode, "did you mean desk-1?" in unknown.stderr) == (2, True)
    assert counted.stdout.splitlines()[:2] == [
        "2 tasks: 0 available, 0 held, 1 completed, 1 failed",
        "1 results (1 late), 0 raw files",
    ]
    assert retried == {"available": 1}
    assert [task["task_id"] for task in tasks] == ["t-0"]
    assert exported.stdout == "Exported 1 results to out.jsonl\n"
    [result] = [json.loads(line) for line in (folder.path / "out.jsonl").read_text().splitlines()]
    assert (result["data"], result["late"], result["applied"], result["worker"]) == (
        {"owner": "Ä"},
        True,
        1,
        "desk-1",
    )
    assert json.loads(as_array.stdout) == [result]
    assert json.loads(piped.stdout) == result
    assert failed.stdout == "t-0  failed by desk-1: gone (0 attempts)\n"
    assert [(task["task_id"], task["state"], task["reason"]) for task in every] == [
        ("t-0", "failed", "gone"),
        ("t-1", "completed", None),
    ]


def test_workers_that_are_gone_are_not_listed(folder: Folder) -> None:
    """One that was silent for a day and holds nothing is left out unless --all is said; one that
    holds tasks is not."""
    store = folder.path / "gateway"
    with closing(Books(store, clock=lambda: time.time() - 90_000)) as books, books.writing():
        books.add(task(row, None, time.time()) for row in rows(1))
        books.give("holds", 1, [], None)
        books.hear("gone")
    with closing(Books(store)) as books, books.writing():
        books.hear("here")
        books.tell("here", "drain")

    listed = folder.crawler("gateway", "workers")
    every = json.loads(folder.crawler("gateway", "workers", "--all", "--json").stdout)

    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["here", "holds"]
    assert "will be told to drain" in listed.stdout
    assert "1 workers were silent for more than a day" in listed.stderr
    assert {worker["worker"] for worker in every} == {"here", "holds", "gone"}


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [("/dev/full", 2, "stdout cannot be written (No space left on device)"), ("pipe", 0, "")],
)
@pytest.mark.parametrize("args", [("results", "export", "-o", "-"), ("tasks",)])
def test_what_is_the_outputs_fault_is_not_the_stores(
    folder: Folder, target: str, code: int, words: str, args: tuple[str, ...]
) -> None:
    """A full device is named, with exit code 2; a reader that has gone is no error."""
    with closing(Books(folder.path / "gateway")) as books, books.writing():
        books.add(task(row, None, time.time()) for row in rows(5000))
        books.deliver(
            "w",
            incoming.results(json.dumps([{"task_id": "a", "data": {"x": "x" * 300_000}}]).encode()),
        )
    if target == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(target, os.O_WRONLY)

    done = subprocess.run(
        [sys.executable, "-m", "crawler", "gateway", *args],
        cwd=folder.path,
        env=folder.env,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (code, f"Error: -: {words}\n" if words else "")


def test_commands_without_a_store_say_so(folder: Folder) -> None:
    """Where there is no store, nothing is made; where the database is not one, it is left as it
    is."""
    for args in (
        ("status",),
        ("workers",),
        ("retry",),
        ("tell", "w", "pause"),
        ("results", "export", "-o", "x.json"),
    ):
        done = folder.crawler("gateway", *args)
        assert (done.returncode, "no Gateway's store" in done.stderr) == (2, True)
    assert not (folder.path / "gateway").exists()
    (folder.path / "gateway").mkdir()
    (folder.path / "gateway" / "gateway.db").write_bytes(b"no database" * 1000)
    assert folder.crawler("gateway", "status").returncode == 4
