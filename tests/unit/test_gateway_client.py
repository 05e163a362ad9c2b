"""The Gateway's client: each call as the contract has it, and a clear error for whatever else may
come."""

import asyncio
import email
import email.policy
import gzip
import hashlib
import json
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.config import Settings
from crawler.errors import (
    ConfigError,
    CrawlerError,
    GatewayDenied,
    GatewayError,
    GatewayRefused,
    UsageError,
)
from crawler.fetch.http import Client, Request
from crawler.gateway import client
from crawler.gateway.client import (
    CALL_LIMITS,
    MAX_WAIT_S,
    CallLimits,
    DeliveryCounts,
    GatewayClient,
    Work,
)
from tests.support import tls
from tests.support.serving import Talk, serving

TOKEN = "geheim-0123456789"
NOW = 1_800_000_000.0
LARGE = bytes(range(256)) * 2**17
"""32 MiB, the most that a raw page may have."""
COUNTS = b'{"inserted": 1, "updated": 0, "failed": 0, "errors": []}'
QUICK = CallLimits(connect_s=5, call_s=0.2, raw_s=0.2)
"""For what never ends."""


class Heard(NamedTuple):
    """A request as a server hears it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Reply = Callable[[Heard], bytes]
Call = Callable[[GatewayClient], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "work": lambda made: made.work(5, ["beacon"], "k-1"),
    "raw": lambda made: made.send_raw("w1.t-1.html", b"<p>", {"task_id": "t-1"}),
    "results": lambda made: made.send_results(b"[{}]"),
    "fail": lambda made: made.fail("t-1", reason="gone", error_type="http_404", attempts=3),
    "heartbeat": lambda made: made.heartbeat(b"{}", "k-1"),
}


def answer(body: bytes | object, *headers: str, status: int = 200) -> bytes:
    """A whole answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"HTTP/1.1 {status} Some Reason", f"Content-Length: {len(data)}", *headers, "", "")
    return "\r\n".join(lines).encode("latin-1") + data


async def hear(reader: asyncio.StreamReader) -> Heard:
    """The next request of a connection."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)
    }
    method, target, _ = first.split(" ")
    return Heard(
        method, target, headers, await reader.readexactly(int(headers.get("content-length", "0")))
    )


def replying(reply: Reply, heard: list[Heard]) -> Talk:
    """A server that answers every request on every connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heard.append(await hear(reader))
            writer.write(reply(heard[-1]))
            await writer.drain()

    return talk


def settings(url: str, **changes: Any) -> Settings:
    """Settings for work from a Gateway."""
    return msgspec.structs.replace(Settings(gateway_url=url, gateway_token=TOKEN), **changes)


@asynccontextmanager
async def gateway(
    talk: Talk,
    limits: CallLimits = CALL_LIMITS,
    **changes: Any,
) -> AsyncIterator[GatewayClient]:
    """A client of a Gateway that talks like that."""
    async with serving(talk) as port:
        known = settings(f"http://127.0.0.1:{port}", **changes)
        async with GatewayClient(known, "worker-1", limits=limits, clock=lambda: NOW) as made:
            yield made


def ask(call: Call, talk: Talk, limits: CallLimits = CALL_LIMITS, **changes: Any) -> Any:
    """What a call comes to at such a Gateway."""

    async def work() -> Any:
        async with gateway(talk, limits, **changes) as made:
            return await call(made)

    return asyncio.run(work())


def told(call: Call, reply: Reply | bytes, **changes: Any) -> tuple[Any, list[Heard]]:
    """What a call comes to that gets such an answer, and what the Gateway heard."""
    heard: list[Heard] = []
    return ask(
        call, replying(reply if callable(reply) else lambda _: reply, heard), **changes
    ), heard


def error(call: Call, reply: Reply | bytes, **changes: Any) -> CrawlerError:
    """The error of a call that gets such an answer; its words are fit for a log."""
    with pytest.raises(CrawlerError) as caught:
        told(call, reply, **changes)
    return fit(caught.value)


def fit(found: CrawlerError) -> CrawlerError:
    """An error whose words are one printable line without the token."""
    assert str(found).isprintable()
    assert len(str(found)) < 600
    assert TOKEN[:8] not in f"{found}{found!r}{found.args}"
    return found


# The calls


def test_work_is_asked_for() -> None:
    """Capacity and platforms are in the query, the rest in headers; tasks come as they are,
    whatever they are."""
    tasks = [{"task_id": "t-1", "extra": {"a": [1, None]}}, "no task at all", None]
    found, [heard] = told(
        lambda made: made.work(100, ["beacon", "a b&c=ü"], "k-7"),
        answer({"tasks": tasks, "retry_after": 5}),
    )

    assert found == Work(tasks, 5.0)
    path, _, query = heard.target.partition("?")
    assert (heard.method, path, heard.body) == ("GET", "/internal/work", b"")
    assert parse_qsl(query) == [
        ("capacity", "100"),
        ("platforms", "beacon"),
        ("platforms", "a b&c=ü"),
    ]
    assert heard.headers["x-worker-token"] == TOKEN
    assert heard.headers["x-worker-id"] == "worker-1"
    assert heard.headers["idempotency-key"] == "k-7"
    assert "content-length" not in heard.headers


def test_results_are_sent() -> None:
    """The body goes out byte for byte under its own hash, and says so where it is late."""
    body = '[{"task_id": "ü"}]'.encode()
    reply = answer(
        {
            "inserted": 1,
            "updated": 2,
            "failed": 3,
            "errors": ["no\nparcel", "x" * 900, {"a": 1}, None],
        }
    )
    found, [heard] = told(lambda made: made.send_results(body), reply)
    _, [late] = told(lambda made: made.send_results(body, late=True), answer(COUNTS))

    assert found == DeliveryCounts(3, 3, ("no parcel", "x" * 500, '{"a":1}', "null"), updated=2)
    assert (heard.method, heard.target, heard.body) == ("POST", "/internal/results", body)
    assert heard.headers["content-type"] == "application/json"
    assert heard.headers["idempotency-key"] == hashlib.sha256(body).hexdigest()
    assert "x-results-late" not in heard.headers
    assert late.headers["x-results-late"] == "true"


