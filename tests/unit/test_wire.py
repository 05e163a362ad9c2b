"""HTTP on the wire: whatever the bytes and however they are cut, an answer is read the same way or
has a reason."""

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from crawler.db import raw_pages
from crawler.doctor import reconciliation
from crawler.errors import FetchError
from crawler.fetch import session, wire
from crawler.fetch.body import Body
from crawler.fetch.budget import Budget
from crawler.fetch.http import Client, Request
from crawler.fetch.robots import RuleSet
from crawler.models import RawLocation
from crawler.scraping.stored import rebuild_page
from tests.support.serving import serving
from tests.support.tasks import page

REASONS = {
    "bad_response",
    "truncated",
    "connection",
    "too_large",
    "unknown_encoding",
    "bad_encoding",
    "bad_redirect",
}
PIECES = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204\r\n",
    b"http/1.0 404 No\n", b"\r\n", b"\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Location: //\xff\r\n", b"Content-Encoding: gzip\r\n",
    b"Connection: close\r\n", b" folded\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello", b"\0",
    b"\x1f\x8b", b":", b"Set-Cookie: a=b; Domain=\xff\r\n", b"HTTP/1.1 302 Found\r\n", b"\xff" * 10,
    b";ext",
]  # fmt: skip


def head(text: bytes) -> wire.Head:
    """The head of an answer."""
    start = wire.start_of_head(text)
    return wire.parse_head(text[start : wire.end_of_head(text, start)])


@pytest.mark.parametrize(
    ("text", "status", "reason", "persistent"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 200, "OK", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close\r\n\r\n", 200, "OK", False),
        (b"HTTP/1.0 200 OK\r\n\r\n", 200, "OK", False),
        (b"HTTP/1.0 200 OK\nconnection: keep-alive\n\n", 200, "OK", True),
        (b"\r\nHTTP/1.1 404 Nicht da\r\n\r\n", 404, "Nicht da", True),
        (b"http/1.1  503\r\n\r\n", 503, "", True),
        (b"HTTP 200\r\n\r\n", 200, "", False),
        (b"HTTP/1.1 abc\r\n\r\n", 200, "abc", True),
        (b"HTTP/1.1 200 Sch\xf6n\r\n\r\n", 200, "Schön", True),
    ],
)
def test_status_lines(text: bytes, status: int, reason: str, persistent: bool) -> None:
    """Status, reason and whether the connection stays, as browsers understand them."""
    found = head(text)
    assert (found.status, found.reason, found.persistent) == (status, reason, persistent)


def test_headers() -> None:
    """Names keep case and order, values lose their blanks, folds become one line, what is no header
    is left out."""
    found = head(
        b"HTTP/1.1 200 OK\r\n stray\r\nB:  2 \r\nA : 1\r\nno colon\r\n: no name\r\nBad Name: 3\r\n"
        b"b: 3,\r\n\t4\r\n\r\n"
    )
    assert found.headers == (("B", "2"), ("A", "1"), ("b", "3, 4"))
    assert found.fields["b"] == ["2", "3, 4"]
    assert found.list("b") == ["2", "3", "4"]


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 40))
def test_chunks_are_the_same_however_they_arrive(parts: list[bytes], step: int) -> None:
    """A body in chunks comes out whole, in whatever pieces it comes in; what follows it is
    noticed."""
    whole = (
        b"".join(b"%x;e=1\r\n%s\r\n" % (len(part), part) for part in parts if part)
        + b"0\r\nX: 1\r\n\r\n"
    )
    chunks, out = wire.Chunks(), b""
    for begin in range(0, len(whole), step):
        assert not chunks.done
        out += chunks.feed(whole[begin : begin + step])
    assert chunks.done
    assert out == b"".join(parts)
    assert not chunks.rest
    again = wire.Chunks()
    again.feed(whole + b"x")
    assert again.rest


