"""Where a connection may lead: names are resolved once, each address is judged, and exactly that
address is dialled.

The same rule serves every path out of the package: `Egress.dial` gives a connected socket,
`Egress.addresses` only the judgement.
"""

import asyncio
import errno
import ipaddress
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import aiohappyeyeballs

from crawler.errors import FetchError, OwnShortage, shortage_of
from crawler.fetch.budget import check_free

Ip = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""From a host name to its addresses as text, with scope ids if they have one; raises `OSError`
where there is none."""

DNS_CACHE_S = 30.0
"""How long an answer is kept; whoever uses it judges it anew."""
DNS_CACHE_NAMES = 2000
DNS_THREADS = 64
"""A name server that never answers holds a thread for each name that was asked for."""
MAX_ADDRESSES = 8
"""No more addresses of one name are tried: a name with thousands would cost as many attempts."""
SPARE_DESCRIPTORS, SPARE_MEMORY = 4, 1 << 25
"""A connection needs one, a resolver a few. A decoder needs up to 16 MB at a time, the stack of a
thread 8."""
ATTEMPT_S = 0.25
"""How long one address has the field to itself before the next is tried beside it (RFC 8305)."""

_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(net), what)
    for net, what in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "a carrier's network"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "a private network"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "the unspecified address"),
        ("::1/128", "loopback"),
        ("::/96", "an IPv4 address in disguise"),
        ("::ffff:0:0:0/96", "an IPv4 address in disguise"),
        ("64:ff9b:1::/48", "a private translation of IPv4"),
        ("100::/64", "the discard prefix"),
        ("100:0:0:1::/64", "the dummy prefix"),
        ("2001::/32", "a Teredo tunnel"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("3fff::/20", "for documentation"),
        ("5f00::/16", "for segment routing"),
        ("fc00::/7", "a private network"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_MAPPED, _TRANSLATED = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR, _TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")
_LOW_32 = (IPv6Network("::/96"), IPv6Network("::ffff:0:0:0/96"), IPv6Network("64:ff9b:1::/48"))
_ISATAP = (0x00005EFE, 0x02005EFE)


class Reach(Enum):
    """How far a connection may lead; a stricter one never uses what was opened for another."""

    GLOBAL = "global"
    """Global addresses, and the networks that the operator has opened."""
    LOOPBACK = "loopback"
    """This machine, and nothing else: for a URL that names it and was typed on its own command
    line."""
    OPERATOR = "operator"
    """As global, and this machine: for what the operator's configuration names, such as a proxy."""


def embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that packets to an IPv6 address may end at, in every form that embeds
    one."""
    number = int(address)
    if number <= 1:
        return ()  # unspecified and loopback are addresses of their own
    low = IPv4Address(number & 0xFFFFFFFF)
    if address in _MAPPED or address in _TRANSLATED or any(address in net for net in _LOW_32):
        return (low,)
    if address in _SIX_TO_FOUR:
        return (IPv4Address(number >> 80 & 0xFFFFFFFF),)
    if address in _TEREDO:  # the server in plain, the client with its bits turned round
        return (IPv4Address(number >> 64 & 0xFFFFFFFF), IPv4Address(~number & 0xFFFFFFFF))
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        return (low,)
    return ()


def objection(address: Ip, allowed: Iterable[Network] = ()) -> str:
    """Why an address may not be dialled, such as `10.0.0.1 is a private network`; empty where it
    may."""
    allowed = tuple(allowed)
    plain = (
        ipaddress.ip_address(int(address)) if address.version == 4 else IPv6Address(int(address))
    )
    suspects: list[Ip] = [plain]
    if isinstance(plain, IPv6Address):
        suspects += embedded(plain)
        if any(plain in net for net in (_MAPPED, _TRANSLATED, _SIX_TO_FOUR)):
            del suspects[0]  # another way to write an IPv4 address, and to be judged as that
    for suspect in suspects:
        what = _special(suspect)
        if what and not any(suspect in net for net in allowed if net.version == suspect.version):
            return (
                f"{plain} is {what}"
                if suspect == plain
                else f"{plain} leads to {suspect}, which is {what}"
            )
    return ""


def _special(address: Ip) -> str:
    for net, what in _SPECIAL:
        if address.version == net.version and address in net:
            return what
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "not a global address"
    return ""


def is_loopback(address: Ip) -> bool:
    """Whether an address is this machine, also when it is written as IPv6."""
    if isinstance(address, IPv6Address) and address in _MAPPED:
        address = embedded(address)[0]
    return address.is_loopback


@lru_cache(maxsize=10_000)
def literal(host: str) -> Ip | None:
    """The address that a URL's host (in WHATWG's normal form) is, if it is one and not a name."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