def parts(heard: Heard) -> dict[str, tuple[str | None, bytes]]:
    """The parts of a form by their names: file name and content, as another implementation reads
    them."""
    head = f"Content-Type: {heard.headers['content-type']}\r\n\r\n".encode()
    form = email.message_from_bytes(head + heard.body, policy=email.policy.HTTP)
    found = {}
    for part in form.iter_parts():
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        found[str(part.get_param("name", header="content-disposition"))] = (
            part.get_filename(),
            content,
        )
    return found


@pytest.mark.parametrize("body", [b"", b"<p>\x00\xff", b"--", b"\r\n--\r\n--x--\r\n"])
def test_a_raw_page_is_sent(body: bytes) -> None:
    """A form holds the file under its name and the metadata as JSON, and is the same each time."""
    metadata = {"task_id": "t/1", "url": 'https://a.example/"ü"'}
    _, [heard] = told(
        lambda made: made.send_raw("w1.t-1.html", body, metadata),
        answer({"status": "ok", "path": "p"}),
    )
    _, [again] = told(
        lambda made: made.send_raw("w1.t-1.html", body, metadata), answer({"status": "ok"})
    )

    assert (heard.method, heard.target) == ("POST", "/internal/raw-files")
    found = parts(heard)
    assert found["file"][0] == "w1.t-1.html"
    assert json.loads(found["metadata"][1]) == metadata
    assert b"\r\n\r\n" + body + b"\r\n--" in heard.body
    assert again.body == heard.body


def test_no_page_can_end_its_form() -> None:
    """A page that holds the boundary that would be used gets another one."""
    _, [first] = told(lambda made: made.send_raw("a.html", b"x", {}), answer({"status": "ok"}))
    boundary = first.headers["content-type"].partition("boundary=")[2]
    evil = f"\r\n--{boundary}--\r\n".encode()

    _, [heard] = told(lambda made: made.send_raw("a.html", evil, {}), answer({"status": "ok"}))

    assert boundary not in heard.headers["content-type"]
    assert set(parts(heard)) == {"file", "metadata"}
    assert evil in heard.body


def test_a_failure_is_reported() -> None:
    """The reason goes to the task's own address."""
    found, [heard] = told(CALLS["fail"], answer({"status": "reported", "requeued": False}))

    assert found is None
    assert (heard.method, heard.target) == ("POST", "/internal/tasks/t-1/fail")
    assert json.loads(heard.body) == {"reason": "gone", "error_type": "http_404", "attempts": 3}


def test_any_task_id_can_be_reported() -> None:
    """Whatever characters an id has, it stays one part of the path, and comes out the same."""
    ids = [
        "a/b",
        "a?b#c",
        "50%",
        "..",
        ".",
        "../../x",
        "a b+c",
        "ü€😀",
        "%2F",
        "\r\nX-Evil: 1",
        "\\",
        "a;b:@&=",
        "\x00",
    ]
    heard: list[Heard] = []

    async def work(made: GatewayClient) -> None:
        for task_id in ids:
            await made.fail(task_id, reason="r", error_type="e", attempts=1)

    ask(work, replying(lambda _: answer({"status": "reported"}), heard))

    cut = [entry.target.removeprefix("/internal/tasks/").removesuffix("/fail") for entry in heard]
    assert [unquote(part) for part in cut] == ids
    assert all("/" not in part and part.isascii() and part.isprintable() for part in cut)
    assert all("x-evil" not in entry.headers for entry in heard)


def test_an_id_too_long_for_an_address_is_refused_here() -> None:
    """It would not get better, and the Gateway is not asked."""
    found = error(
        lambda made: made.fail("x" * 9000, reason="r", error_type="e", attempts=1), answer({})
    )

    assert isinstance(found, GatewayRefused)
    assert found.status == 414


@pytest.mark.parametrize(
    ("told_us", "expected"),
    [
        ({"commands": ["pause", "drain"]}, ["pause", "drain"]),
        ({"acknowledged": True, "commands": None}, []),
        ({"acknowledged": True}, []),
        ({"commands": "pause"}, []),
        ({"commands": {"pause": True}}, []),
        ({"commands": [1, None, "resume", ["drain"], {}]}, ["resume"]),
        ({"commands": ["\x1b[2Jhello\n" + "x" * 500]}, ["[2Jhello " + "x" * 91]),
        ({"commands": ["x"] * 5000}, ["x"] * 100),
    ],
)
def test_commands_are_texts(told_us: dict[str, Any], expected: list[str]) -> None:
    """A heartbeat brings commands as far as they are texts; anything else among them is dropped."""
    found, [heard] = told(
        lambda made: made.heartbeat(b'{"active_tasks": 3}', "k-1"), answer(told_us)
    )

    assert found == expected
    assert (heard.method, heard.target, heard.body) == (
        "POST",
        "/internal/heartbeat",
        b'{"active_tasks": 3}',
    )
    assert heard.headers["idempotency-key"] == "k-1"


def test_a_gateway_may_live_under_a_path() -> None:
    """GATEWAY_URL's own path stands before each call's, with or without a slash at its end."""
    for tail in ("/api/v2", "/api/v2/"):
        heard: list[Heard] = []

        async def work(tail: str = tail, heard: list[Heard] = heard) -> None:
            async with (
                serving(replying(lambda _: answer({}), heard)) as port,
                GatewayClient(settings(f"http://localhost:{port}{tail}"), "w") as made,
            ):
                await made.heartbeat(b"{}", "k")

        asyncio.run(work())
        assert heard[0].target == "/api/v2/internal/heartbeat"


