"""Egress: no notation, redirect, name or reused connection leads into this machine or its networks
by surprise."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.errors import FetchError, UrlError
from crawler.fetch import egress
from crawler.fetch.egress import Egress, Reach
from crawler.fetch.http import Client, Request
from crawler.urls import parse
from tests.support.serving import serving
from tests.support.site import Site

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ncanary"


def own_addresses() -> list[str]:
    """This machine's addresses that are not loopback, as far as they can be found without sending
    anything."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.254"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.connect((far, 9))  # a datagram socket sends nothing by this
            found.append(str(probe.getsockname()[0]))
    return found


class Canaries:
    """Listeners on one port of every address of this machine; a single connection is one too
    many."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[str] = []
        self.addresses = [
            "127.0.0.1",
            "127.0.0.2",
            "127.8.9.10",
            "127.255.255.254",
            "::1",
            *own_addresses(),
        ]
        self._servers = AsyncExitStack()

    async def __aenter__(self) -> "Canaries":
        for address in self.addresses:
            self.port = await self._servers.enter_async_context(
                serving(self._talk, address, self.port)
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._servers.aclose()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append(str(writer.get_extra_info("sockname")[0]))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await writer.drain()


def names(**answers: Sequence[str] | list[Sequence[str]]) -> egress.Lookup:
    """A name server under the test's control; a list of lists answers differently each time."""
    rounds = {name.replace("_", "."): answer for name, answer in answers.items()}

    async def lookup(host: str) -> Sequence[str]:
        answer = rounds.get(host.rstrip("."))
        if answer is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if answer and isinstance(answer[0], list | tuple):
            return list(answer.pop(0)) if len(answer) > 1 else list(answer[0])  # type: ignore[union-attr]
        return [str(part) for part in answer]

    return lookup


def run(work: Callable[[Canaries], Awaitable[None]]) -> None:
    """Do something among canaries."""

    async def inside() -> None:
        async with Canaries() as canaries:
            await work(canaries)

    asyncio.run(inside())


@asynccontextmanager
async def client(
    *allow: str, lookup: egress.Lookup | None = None, through: str = ""
) -> AsyncIterator[Client]:
    """A client that can resolve only what the test says."""
    proxies = egress.Proxies.from_environment(through or None, through or None, None)
    async with Client(100_000, egress=Egress(allow, lookup or names()), through=proxies) as made:
        yield made


async def reason(made: Client, url: str, *, loopback: bool = False) -> str:
    """What a fetch comes to: `ok` or a reason code."""
    try:
        page = await made.fetch(Request(url=url, loopback=loopback, timeout_s=5))
    except FetchError as error:
        return error.reason
    assert page.body
    return "ok"