@lru_cache(maxsize=10_000)
def names_loopback(host: str) -> bool:
    """Whether a URL's host says by itself that it is this machine; a name that merely resolves to
    it does not."""
    address = literal(host)
    return is_loopback(address) if address else _is_localhost(host)


def _is_localhost(host: str) -> bool:
    name = host.rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost")


class Lookups:
    """The system's own resolver, in threads of its own, so that names without an answer hold up
    nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(DNS_THREADS, "dns")

    async def __call__(self, host: str) -> Sequence[str]:
        """The addresses of a host name."""
        loop = asyncio.get_running_loop()
        # As bytes, because Python's own idea of international names is not the one that made this
        # name.
        found = await loop.run_in_executor(self._threads, _getaddrinfo, host.encode("ascii"))
        return list(dict.fromkeys(_with_scope(entry) for entry in found))

    def close(self) -> None:
        """Wait for no answer any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _getaddrinfo(host: bytes) -> list[tuple[Any, ...]]:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


def _with_scope(entry: tuple[Any, ...]) -> str:
    address = str(entry[4][0])
    scope = entry[4][3] if entry[0] == socket.AF_INET6 else 0
    return f"{address.partition('%')[0]}%{scope}" if scope else address


class Egress:
    """The rule with its memory: which networks are open, and what names were resolved to a moment
    ago."""

    def __init__(
        self,
        allow_nets: Sequence[str] = (),
        lookup: Lookup | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = tuple(ipaddress.ip_network(net, strict=False) for net in allow_nets)
        self._lookup = lookup or Lookups()
        self._clock = clock
        self._cache: OrderedDict[str, tuple[float, Sequence[str]]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Sequence[str]]] = {}

    def close(self) -> None:
        """Forget all names and wait for none."""
        for task in self._asking.values():
            task.cancel()
        if isinstance(self._lookup, Lookups):
            self._lookup.close()

    def judge(self, address: Ip, reach: Reach = Reach.GLOBAL) -> str:
        """Why an address is out of reach; empty where it is not."""
        if reach is Reach.LOOPBACK:
            return "" if is_loopback(address) else f"{address} is not this machine"
        if reach is Reach.OPERATOR and is_loopback(address):
            return ""
        return objection(address, self._allowed)

    async def addresses(
        self, host: str, reach: Reach = Reach.GLOBAL, *, every: bool = False
    ) -> list[str]:
        """The addresses of a host that may be dialled; raises `FetchError` where there is none, or,
        if `every` one must be good because somebody else will choose, where one is not."""
        found = await self._resolve(host)
        objections = [problem for text in found if (problem := self.judge(_parsed(text), reach))]
        if objections and (every or len(objections) == len(found)):
            raise forbidden(host, objections[0])
        if not found:
            raise FetchError("dns", f"the host name {host[:200]} has no address")
        return [text for text in found if not self.judge(_parsed(text), reach)][:MAX_ADDRESSES]

    async def dial(self, host: str, port: int, reach: Reach = Reach.GLOBAL) -> socket.socket:
        """A socket that is connected to a checked address of the host."""
        infos = [_info(text, port) for text in await self.addresses(host, reach)]
        for info in infos:
            self.confirm(host, str(info[4][0]), reach)
        try:
            dialled = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=ATTEMPT_S)
        except OSError as error:
            if lack := _lack_behind(error) or lack_of_ports(error, infos):
                raise OwnShortage(lack) from None
            raise
        try:
            self.confirm(host, str(dialled.getpeername()[0]), reach)
        except BaseException:
            dialled.close()
            raise
        return dialled

    def confirm(self, host: str, address: str, reach: Reach) -> None:
        """The last check, on what is really connected to, whatever was resolved before; raises
        `FetchError`."""
        if problem := self.judge(_parsed(address), reach):
            raise forbidden(host, problem)

    async def _resolve(self, host: str) -> Sequence[str]:
        address = literal(host)
        if address:
            return (str(address),)
        if _is_localhost(host):
            return ("127.0.0.1", "::1")  # never asked for in DNS (RFC 6761)
        known = self._cache.get(host)
        if known and known[0] > self._clock():
            self._cache.move_to_end(host)
            return known[1]
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = asyncio.get_running_loop().create_task(self._ask(host))
            task.add_done_callback(lambda done: self._answered(host, done))
        try:
            return await asyncio.shield(task)  # others may wait for the same answer
        except (OSError, UnicodeError) as error:
            # A resolver that cannot open a file or a socket says that the name is unknown.
            if lack := _lack_behind(error):
                raise OwnShortage(lack) from None
            raise FetchError(
                "dns", f"the host name {host[:200]} could not be resolved ({_reason(error)})"
            ) from None

    async def _ask(self, host: str) -> Sequence[str]:
        found = await self._lookup(host)
        self._cache[host] = (self._clock() + DNS_CACHE_S, found)
        self._cache.move_to_end(host)
        while len(self._cache) > DNS_CACHE_NAMES:
            self._cache.popitem(last=False)
        return found

    def _answered(self, host: str, task: "asyncio.Task[Sequence[str]]") -> None:
        self._asking.pop(host, None)
        with suppress(asyncio.CancelledError):
            task.exception()  # nobody may be waiting for it any more