@pytest.mark.parametrize(
    "call",
    [
        lambda made: made.work(0, [], "k"),
        lambda made: made.work(101, [], "k"),
        lambda made: made.work(1, [], ""),
        lambda made: made.heartbeat(b"{}", "two words"),
        lambda made: made.heartbeat(b"{}", "a\r\nb"),
        lambda made: made.send_raw("../x", b"", {}),
        lambda made: made.send_raw('a"b', b"", {}),
        lambda made: made.send_raw("ü", b"", {}),
        lambda made: made.send_raw("x" * 201, b"", {}),
    ],
)
def test_what_cannot_be_sent_is_the_callers_mistake(call: Call) -> None:
    """Numbers, keys and names that the contract has no room for never reach the Gateway."""
    with pytest.raises(ValueError, match="is n"):
        told(call, answer({}))


# Where it may speak at all


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"standalone": True}, UsageError, "STANDALONE=true"),
        ({"gateway_sync": "disabled"}, UsageError, "GATEWAY_SYNC=disabled"),
        ({"gateway_url": None}, ConfigError, "set GATEWAY_URL"),
        ({"gateway_url": "http://gateway.example"}, ConfigError, "must begin with https://"),
        ({"gateway_url": "http://10.0.0.1:8000"}, ConfigError, "must begin with https://"),
        ({"gateway_url": "http://localhost.example"}, ConfigError, "must begin with https://"),
        (
            {"gateway_url": "http://127.0.0.1@gateway.example/"},
            ConfigError,
            "must begin with https://",
        ),
        ({"gateway_url": "ftp://127.0.0.1"}, ConfigError, "only http and https"),
        (
            {"gateway_url": "https://gateway.example/?key=geheim-0123456789"},
            ConfigError,
            "must not have a query",
        ),
        ({"gateway_url": "gateway.example"}, ConfigError, "GATEWAY_URL: not a URL"),
        ({"gateway_token": None}, ConfigError, "set GATEWAY_TOKEN"),
        ({"gateway_token": "geheim-0123456789 \n"}, ConfigError, "printable ASCII"),
        ({"gateway_token": "geheim-0123456789" * 300}, ConfigError, "printable ASCII"),
    ],
)
def test_settings_that_do_not_do(
    changes: dict[str, Any], kind: type[UsageError], words: str
) -> None:
    """Who may not speak to a Gateway, or could not, is told which variable says so."""
    with pytest.raises(kind, match=words) as caught:
        GatewayClient(settings("https://gateway.example", **changes), "w")
    assert type(caught.value) is kind
    fit(caught.value)


@pytest.mark.parametrize("worker_id", ["", "two words", "a\r\nb", "ü", "x" * 201])
def test_worker_ids_that_do_not_do(worker_id: str) -> None:
    """The name of a worker must fit in a header."""
    with pytest.raises(ValueError, match="worker id"):
        GatewayClient(settings("https://gateway.example"), worker_id)


@pytest.mark.parametrize(
    "url", ["http://localhost:1", "http://[::1]:1", "http://127.9.9.9:1", "https://gateway.example"]
)
def test_settings_that_do(url: str) -> None:
    """This machine may be spoken to in plain, anybody else within TLS; no text made of the client
    holds the token."""
    made = GatewayClient(settings(url), "w")

    assert TOKEN not in f"{made!r}{made}"


# The token


def test_the_token_is_read_anew_for_each_call(tmp_path: Path) -> None:
    """A file that is replaced counts from the next call on; while it is gone or unusable, the
    Gateway is not asked."""
    file = tmp_path / "token"
    file.write_text("one\n")
    heard: list[Heard] = []

    async def work(made: GatewayClient) -> None:
        await made.heartbeat(b"{}", "k")
        file.write_text("two")
        await made.heartbeat(b"{}", "k")
        for content in ("", "geheim-0123456789 again", None):
            file.unlink() if content is None else file.write_text(content)
            with pytest.raises(GatewayDenied, match="GATEWAY_TOKEN_FILE") as caught:
                await made.heartbeat(b"{}", "k")
            fit(caught.value)
        file.write_text("three")
        await made.heartbeat(b"{}", "k")

    ask(work, replying(lambda _: answer({}), heard), gateway_token=None, gateway_token_file=file)

    assert [entry.headers["x-worker-token"] for entry in heard] == ["one", "two", "three"]


def test_the_environments_token_comes_first(tmp_path: Path) -> None:
    """GATEWAY_TOKEN wins over a file, which then need not be there."""
    _, [heard] = told(CALLS["heartbeat"], answer({}), gateway_token_file=tmp_path / "none")

    assert heard.headers["x-worker-token"] == TOKEN


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "reply",
    [
        answer({"error": {"code": "X", "message": f"token {TOKEN} is wrong"}}, status=401),
        answer({"error": {"message": "x" * 290 + TOKEN}}, status=400),
        answer({"error": {"message": TOKEN[:9]}}, status=500),
        answer({"error": TOKEN}, status=503),
        answer({"detail": [{"input": TOKEN}]}, status=422),
        answer(
            {
                "status": "error",
                "success": False,
                "message": TOKEN,
                "tasks": TOKEN,
                "commands": [TOKEN],
            }
        ),
        f"HTTP/1.1 500 {TOKEN}\r\nContent-Length: 0\r\n\r\n".encode(),
        f"{TOKEN} is no HTTP\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {TOKEN}, chunked\r\n\r\n".encode(),
        answer(b"", f"Location: https://{TOKEN}.example/", status=307),
        answer(b"", f"Location: https://[{TOKEN}", status=307),
    ],
)
def test_no_error_repeats_the_token(call: Call, reply: bytes) -> None:
    """A Gateway that throws the token back at us does not get it into a log."""
    try:
        found, _ = told(call, reply)
    except CrawlerError as raised:
        fit(raised)
    else:
        assert TOKEN not in str(found)