# Hosts that mean this machine or its networks. What a browser's parser refuses never gets as far as
# a connection.
V4_LOOPBACK = [
    "127.0.0.1", "127.1", "127.0.1", "127.00.00.01", "0177.0.0.1", "0177.1", "0177.0.1",
    "00000177.1", "0x7f.0.0.1", "0x7f.1", "0x7F.0x0.0x0.0x1", "0x7f000001", "0X7F000001",
    "2130706433", "017700000001", "0x7f.0.1", "127.0.0.1.", "127.1.", "127.0x1", "127.0.0x1",
    "127.0.01", "0x7f.0x1", "0x0000007f.1", "127.000000.1", "127.65535", "127.16777214",
    "127.0.0.2", "127.8.9.10", "127.255.255.254", "2131232010", "0x7f08090a", "127.8.2314",
    "127.526602", "１２７.０.０.１", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "①②⑦.⓪.⓪.①",
    "𝟏𝟐𝟕.𝟎.𝟎.𝟏", "0x⑦f.1", "１２７。１", "⑫7.1", "127%2e0%2e0%2e1", "%31%32%37.0.0.1",
    "%31%32%37%2E%31", "127.0.0.%31", "0%787f.1", "%30x7f000001", "127.0.0.1%20", "127.0.0.1%00",
    "1%0927.0.0.1", "127\t.0.0.1", "12\n7.0.0.1", "127.0.0.1\r", "\u00ad127.0.0.1", "127.\u00ad1",
    "127\u200b.0.0.1", "127.0.0.1\u2060", "127.0.0.256", "127.0.0.1.1", "127..1", "4294967296",
    "0x17f000001", "127.0.0.0x", "127.0.0.09", "0b1111111.1", "127.0.0.1e0", "+127.0.0.1",
    "127.0.0.-1", "localhost", "LOCALHOST", "localhost.", "ＬＯＣＡＬＨＯＳＴ", "loc%61lhost",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "app.localhost", "a.b.LocalHost.", "localhost..", "local\thost", "%6cocalhost",
    "localho\u00adst", "lo\u200bcalhost",
]  # fmt: skip
V4_OTHER = [
    "0.0.0.0", "0", "0x0", "00", "0.0", "000.000.000.000", "0.1", "0.0.0.1", "0.255.255.255", "%30",
    "０", "10.0.0.1", "012.1", "0xa000001", "167772161", "10.1", "10.255.255.255", "172.16.0.1",
    "172.31.255.255", "2886729729", "192.168.0.1", "192.168.1", "0xc0.0xa8.1", "3232235521",
    "169.254.169.254", "0xa9fea9fe", "2852039166", "169.16689662", "0251.0376.0251.0376",
    "１６９.２５４.１６９.２５４", "100.64.0.1", "100.127.255.255", "192.0.0.1", "192.0.0.9",
    "192.0.0.170", "192.0.2.1", "198.51.100.7", "203.0.113.7", "198.18.0.1", "198.19.255.255",
    "192.88.99.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "4294967295",
    "0xffffffff", "255.255.255.254",
]  # fmt: skip
V6 = [
    "[::1]", "[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::0001]", "[0::1]",
    "[::0.0.0.1]", "[::]", "[0:0:0:0:0:0:0:0]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[::FFFF:7F00:0001]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::ffff:127.8.9.10]", "[::ffff:0.0.0.0]",
    "[::ffff:10.0.0.1]", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]",
    "[::7f00:1]", "[::10.0.0.1]", "[::ffff:0:127.0.0.1]", "[::ffff:0:7f00:1]", "[2002:7f00:1::]",
    "[2002:7f00:1::1]", "[2002:a00:1::1]", "[2002:a9fe:a9fe::]", "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::127.0.0.1]",
    "[64:ff9b:1::8.8.8.8]", "[64:ff9b:1:7f00:0:100::]", "[2001::1]", "[2001:0:7f00:1::]",
    "[2001:0:7f00:1:0:0:80ff:fffe]", "[2001:0:808:808:0:0:80ff:fffe]",
    "[2001:0:808:808:0:0:f7f7:f7f7]", "[fe80::1]", "[fe80::5efe:7f00:1]", "[2600::5efe:127.0.0.1]",
    "[2600::200:5efe:10.0.0.1]", "[fe80::1%25lo]", "[fe80::1%lo]", "[::1%25lo]", "[::1%1]",
    "[febf::1]", "[fec0::1]", "[fc00::1]", "[fd00::2]", "[fdff:ffff::1]", "[ff02::1]", "[ff0e::1]",
    "[100::1]", "[100:0:0:1::1]", "[2001:db8::1]", "[3fff::1]", "[5f00::1]", "[2001:2::1]",
    "[2001:10::1]", "[4000::1]", "[1::1]", "[::ffff:127.1]", "[::ffff:0x7f.0.0.1]", "[::1].",
    "[::1]x", "::1", "[::ffff:2130706433]", "[0:0:0:0:0:0:0:0:1]",
]  # fmt: skip
TRICKS = [
    "http://8.8.8.8@127.0.0.1:{port}/", "http://8.8.8.8:80@127.0.0.1:{port}/",
    "http://8.8.8.8%40127.0.0.1:{port}/", "http://user:geheim@[::1]:{port}/",
    "http://127.0.0.1:{port}\\@8.8.8.8/", "http:\\\\127.0.0.1:{port}\\", "http:/127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/", "http:///127.0.0.1:{port}/", "http://////127.1:{port}/",
    "ht\ntp://127.0.0.1:{port}/", "http://127.0.0.1:{port}\t/", " \x01http://127.0.0.1:{port}/",
    "HTTP://LOCALHOST:{port}/", "http://127.0.0.1:{port}#@8.8.8.8/",
    "http://127.0.0.1:{port}?@8.8.8.8/", "http://127.0.0.1:0{port}/", "http://127.0.0.1:000{port}/",
    "http://127.0.0.1:{port}:80/", "http://127.0.0.1 :{port}/", "http://127.0.0.1%3a{port}/",
    "https://127.0.0.1:{port}/", "https://[::ffff:7f00:1]:{port}/", "ws://127.0.0.1:{port}/",
    "ftp://127.0.0.1:{port}/", "gopher://127.0.0.1:{port}/_GET%20/", "file://127.0.0.1/etc/passwd",
    "blob:http://127.0.0.1:{port}/x", "view-source:http://127.0.0.1:{port}/",
    "javascript:fetch('http://127.0.0.1:{port}/')", "//127.0.0.1:{port}/",
    "data:text/html,<meta http-equiv=refresh content=0;url=http://127.0.0.1:{port}/>",
    "unix:///var/run/docker.sock", "http://[::1]:{port}@127.0.0.1:{port}/",
    "http://a:b:c@127.0.0.1:{port}/", "http://@127.0.0.1:{port}/",
]  # fmt: skip
HOSTS = V4_LOOPBACK + V4_OTHER + V6