def lack_now() -> str:
    """Asked after a failure that libraries give another reason for: what this process lacks; empty
    where nothing."""
    return lack_of_descriptors() or lack_of_memory()


def _lack_behind(error: Exception) -> str:
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_MEMORY:
        error = MemoryError()
    return shortage_of(error) or lack_now()


def lack_of_memory() -> str:
    """Whether this process can have hardly any more memory (`ulimit -v`); to ask for some takes
    none.

    Decoders and TLS say that the data are bad then, or that the connection has failed.
    """
    try:
        check_free(SPARE_MEMORY)
    except MemoryError as error:
        return shortage_of(error)
    return ""


def lack_of_descriptors() -> str:
    """Whether this process can open hardly any file; what it lacks then.

    Some must be left beside the first: the failed attempt has closed its own by now.
    """
    opened: list[int] = []
    try:
        for _ in range(SPARE_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return shortage_of(error)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return ""


def lack_of_ports(error: OSError, infos: Sequence[Any]) -> str:
    """Whether an address could be reached but for a local port; without IPv6 the same error means
    that it cannot."""
    if error.errno != errno.EADDRNOTAVAIL:
        return ""
    for family, *_, address in infos:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: it only asks for the route
            return "there is no local port left to connect from"
    return ""


def _parsed(text: str) -> Ip:
    return ipaddress.ip_address(text.partition("%")[0])


def _info(text: str, port: int) -> Any:
    bare, _, scope = text.partition("%")
    if ":" in bare:
        number = int(scope) if scope.isdigit() else 0
        return (
            socket.AF_INET6,
            socket.SOCK_STREAM,
            socket.IPPROTO_TCP,
            "",
            (bare, port, 0, number),
        )
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (bare, port))


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def forbidden(host: str, problem: str) -> FetchError:
    """The error for an address out of reach, with what an operator can do."""
    return FetchError(
        "forbidden_address",
        f"{host[:200]} is not fetched from: {problem}; if it is meant, open its network with CRAWLER_ALLOW_NETS",
    )