def test_words_about_results_do_not_repeat_the_token() -> None:
    """What the Gateway says failed is kept and shown to the operator."""
    counts = {
        "inserted": 0,
        "updated": 0,
        "failed": 2,
        "errors": [f"for {TOKEN}", TOKEN[:4] + "\x00" + TOKEN[4:]],
    }
    found, _ = told(CALLS["results"], answer(counts))

    assert found.failed == 2
    assert TOKEN not in str(found)


# What any answer means


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, GatewayDenied) for status in (401, 403, 407)),
        *(
            (status, GatewayRefused)
            for status in (400, 402, 404, 405, 409, 410, 413, 415, 418, 422, 451, 499)
        ),
        *((status, GatewayError) for status in (408, 425, 429)),
        *((status, GatewayError) for status in (500, 501, 502, 503, 504, 507, 599, 600, 999)),
        *((status, GatewayError) for status in (300, 304, 305, 301, 302, 303, 307, 308)),
        *((status, GatewayError) for status in (204, 205)),
    ],
)
def test_every_status_has_its_error(call: Call, status: int, kind: type[CrawlerError]) -> None:
    """The error says whether it may get better, which call it was, and the Gateway's own words."""
    empty = status in (204, 205, 304)
    reply = answer(
        b"" if empty else {"error": {"code": "X", "message": "our \n reason"}}, status=status
    )

    found = error(call, reply)

    assert type(found) is kind
    assert "/internal/" in str(found)
    if status >= 400:
        assert f"{status} Some Reason: our reason" in str(found)
    if isinstance(found, GatewayRefused):
        assert found.status == status


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "' + b"x" * 900 + b'"}}', "x" * 300),
        (b'{"error": "plain"}', "plain"),
        (b'{"message": "beside"}', "beside"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        ('{"error": {"message": "\\u001b[31mrot\\u202e ü"}}'.encode(), "[31mrot ü"),
        (b"invalid JSON\n", "502 Some Reason: invalid JSON"),
        (b'{"detail": "no such parcel"}', "no such parcel"),
        (b'{"error": null, "message": null, "detail": null}', "502 Some Reason"),
        (b"<html>Bad Gateway</html>", "502 Some Reason"),
        (b"", "502 Some Reason"),
        (b"[" * 100_000, "502 Some Reason"),
    ],
)
def test_the_gateways_own_words_are_shown(body: bytes, words: str) -> None:
    """As one printable line of at most 300 characters, in whatever form it says them."""
    found = str(error(CALLS["results"], answer(body, status=502)))

    assert words in found
    assert "x" * 301 not in found


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        (None, 5, 5.0),
        ("7", None, 7.0),
        ("7", 5, 7.0),
        ("5", "7.5", 7.5),
        (formatdate(NOW + 90, usegmt=True), 5, 90.0),
        (formatdate(NOW - 90, usegmt=True), 5, 5.0),
        (formatdate(NOW + 9e6, usegmt=True), None, MAX_WAIT_S),
        ("Sun, 06 Nov 1994 08:49:37 GMT", None, 0.0),
        ("9" * 400, None, MAX_WAIT_S),
        (None, 10**300, MAX_WAIT_S),
        (None, 10**400, MAX_WAIT_S),
        (None, 1e300, MAX_WAIT_S),
        ("-5", -5, 0.0),
        ("soon", "later", 0.0),
        ("", "", 0.0),
        ("nan", "NaN", 0.0),
        (None, float("nan"), 0.0),
        (None, True, 0.0),
        (None, [5], 0.0),
        (None, {"seconds": 5}, 0.0),
        ("4\r\nRetry-After: 9", 5, 9.0),
        ("Fri, 99 Foo 99999 99:99:99 GMT", None, 0.0),
    ],
)
def test_how_long_to_wait(header: str | None, value: object, expected: float) -> None:
    """The longest that headers and body ask for, within reason; on work, and on 429 and 503, and on
    nothing else."""
    headers = [f"Retry-After: {header}"] if header is not None else []
    body = {"tasks": [], "retry_after": value}

    found, _ = told(CALLS["work"], answer(body, *headers))
    waits = {
        status: error(CALLS["results"], answer(body, *headers, status=status))
        for status in (429, 503, 500, 408)
    }

    assert found.wait_s == pytest.approx(expected)
    for status, raised in waits.items():
        assert isinstance(raised, GatewayError)
        asked = expected if status in (429, 503) else 0.0
        assert (raised.retry_after_s or 0.0) == pytest.approx(asked)


def test_a_wait_is_heard_without_a_body() -> None:
    """A Retry-After counts, whatever stands behind it."""
    found = error(CALLS["work"], answer(b"<h1>busy</h1>", "Retry-After: 12", status=503))

    assert isinstance(found, GatewayError)
    assert found.retry_after_s == 12.0