def refused(what: str) -> bool:
    """Whether a reason code says that nothing was even tried."""
    return what in ("forbidden_address", "bad_url", "bad_redirect", "dns")


def test_there_are_enough_tricks() -> None:
    """At least 150 different ones."""
    assert len({*HOSTS, *TRICKS}) >= 220


def test_no_notation_reaches_this_machine() -> None:
    """However an address that is not global is written, no connection is made, whether typed or
    from elsewhere."""

    async def work(canaries: Canaries) -> None:
        urls = [f"http://{host}:{canaries.port}/" for host in HOSTS]
        urls += [trick.format(port=canaries.port) for trick in TRICKS]
        async with client() as made:
            outcomes = {url: await reason(made, url) for url in urls}
        assert {url: what for url, what in outcomes.items() if not refused(what)} == {}
        assert canaries.seen == []

    run(work)


def test_typed_urls_reach_loopback_and_nothing_else() -> None:
    """A URL of this machine's command line may name loopback in any notation, but no other special
    address."""

    async def work(canaries: Canaries) -> None:
        async with client() as made:
            others = [f"http://{host}:{canaries.port}/" for host in V4_OTHER]
            others += [f"http://{host}:{canaries.port}/" for host in V6 if not _is_loopback(host)]
            outcomes = {url: await reason(made, url, loopback=True) for url in others}
            assert {url: what for url, what in outcomes.items() if not refused(what)} == {}
            assert canaries.seen == []

            good = [
                "127.0.0.1",
                "127.1",
                "0x7f.1",
                "2130706433",
                "127.8.9.10",
                "[::1]",
                "[::ffff:127.0.0.1]",
            ]
            good += ["localhost", "a.localhost", "LOCALHOST.", "１２７。１", "127.0.0.1."]
            for host in good:
                assert (
                    await reason(made, f"http://{host}:{canaries.port}/", loopback=True) == "ok"
                ), host
        assert len(canaries.seen) == len(good)

    run(work)


def _is_name(host: str) -> bool:
    """Whether a notation is, after all, a name that only DNS can tell about."""
    with suppress(UrlError):
        bare = parse(f"http://{host}/").url.split("/")[2]
        return egress.ip_literal(bare) is None and not egress.names_loopback(bare)
    return False


def _is_loopback(host: str) -> bool:
    try:
        url = parse(f"http://{host}/").url
    except UrlError:
        return False
    return egress.names_loopback(url.split("/")[2])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_lead_nowhere_special(site: Site, status: int) -> None:
    """From a page of this machine a redirect leads to the same host and port, or out, never
    elsewhere in it."""

    async def work(canaries: Canaries) -> None:
        locations = [f"http://{host}:{canaries.port}/" for host in HOSTS]
        locations += [trick.format(port=canaries.port) for trick in TRICKS]
        locations += [
            f"//{host}:{canaries.port}/" for host in ("127.0.0.1", "[::1]", "localhost", "0")
        ]
        async with client() as made:
            for location in locations:
                url = f"{site.url}/redirect-to?u={quote(location, safe='')}&status={status}"
                what = await reason(made, url, loopback=True)
                # What is no URL for a redirect may be a path of the same site, which is not there.
                assert refused(what) or what == "ok", (location, what)
            assert canaries.seen == []
            chain = (
                f"{site.url}/redirect-to?u={quote(f'http://127.0.0.1:{canaries.port}/', safe='')}"
            )
            assert await reason(
                made, f"{site.url}/redirect-to?u={quote(chain, safe='')}", loopback=True
            ) == ("forbidden_address")
            assert (
                await reason(
                    made, f"{site.url}/redirect-to?u=/page/1&status={status}", loopback=True
                )
                == "ok"
            )
        assert canaries.seen == []

    run(work)