@given(st.binary(max_size=300))
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    """Whatever comes, there is a head or body, or a `FetchError`."""
    for text in (data, b"HTTP/1.1 200 OK\r\n" + data + b"\r\n\r\n", b"HTTP" + data + b"\n\n"):
        try:
            wire.framing(wire.parse_head(text))
        except FetchError as error:
            assert error.message.isprintable()  # noqa: PT017 - either outcome is right
        try:
            wire.Chunks().feed(text)
        except FetchError as error:
            assert error.message.isprintable()  # noqa: PT017 - either outcome is right


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), min_size=1, max_size=20)
)
def test_no_server_breaks_the_client(answers: list[bytes]) -> None:
    """Whatever a server says before it hangs up, a fetch ends with a page or a reason, and so does
    the next one."""

    async def work() -> set[str]:
        left = list(answers)

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(left.pop() if left else b"")
            await writer.drain()

        found = set()
        async with serving(talk) as port, Client(10_000) as made:
            for _ in range(len(answers)):
                try:
                    await made.fetch(
                        Request(url=f"http://127.0.0.1:{port}/", loopback=True, timeout_s=20)
                    )
                except FetchError as error:
                    found.add(error.reason)
        return found

    assert asyncio.run(work()) <= REASONS


def test_folded_lines_follow_each_other() -> None:
    """However many lines a value has, they are one, with single blanks between them."""
    sent = b"HTTP/1.1 200 OK\r\n lost\r\nA:\r\n \t b\r\n\t\r\n c \r\nB: d\r\n e\r\nno colon\r\n\r\n"
    head = wire.parse_head(sent)

    assert head.headers == (("A", "b c"), ("B", "d e"))
    assert head.size == len(sent)


def told(sign: int, inside: str) -> bytes:
    """A head of a plain page with a sign inside of its reason and of values, before what looks like
    a header."""
    lines = (
        f"HTTP/1.1 200 O{chr(sign)}{inside}",
        f"X-A: b{chr(sign)}{inside}",
        f"X-B: c{chr(sign)}",
        "",
        "",
    )
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize("sign", [n for n in range(1, 256) if chr(n) not in "\r\n"])
def test_a_stored_head_reads_as_it_came(sign: int, tmp_path: Path) -> None:
    """Whatever bytes a server puts into a header, every reader of the store finds the headers that
    it sent."""
    # Given a page whose head holds what looks like headers of another page
    body = b"<title>Parcel</title>"
    head = wire.parse_head(told(sign, "Content-Encoding: gzip"))
    came = replace(page("https://county.example/", body), reason=head.reason, headers=head.headers)

    # When it is stored
    member = raw_pages.packed(came, sha256(body).hexdigest())
    (tmp_path / "a.warc.gz").write_bytes(member)
    stored, raw = raw_pages.unpack(member, 1 << 20)

    # Then all read the same from it
    again = rebuild_page(stored, raw, came.url)
    assert (again.status, again.reason, again.headers, again.body) == (
        200,
        head.reason,
        head.headers,
        body,
    )
    assert reconciliation.decoded_page(
        tmp_path, RawLocation(segment="a.warc.gz", offset=0, length=len(member))
    ) == (
        stored,
        body,
    )


@pytest.mark.parametrize("sign", [0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x1F, 0x85, 0xA0])
def test_only_blanks_and_tabs_stand_around_values(sign: int) -> None:
    """Other bytes belong to a value: with them it is no length, no coding and no end of a
    connection."""
    odd = chr(sign).encode("latin-1")
    head = wire.parse_head(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5"
        + odd
        + b"\r\nTransfer-Encoding: "
        + odd
        + b"chunked\r\n"
        b"Connection: close" + odd + b"\r\n\r\n"
    )

    assert wire.framing(head) == wire.Framing()
    assert head.persistent
    assert not Body(f"gzip{chr(sign)}", 100).is_coded


def test_a_cookie_keeps_all_its_bytes() -> None:
    """The last byte of an `à` in UTF-8 is a blank in Latin-1."""
    value = "à la".encode()[:2].decode("latin-1")
    cookie = session.parse(f"name={value} ; path=/", "https", "county.example", "/", 0.0)

    assert cookie
    assert cookie.value == value


def test_robots_txt_has_the_lines_that_end() -> None:
    """Other signs that Python takes for a line's end are part of a rule."""
    rules = RuleSet(
        "User-agent: *\nDisallow: /\x0bAllow: /\x85Allow: /\u2028Allow: /", "crawler", Budget()
    )

    assert rules.allows("https://county.example/records", Budget())
    assert not RuleSet("User-agent: *\rDisallow: /\r", "crawler", Budget()).allows(
        "https://a.example/b", Budget()
    )