WRONG: dict[str, Sequence[bytes]] = {
    "work": (b"{}", b'{"tasks": {}}', b'{"retry_after": 5}', b'{"tasks": "t-1"}'),
    "results": (
        b'{"inserted": 1}',
        b'{"inserted": -1, "updated": 0, "failed": 0}',
        b'{"inserted": 1.5, "updated": 0, "failed": 0}',
        b'{"inserted": "1", "updated": 0, "failed": 0}',
        b'{"inserted": true, "updated": 0, "failed": 0}',
        b'{"inserted": null, "updated": 0, "failed": 0}',
        b'{"inserted": null, "updated": null, "failed": null}',
        b'{"inserted": NaN, "updated": 0, "failed": 0}',
        b'{"inserted": 99999999999999999999, "updated": 0, "failed": 0}',
        b'{"inserted": 1, "updated": 0, "failed": 0, "errors": "none"}',
    ),
    "raw": (b"{}", b'{"status": null}', b'{"status": ["ok"]}'),
    "fail": (b"{}", b'{"status": null}', b'{"detail": "busy"}'),
    "heartbeat": (),
}
NO_JSON = (
    b"",
    b"<html>",
    b"[]",
    b"null",
    b'"ok"',
    b"{",
    b"[" * 1_000_000,
    b'{"a":' * 100_000,
    b"\xff\xfe{}",
    b"9" * 9999,
)


@pytest.mark.parametrize(
    ("name", "body"),
    [(name, body) for name in CALLS for body in (*WRONG[name], *NO_JSON)],
    ids=lambda it: str(it)[:40],
)
def test_answers_that_are_not_the_contracts(name: str, body: bytes) -> None:
    """A 200 with anything else than the contract says is no success, and may get better."""
    found = error(CALLS[name], answer(body))

    assert type(found) is GatewayError


@pytest.mark.parametrize(
    "body",
    [{"status": "error", "message": "disk full"}, {"success": False, "message": "disk full"}],
)
def test_a_good_status_that_says_otherwise_is_told_apart(body: dict[str, Any]) -> None:
    """`200 {"status": "error"}` speaks of this one file or report, in the Gateway's words, and not
    of the Gateway."""
    for name in ("raw", "fail") if "status" in body else ("fail",):
        found = error(CALLS[name], answer(body))

        assert isinstance(found, GatewayRefused)
        assert found.status == 200
        assert "the Gateway says: disk full" in str(found)


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("work", b'{"tasks": null, "retry_after": 30}', Work([], 30.0)),
        ("work", b'{"tasks": null, "retry_after": null}', Work([], 0.0)),
        ("work", b'{"tasks": [], "retry_after": 30}', Work([], 30.0)),
        (
            "results",
            b'{"inserted": 1, "updated": null, "failed": null, "errors": null}',
            DeliveryCounts(1, 0, ()),
        ),
        (
            "results",
            b'{"inserted": null, "updated": 1, "failed": 0}',
            DeliveryCounts(1, 0, (), updated=1),
        ),
        ("results", b'{"inserted": null, "updated": null, "failed": 1}', DeliveryCounts(0, 1, ())),
        ("raw", b'{"status": "ok", "path": null, "message": null}', None),
        ("fail", b'{"status": "reported", "success": false}', None),
        ("fail", b'{"status": "reported", "success": null}', None),
        ("fail", b'{"status": null, "success": true}', None),
        ("heartbeat", b'{"acknowledged": null, "commands": null}', []),
    ],
)
def test_nulls_and_habits_of_real_gateways_are_no_trouble(
    name: str, body: bytes, expected: object
) -> None:
    """Null is an empty list, nothing counted, nothing said; a report that was heard is heard, even
    if not as ours."""
    found, _ = told(CALLS[name], answer(body))

    assert found == expected


def test_results_without_errors_are_counted() -> None:
    """`errors` may be null or missing; counts that do not fit what was sent are for the sender to
    see."""
    for tail in ("", ', "errors": null'):
        found, _ = told(
            CALLS["results"],
            answer(f'{{"inserted": 70, "updated": 7, "failed": 9{tail}}}'.encode()),
        )
        assert found == DeliveryCounts(77, 9, (), updated=7)


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (b"NaN", None),
        (b"-Infinity", None),
        (b'"\\ud800"', "?"),
        (b'"\xff"', "\ufffd"),
        (b'"a\nb"', "a\nb"),
    ],
)
def test_one_odd_task_does_not_cost_its_neighbours(odd: bytes, expected: object) -> None:
    """Tasks that were handed out are ours: what is no strict JSON in one of them does not lose the
    rest."""
    found, _ = told(
        CALLS["work"], answer(b'{"tasks": [{"task_id": "t-1", "x": %s}, {"task_id": "t-2"}]}' % odd)
    )

    assert found.tasks == [{"task_id": "t-1", "x": expected}, {"task_id": "t-2"}]
    msgspec.json.encode(found.tasks)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.sampled_from(("tasks", "errors", "commands")), inner)
    ),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_answer_breaks_the_reader(body: bytes) -> None:
    """Whatever comes is an answer or not the contract; nothing else is ever raised."""
    try:
        found = client.parse_object(body)
    except client.BadAnswer:
        found = {}
    for reader in (
        lambda: client.parse_work(found, 0.0),
        lambda: client.parse_counts(found, TOKEN),
    ):
        try:
            reader()
        except client.BadAnswer:
            continue
    assert client.error_message(body, TOKEN).isprintable()
    assert all(text.isprintable() for text in client.parse_commands(found, TOKEN))
    assert 0 <= client.longest_wait(["1"], found.get("retry_after"), NOW) <= MAX_WAIT_S


@given(st.text() | st.integers() | st.floats(), st.text(max_size=40))
def test_no_wait_is_absurd(value: object, header: str) -> None:
    """It is between nothing and ten minutes, whatever is asked for."""
    assert 0 <= client.longest_wait([header], value, NOW) <= MAX_WAIT_S


# Redirects