def test_a_redirect_from_outside_never_leads_in() -> None:
    """A page of another network that redirects to this machine gets nowhere, even if the URL was
    typed here."""

    async def work(canaries: Canaries) -> None:
        async with _server(lambda: f"http://127.0.0.1:{canaries.port}/") as (outside, port):
            lookup = names(outside_example=[outside])
            async with client(f"{outside}/32", lookup=lookup) as made:
                for typed in (False, True):
                    url = f"http://outside.example:{port}/"
                    assert await reason(made, url, loopback=typed) == "forbidden_address"
        assert canaries.seen == []

    run(work)


@asynccontextmanager
async def _server(location: Callable[[], str]) -> AsyncIterator[tuple[str, int]]:
    """A server on an address of this machine that is opened for it, which redirects."""
    address = next((found for found in own_addresses() if ":" not in found), "127.77.77.77")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            lines = ["HTTP/1.1 302 Found", f"Location: {location()}", "Content-Length: 0", "", ""]
            writer.write("\r\n".join(lines).encode())
            await writer.drain()

    async with serving(talk, address) as port:
        yield address, port


def test_names_that_lead_in_are_refused() -> None:
    """A name in DNS or /etc/hosts that leads to this machine or a private network does not name
    it."""

    async def work(canaries: Canaries) -> None:
        inside = [
            *canaries.addresses,
            "10.0.0.1",
            "169.254.169.254",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "fe80::1%1",
        ]
        for address in inside:
            async with client(lookup=names(evil_example=[address])) as made:
                for typed in (False, True):
                    what = await reason(
                        made, f"http://evil.example:{canaries.port}/", loopback=typed
                    )
                    assert what == "forbidden_address", address
        async with client(lookup=names(evil_example=canaries.addresses)) as made:
            assert (
                await reason(made, f"http://evil.example.:{canaries.port}/", loopback=True)
                == "forbidden_address"
            )
        async with client(lookup=names(none_example=[])) as made:
            assert await reason(made, "http://none.example/") == "dns"
            assert await reason(made, "http://unknown.example/") == "dns"
        assert canaries.seen == []

    run(work)


def test_of_mixed_answers_only_the_good_are_dialled() -> None:
    """A name with good and bad addresses is fetched from the good ones, which here do not
    answer."""

    async def work(canaries: Canaries) -> None:
        mixed = ["127.0.0.1", "127.8.9.10", "::1", "10.0.0.1"]
        async with client(
            "127.0.0.2/32", lookup=names(mixed_example=[*mixed, "127.0.0.2"])
        ) as made:
            assert await reason(made, f"http://mixed.example:{canaries.port}/") == "ok"
        assert canaries.seen == ["127.0.0.2"]

    run(work)


def test_rebinding_changes_nothing() -> None:
    """A name that is good when it is checked and bad a moment later is dialled where it was
    checked, or not at all."""

    async def work(canaries: Canaries) -> None:
        clock = [0.0]
        turns: list[Sequence[str]] = [
            ["127.0.0.2"],
            ["127.0.0.1"],
            ["::1"],
            ["127.0.0.1", "127.0.0.2"],
            ["127.0.0.1"],
        ]
        made = Egress(("127.0.0.2/32",), names(rebind_example=turns), clock=lambda: clock[0])
        async with Client(1000, egress=made) as fetcher:
            outcomes = []
            for _ in range(5):
                outcomes.append(await reason(fetcher, f"http://rebind.example:{canaries.port}/"))
                clock[0] += egress.DNS_CACHE_S + 1
        assert outcomes == [
            "ok",
            "forbidden_address",
            "forbidden_address",
            "ok",
            "forbidden_address",
        ]
        assert set(canaries.seen) == {"127.0.0.2"}

    run(work)