def moving(status: int, location: str, heard: list[Heard]) -> Talk:
    """A server that sends /internal/… somewhere else, and answers there."""

    def reply(request: Heard) -> bytes:
        if request.target.startswith("/internal"):
            return answer(b"elsewhere", f"Location: {location}", status=status)
        return answer(b'{"tasks": [], "inserted": 4, "updated": 0, "failed": 0}')

    return replying(reply, heard)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_of_a_get_are_followed_at_home(status: int) -> None:
    """On the same origin the same question is asked again."""
    heard: list[Heard] = []
    assert ask(CALLS["work"], moving(status, "/moved?a=%2E", heard)) == Work([], 0.0)

    assert [(entry.method, entry.target) for entry in heard][1:] == [("GET", "/moved?a=%2E")]
    assert heard[1].headers["x-worker-token"] == TOKEN


@pytest.mark.parametrize("status", [307, 308])
def test_redirects_that_keep_the_body_are_followed_at_home(status: int) -> None:
    """Method, body and headers are the same."""
    heard: list[Heard] = []
    assert ask(CALLS["results"], moving(status, "/moved", heard)) == DeliveryCounts(4, 0, ())

    first, second = heard
    assert second._replace(target=first.target) == first


@pytest.mark.parametrize("status", [301, 302, 303])
def test_redirects_that_would_drop_the_body_are_not_followed(status: int) -> None:
    """A result is never turned into a question."""
    heard: list[Heard] = []
    with pytest.raises(GatewayError, match=f"answered {status}.*is GATEWAY_URL right"):
        ask(CALLS["results"], moving(status, "/moved", heard))
    assert len(heard) == 1


@pytest.mark.parametrize(("hops", "good"), [(3, True), (4, False)])
def test_three_redirects_are_enough(hops: int, good: bool) -> None:
    """One more is an error."""

    def reply(request: Heard) -> bytes:
        n = int(request.target.rpartition("/")[2]) if request.target.startswith("/hop/") else 0
        return answer(b"", f"Location: /hop/{n + 1}", status=308) if n < hops else answer(COUNTS)

    if good:
        assert told(CALLS["results"], reply)[0] == DeliveryCounts(1, 0, ())
    else:
        assert "more than 3 times" in str(error(CALLS["results"], reply))


@pytest.mark.parametrize(
    "place",
    ["http://127.0.0.1:{away}/x", "//127.0.0.1:{away}/x", "http://localhost:{home}/x", "https://127.0.0.1:{home}/x",
     "http://127.0.0.1@127.0.0.2:{away}/x", "\\\\127.0.0.1:{away}\\x"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["work", "results"])
def test_nothing_goes_to_another_origin(name: str, place: str) -> None:
    """Another port, host or scheme hears nothing at all, and the error names it."""
    heard: list[Heard] = []
    strange: list[Heard] = []
    home: list[int] = []

    async def work() -> None:
        async with serving(replying(lambda _: answer(COUNTS), strange)) as away:

            def reply(_: Heard) -> bytes:
                return answer(b"", f"Location: {place.format(home=home[0], away=away)}", status=307)

            async with serving(replying(reply, heard)) as port:
                home.append(port)
                async with GatewayClient(settings(f"http://127.0.0.1:{port}"), "w") as made:
                    with pytest.raises(
                        GatewayError, match="the token was not sent there"
                    ) as caught:
                        await CALLS[name](made)
        origin = str(caught.value).partition("redirected to ")[2].partition(";")[0]
        assert origin.startswith("http")
        assert origin != f"http://127.0.0.1:{port}"

    asyncio.run(work())
    assert (len(heard), strange) == (1, [])


@pytest.mark.parametrize(
    "location",
    ["", "http://", "ftp://a.example/", "javascript:alert(1)", "http://[", "\xff\xfe://"],
)
def test_redirects_to_nowhere(location: str) -> None:
    """What is no address is an error like any other."""
    assert (
        type(error(CALLS["work"], answer(b"", f"Location: {location}", status=302))) is GatewayError
    )


def test_redirects_to_two_places() -> None:
    """A Gateway that cannot decide is not followed."""
    reply = answer(b"", "Location: /a", "Location: /b", status=307)
    assert "answered 307" in str(error(CALLS["work"], reply))


# Connections that misbehave


def saying(*pieces: bytes, reset: bool = False, hold: bool = False) -> Talk:
    """A server that hears a request, says something, and hangs up, politely or not; or stays
    silent."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hear(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if hold:
            await reader.read()
        if reset:
            plain = writer.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    return talk


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "talk",
    [
        saying(),
        saying(reset=True),
        saying(HEAD),
        saying(answer(COUNTS)[:-1]),
        saying(answer(COUNTS)[:-1], reset=True),
        saying(CHUNKED + b"5\r\n{\"a\"\r\n"),
        saying(CHUNKED + b"zz\r\n"),
        saying(b"\x16\x03\x01 no HTTP at all\r\n\r\n"),
        saying(b"HTTP/1.1 101 Switching\r\n\r\n"),
        saying(HEAD + b"Content-Encoding: gzip\r\n\r\n" + b"no gzip"),
        saying(HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b" " * 2**25)),
        saying(HEAD + b"Content-Length: 20000000\r\n\r\n" + b" " * 20_000_000),
        saying(CHUNKED + b"1312d00\r\n" + b" " * 20_000_000 + b"\r\n0\r\n\r\n"),
        saying(HEAD + b"X: " + b"x" * 300_000),
    ],
)  # fmt: skip
def test_broken_answers_may_get_better(call: Call, talk: Talk) -> None:
    """Cut off, reset, garbled or endless: an error that says so, and never half an answer."""
    with pytest.raises(GatewayError) as caught:
        ask(call, talk)
    assert type(fit(caught.value)) is GatewayError


def test_only_work_may_be_large() -> None:
    """An answer of some megabytes is read where tasks are handed out, and refused elsewhere."""
    tasks = {"tasks": [{"task_id": "x" * 150_000}] * 100}
    found, _ = told(CALLS["work"], answer(tasks))

    assert len(found.tasks) == 100
    assert "larger than 1,048,576 bytes" in str(error(CALLS["heartbeat"], answer(tasks)))


@pytest.mark.parametrize("talk", [
    saying(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"a\r\n" + COUNTS[:10] + b"\r\n",
           b"%x\r\n%s\r\n0\r\n\r\n" % (len(COUNTS) - 10, COUNTS[10:])),
    saying(HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(COUNTS)),
    saying(HEAD + b"\r\n" + COUNTS),
    saying(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(COUNTS)),
    saying(answer(COUNTS) + b"and more"),
])  # fmt: skip
def test_every_proper_form_of_an_answer_is_read(talk: Talk) -> None:
    """Chunked, compressed, without a length, after an interim answer."""
    assert ask(CALLS["results"], talk) == DeliveryCounts(1, 0, ())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 2", HEAD, answer(COUNTS)[:-1], answer(b"", "Location: /", status=307)[:-2]],
)
def test_silence_has_an_end(call: Call, said: bytes) -> None:
    """A Gateway that stops in the middle is left after the call's time."""
    with pytest.raises(GatewayError, match=r"longer than 0\.2 s"):
        ask(call, saying(said, hold=True), QUICK)


def test_a_drip_cannot_stretch_the_time() -> None:
    """Bytes that come one by one, and redirects one by one, count against the same time."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while True:
            writer.write(b"X: 1\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def slow_redirects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await hear(reader)
            await asyncio.sleep(0.08)
            writer.write(answer(b"", "Location: /x", status=307))

    for talk in (drip, slow_redirects):
        with pytest.raises(GatewayError, match=r"longer than 0\.2 s"):
            ask(CALLS["results"], talk, QUICK)


def test_nobody_there() -> None:
    """A closed port, an unknown name and a network that is not open are errors with their
    reasons."""

    async def work(url: str) -> str:
        async with GatewayClient(settings(url), "w", limits=CallLimits(connect_s=5)) as made:
            with pytest.raises(GatewayError) as caught:
                await made.heartbeat(b"{}", "k")
            return str(fit(caught.value))

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert "connection failed" in asyncio.run(
            work(f"http://127.0.0.1:{taken.getsockname()[1]}")
        )
    assert "CRAWLER_ALLOW_NETS" in asyncio.run(work("https://10.1.2.3"))
    assert "gateway.invalid" in asyncio.run(work("https://gateway.invalid"))


def test_a_dead_connection_is_replaced() -> None:
    """A kept connection that ends before any answer is no failure: the call is made again on a new
    one, once."""
    for large in (b"[{}]", LARGE):
        connections: list[list[Heard]] = []

        async def talk(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            known: list[list[Heard]] = connections,
        ) -> None:
            known.append([])
            known[-1].append(await hear(reader))
            writer.write(answer(COUNTS))
            known[-1].append(await hear(reader))

        async def work(made: GatewayClient, body: bytes = large) -> None:
            for _ in range(3):
                assert await made.send_results(body) == DeliveryCounts(1, 0, ())

        ask(work, talk)
        assert [len(entries) for entries in connections] == [2, 2, 1]


def test_a_connection_is_kept() -> None:
    """Calls one after the other share a connection, also after large bodies."""
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await hear(reader)
            writer.write(answer({"status": "ok"}))

    async def work(made: GatewayClient) -> None:
        for body in (b"x", LARGE[: 2**20], b"y"):
            await made.send_raw("a.html", body, {})

    ask(work, talk)
    assert connections == 1


def test_calls_at_the_same_time() -> None:
    """Each gets its own answer."""

    async def work(made: GatewayClient) -> list[list[str]]:
        return await asyncio.gather(*(made.heartbeat(b"{}", f"k-{n}") for n in range(30)))

    heard: list[Heard] = []
    reply: Reply = lambda request: answer({"commands": [request.headers["idempotency-key"]]})  # noqa: E731
    assert ask(work, replying(reply, heard)) == [[f"k-{n}"] for n in range(30)]


# Large bodies


def test_a_large_page_arrives_whole() -> None:
    """32 MiB go out as they are."""
    _, [heard] = told(
        lambda made: made.send_raw("a.html", LARGE, {"a": 1}), answer({"status": "ok"})
    )

    assert LARGE in heard.body
    assert parts(heard)["metadata"][1] == b'{"a":1}'


@pytest.mark.parametrize("taken", [0, 1_000_000, 20_000_000])
@pytest.mark.parametrize("rude", [False, True])
def test_an_answer_that_comes_early_is_read(taken: int, rude: bool) -> None:
    """A Gateway that refuses a body while it still comes is heard, whether it hangs up at once or
    not."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(taken)
        writer.write(answer({"error": {"message": "at most 1 MB"}}, status=413))
        await writer.drain()
        if not rude:
            await reader.read()

    with pytest.raises(GatewayRefused, match="at most 1 MB") as caught:
        ask(lambda made: made.send_results(LARGE), talk)
    assert caught.value.status == 413


def test_last_words_are_read_although_sending_fails() -> None:
    """A refusal right before a reset is heard, even if the reset is met first, by what is just
    being sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)  # or a failure here would wait for the thread for ever

        def refuse() -> None:
            for n in range(20):
                connection, _ = listening.accept()
                with connection:
                    taken = 0
                    while taken < n * 200_000:
                        taken += len(connection.recv(65536))
                    connection.sendall(answer(b"{}", status=413))

        async def work() -> None:
            known = settings(f"http://127.0.0.1:{listening.getsockname()[1]}")
            async with GatewayClient(known, "w") as made:
                for _ in range(20):
                    with pytest.raises(GatewayRefused, match="413"):
                        await made.send_results(LARGE)

        with ThreadPoolExecutor(1) as threads:
            rude = threads.submit(refuse)
            asyncio.run(work())
            rude.result()


@pytest.mark.parametrize("taken", [0, 1_000_000, len(LARGE)])
def test_a_success_that_comes_early(taken: int) -> None:
    """It counts where the Gateway goes on to take all of it, as one may that has it already; else
    it is none."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(COUNTS))
        await writer.drain()
        await reader.readexactly(taken)

    if taken == len(LARGE):
        assert ask(lambda made: made.send_results(LARGE), talk) == DeliveryCounts(1, 0, ())
    else:
        with pytest.raises(GatewayError, match="did not take the whole request"):
            ask(lambda made: made.send_results(LARGE), talk)


async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a connection, and nothing that comes over it."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


def test_a_gateway_that_does_not_read_costs_no_memory() -> None:
    """What it does not take stays where it is, and the call's time ends it."""

    async def work(made: GatewayClient) -> int:
        tracemalloc.start()
        try:
            with pytest.raises(GatewayError, match=r"longer than 0\.2 s"):
                await made.send_results(LARGE)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert ask(work, deaf, QUICK) < 2**22


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and certificates of it and of none."""
    return tls.make(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def secure(
    certificates: Path, name: str, talk: Talk, limits: CallLimits
) -> AsyncIterator[GatewayClient]:
    """A client of a Gateway with that certificate."""
    async with (
        serving(talk, tls=tls.identity(certificates, name)) as port,
        GatewayClient(settings(f"https://localhost:{port}"), "w", limits=limits) as made,
    ):
        yield made


@pytest.fixture
def trusted(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The authority as the only one that is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
    return certificates


def test_a_trusted_gateway_gets_everything(trusted: Path) -> None:
    """SSL_CERT_FILE says whom to trust; large bodies and early answers go through TLS as well."""
    heard: list[Heard] = []

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"", status=413))
        await reader.read()

    async def work() -> None:
        async with secure(
            trusted, "good", replying(lambda _: answer(COUNTS), heard), CALL_LIMITS
        ) as made:
            assert await made.send_results(LARGE) == DeliveryCounts(1, 0, ())
        async with secure(trusted, "good", early, CALL_LIMITS) as made:
            with pytest.raises(GatewayRefused):
                await made.send_results(LARGE)
        async with secure(trusted, "good", deaf, QUICK) as made:
            with pytest.raises(GatewayError, match="longer than"):
                await made.send_results(LARGE)

    asyncio.run(work())
    assert heard[0].body == LARGE


@pytest.mark.parametrize("name", ["other", "expired", "self"])
def test_a_gateway_that_cannot_be_trusted_hears_nothing(trusted: Path, name: str) -> None:
    """Neither the token nor a result goes to whoever has the wrong certificate."""
    heard: list[Heard] = []

    async def work() -> None:
        async with secure(
            trusted, name, replying(lambda _: answer(COUNTS), heard), CALL_LIMITS
        ) as made:
            for call in CALLS.values():
                with pytest.raises(GatewayError, match="TLS failed") as caught:
                    await call(made)
                assert type(fit(caught.value)) is GatewayError

    asyncio.run(work())
    assert heard == []


def test_an_unknown_authority_is_not_trusted(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without SSL_CERT_FILE the system decides, and does not know the test's authority."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    heard: list[Heard] = []

    async def work() -> None:
        async with secure(
            certificates, "good", replying(lambda _: answer(COUNTS), heard), CALL_LIMITS
        ) as made:
            with pytest.raises(GatewayError, match="TLS failed"):
                await made.send_results(b"[]")

    asyncio.run(work())
    assert heard == []


# What the client below it learnt


def test_a_post_and_its_redirect_as_pages() -> None:
    """A POST says its length even without a body, and its redirect is the page if it asks so, as is
    that of a GET."""
    heard: list[Heard] = []

    async def work() -> list[int]:
        moved = answer(b"x", "Location: /y", status=302)
        async with serving(replying(lambda _: moved, heard)) as port, Client(1000) as made:
            url = f"http://127.0.0.1:{port}/x"
            first = await made.fetch(Request(url=url, loopback=True, method="POST", follow=False))
            second = await made.fetch(Request(url=url, loopback=True, follow=False))
            return [first.status, second.status]

    assert asyncio.run(work()) == [302, 302]
    assert [(entry.method, entry.target) for entry in heard] == [("POST", "/x"), ("GET", "/x")]
    assert heard[0].headers["content-length"] == "0"
    assert "content-length" not in heard[1].headers


@pytest.mark.parametrize(
    "odd",
    [
        b'{"task_id": "t-2", "x": 1e400}',
        b'{"task_id": "t-2", "x": ' + b"9" * 5000 + b"}",
        b'{"task_id": "t-2", "x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"task_id": "t-2", "x": NaN}',
        b'{"task_id": "t-2", "x": "\\ud800 \xff ] } ,"}',
        b'{"task_id": "t-2", "x": }',
    ],
    ids=["1e400", "digits", "deep", "nan", "surrogate", "broken"],
)
def test_a_task_that_cannot_be_read_at_all_does_not_either(odd: bytes) -> None:
    """Whatever is in it: the others are read as they are, and its own id is known, so that its end
    can be reported."""
    body = (
        b'\xef\xbb\xbf{"tasks": [{"task_id": "t-1"}, '
        + odd
        + b', {"task_id": "t-3", "y": "a,]b"}], "retry_after": 1e400}'
    )

    found = client.parse_work(client.parse_object(body), 0.0)

    assert [task["task_id"] for task in found.tasks] == ["t-1", "t-2", "t-3"]
    assert found.tasks[2] == {"task_id": "t-3", "y": "a,]b"}