def test_what_is_connected_to_is_checked_last() -> None:
    """Even a check that was fooled before ends at the socket."""

    async def work(canaries: Canaries) -> None:
        class Fooled(Egress):
            async def addresses(
                self, host: str, reach: Reach = Reach.GLOBAL, *, every: bool = False
            ) -> list[str]:
                return list(canaries.addresses)

        async with Client(1000, egress=Fooled()) as made:
            assert await reason(made, f"http://a.example:{canaries.port}/") == "forbidden_address"
        assert canaries.seen == []

    run(work)


def test_a_kept_connection_serves_only_its_own_kind(site: Site) -> None:
    """A connection that a typed URL opened to this machine is not used for one that was not typed,
    or by redirect."""

    async def work(_: Canaries) -> None:
        async with client() as made:
            assert await reason(made, f"{site.url}/page/1", loopback=True) == "ok"
            assert await reason(made, f"{site.url}/page/2") == "forbidden_address"
        async with (
            _server(lambda: f"{site.url}/page/3") as (outside, port),
            client(f"{outside}/32") as made,
        ):
            assert await reason(made, f"{site.url}/page/1", loopback=True) == "ok"
            assert (
                await reason(made, f"http://{outside}:{port}/", loopback=True)
                == "forbidden_address"
            )
        assert set(site.hits()) == {"/page/1"}

    run(work)


def test_having_left_this_machine_there_is_no_way_back(site: Site) -> None:
    """A page of this machine that redirects out cannot be redirected back in, not even to where it
    came from."""

    async def work(_: Canaries) -> None:
        async with (
            _server(lambda: f"{site.url}/page/1") as (outside, port),
            client(f"{outside}/32") as made,
        ):
            url = f"{site.url}/redirect-to?u={quote(f'http://{outside}:{port}/', safe='')}"
            assert await reason(made, url, loopback=True) == "forbidden_address"
        assert "/page/1" not in site.hits()

    run(work)


def test_headers_open_no_connection(site: Site) -> None:
    """Alt-Svc, Refresh, Link and a meta refresh are read by nobody."""

    async def work(canaries: Canaries) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            there = f"127.0.0.1:{canaries.port}"
            body = (
                f'<meta http-equiv="refresh" content="0; url=http://{there}/"><base '
                f'href="http://{there}/">'
            )
            lines = [
                "HTTP/1.1 200 OK",
                f'Alt-Svc: h2="{there}"',
                f"Refresh: 0; url=http://{there}/",
            ]
            lines += [
                f"Link: <http://{there}/>; rel=preload",
                f"Content-Location: http://{there}/",
                "Connection: close",
            ]
            lines += [f"Location: http://{there}/", "", body]
            writer.write("\r\n".join(lines).encode())

        async with serving(talk) as port, client() as made:
            for _ in range(2):
                assert await reason(made, f"http://127.0.0.1:{port}/", loopback=True) == "ok"
        assert canaries.seen == []

    run(work)


def test_a_location_with_credentials_is_followed_without_them() -> None:
    """User info in a Location opens nothing and is sent nowhere."""

    async def work(canaries: Canaries) -> None:
        location = f"http://8.8.8.8:geheim@127.0.0.1:{canaries.port}/"
        async with _server(lambda: location) as (outside, port), client(f"{outside}/32") as made:
            with pytest.raises(FetchError) as caught:
                await made.fetch(Request(url=f"http://{outside}:{port}/", timeout_s=5))
        assert caught.value.reason == "forbidden_address"
        assert "geheim" not in str(caught.value)
        assert canaries.seen == []

    run(work)


class ProxyServer:
    """A proxy that writes down what it is asked for, and refuses everything."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    async def __aenter__(self) -> "ProxyServer":
        self._server = serving(self._talk)
        self.url = f"http://user:geheim@127.0.0.1:{await self._server.__aenter__()}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__(None, None, None)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()


def test_a_proxy_is_asked_for_nothing_special() -> None:
    """Addresses and names that lead in are refused before a proxy hears of them; what is unknown
    here is its own."""

    async def work(canaries: Canaries) -> None:
        lookup = names(
            evil_example=["10.0.0.1"],
            mixed_example=["8.8.8.8", "127.0.0.1"],
            good_example=["8.8.8.8"],
        )
        async with ProxyServer() as server, client(lookup=lookup, through=server.url) as made:
            hosts = [host for host in HOSTS if not _is_name(host)] + [
                "evil.example",
                "mixed.example",
            ]
            for scheme in ("http", "https"):
                for host in hosts:
                    assert refused(await reason(made, f"{scheme}://{host}:{canaries.port}/")), host
            assert server.asked == []
            assert await reason(made, "http://good.example/a") == "ok"
            assert await reason(made, "https://good.example/a") == "proxy"
            assert await reason(made, "http://unknown.example/a") == "ok"
            assert await reason(made, f"http://127.0.0.1:{canaries.port}/", loopback=True) == "ok"
            assert server.asked == [
                b"GET http://good.example/a HTTP/1.1",
                b"CONNECT good.example:443 HTTP/1.1",
                b"GET http://unknown.example/a HTTP/1.1",
            ]
        assert canaries.seen == ["127.0.0.1"]

    run(work)


DISGUISED = [
    "intern.", "INTERN.", "ｉｎｔｅｒｎ.", "intern。", "intern．", "intern｡", "%69ntern.",
    "intern%2e", "int\u00adern.", "intern", "db.intern.", "10.0.0.1..", "10.0.0.1...", "012.1..",
    "0xa000001..", "167772161..", "10.0.0.1。。", "１０.0.0.1．．", "127.0.0.1..", "localhost..",
    "a.localhost..", "localhost.", "a.localhost.", "LOCALHOST。", "intern..", ".intern",
    "db..intern", "169.254.169.254..", "[::ffff:10.0.0.1]", "[fe80::1%25eth0]", "10.0.0.1.",
    "0:0:0:0:0:ffff:0a00:1", "[::ffff:a00:1]", "[64:ff9b::a00:1]",
]  # fmt: skip
"""Hosts that are, or that a proxy may take for, the machine `intern` with 10.0.0.1 or this one."""


def test_no_other_name_of_a_host_reaches_a_proxy() -> None:
    """Names that only the hosts file or the own domain knows, addresses with dots, by URL and by
    redirect."""

    async def lookup(host: str) -> Sequence[str]:
        known = {"intern": ["10.0.0.1"], "db.intern": ["10.0.0.2"], "good.example": ["8.8.8.8"]}
        if (
            host not in known
        ):  # as the C library has it: with a dot at its end a name is not in the hosts file
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[host]

    location = ""
    asked: list[bytes] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
            lines = ["HTTP/1.1 302 Found", f"Location: {location}", "Content-Length: 0", "", ""]
            writer.write("\r\n".join(lines).encode())

    async def work() -> None:
        nonlocal location
        async with (
            serving(forward) as port,
            client(lookup=lookup, through=f"http://127.0.0.1:{port}") as made,
        ):
            for scheme in ("http", "https"):
                for host in DISGUISED:
                    assert refused(await reason(made, f"{scheme}://{host}/")), host
            assert asked == []
            for host in DISGUISED:
                location = f"http://{host}/"
                assert refused(await reason(made, "http://good.example/")), host
            assert set(asked) == {b"GET http://good.example/ HTTP/1.1"}

    asyncio.run(work())


def test_a_proxy_may_be_on_this_machine_but_not_in_a_private_network() -> None:
    """The operator names a proxy, so that loopback is meant; a private network must be opened."""

    async def work(canaries: Canaries) -> None:
        lookup = names(good_example=["8.8.8.8"])
        for address in own_addresses():
            host = f"[{address}]" if ":" in address else address
            through = f"http://{host}:{canaries.port}"
            async with client(lookup=lookup, through=through) as made:
                assert await reason(made, "http://good.example/") == "forbidden_address"
            assert canaries.seen == []
            async with client(address, lookup=lookup, through=through) as made:
                assert await reason(made, "http://good.example/") == "ok"
            canaries.seen.clear()

    run(work)


def test_networks_can_be_opened() -> None:
    """CRAWLER_ALLOW_NETS opens what it names, in every notation and by name, and nothing else."""

    async def work(canaries: Canaries) -> None:
        async with client(
            "127.0.0.0/8", "::1/128", lookup=names(inside_example=["127.8.9.10"])
        ) as made:
            for host in (
                "127.0.0.1",
                "127.1",
                "[::ffff:127.0.0.2]",
                "[::1]",
                "localhost",
                "inside.example",
            ):
                assert await reason(made, f"http://{host}:{canaries.port}/") == "ok", host
            assert await reason(made, f"http://0.0.0.0:{canaries.port}/") == "forbidden_address"
            assert await reason(made, f"http://10.0.0.1:{canaries.port}/") == "forbidden_address"
        assert len(canaries.seen) == 6
        canaries.seen.clear()
        async with client(*own_addresses()) as made:
            for address in own_addresses():
                host = f"[{address}]" if ":" in address else address
                assert await reason(made, f"http://{host}:{canaries.port}/") == "ok"
            assert await reason(made, f"http://127.0.0.1:{canaries.port}/") == "forbidden_address"
        assert canaries.seen == own_addresses()

    run(work)


def test_the_message_says_what_to_set() -> None:
    """An operator reads what was refused, why, and which variable opens it."""

    async def work(_: Canaries) -> None:
        async with client() as made:
            with pytest.raises(
                FetchError, match=r"10\.0\.0\.1 is a private network.*CRAWLER_ALLOW_NETS"
            ):
                await made.fetch(Request(url="http://10.0.0.1/"))
            with pytest.raises(FetchError, match=r"leads to 127\.0\.0\.1, which is loopback"):
                await made.fetch(Request(url="http://[64:ff9b::7f00:1]/"))

    run(work)


def test_the_system_resolver_is_asked_only_for_names() -> None:
    """The real resolver answers for this machine's own name, and an unknown name is an error of its
    own."""

    async def work(_: Canaries) -> None:
        rule = Egress()
        assert await rule.addresses("localhost", Reach.LOOPBACK) == ["127.0.0.1", "::1"]
        assert await rule.addresses("8.8.8.8") == ["8.8.8.8"]
        for name in ("a..b", "x" * 300 + ".example"):
            with pytest.raises(FetchError) as caught:
                await rule.addresses(name)
            assert caught.value.reason == "dns"
        rule.close()

    run(work)


def test_one_question_for_many_who_ask() -> None:
    """A name is asked for once while many wait, once more after a while, and one who gives up
    disturbs nobody."""

    async def work(_: Canaries) -> None:
        asked, go = [], asyncio.Event()

        async def lookup(host: str) -> Sequence[str]:
            asked.append(host)
            await go.wait()
            return ["8.8.8.8"]

        clock = [0.0]
        rule = Egress((), lookup, clock=lambda: clock[0])
        waiting = [asyncio.create_task(rule.addresses("a.example")) for _ in range(10)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        go.set()
        assert await asyncio.gather(*waiting[1:]) == [["8.8.8.8"]] * 9
        await rule.addresses("a.example")
        assert asked == ["a.example"]
        clock[0] += egress.DNS_CACHE_S + 1
        await rule.addresses("a.example")
        assert asked == ["a.example"] * 2

    run(work)


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "1.1.1.1",
        "93.184.216.34",
        "2606:4700:4700::1111",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
    ],
)
def test_global_addresses_are_fetched_from(text: str) -> None:
    """The rule refuses nothing of the real web, nor what a translation to it looks like."""
    assert egress.objection(ipaddress.ip_address(text)) == ""
    assert egress.objection(ipaddress.ip_address("64:ff9b::808:808")) == ""


@given(st.ip_addresses(v=4))
def test_no_disguise_is_better_than_the_address(address: ipaddress.IPv4Address) -> None:
    """What is refused as IPv4 is refused in every IPv6 form that embeds it; Python's own judgement
    is never laxer."""
    number = int(address)
    plain = egress.objection(address)
    forms = [
        (0xFFFF << 32) | number,
        number,
        (0x64FF9B << 96) | number,
        (0x2002 << 112) | (number << 80),
        (0x20010000 << 96) | (number << 64) | 0xF7F7F7F7,
        (0x20010000 << 96) | (0x08080808 << 64) | (number ^ 0xFFFFFFFF),
        (0x2600 << 112) | (0x5EFE << 32) | number,
    ]
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert plain
    if plain:
        assert all(egress.objection(ipaddress.IPv6Address(form)) for form in forms)


@given(st.ip_addresses(v=6))
def test_ipv6_is_judged_at_least_as_strictly_as_by_python(address: ipaddress.IPv6Address) -> None:
    """Nothing that Python calls private, local, multicast or reserved gets through."""
    translated = (
        address in ipaddress.ip_network("64:ff9b::/96") or address.ipv4_mapped or address.sixtofour
    )
    if not translated and (not address.is_global or address.is_multicast or address.is_reserved):
        assert egress.objection(address)
    assert not egress.objection(
        address, [ipaddress.ip_network("::/0"), ipaddress.ip_network("0.0.0.0/0")]
    )
