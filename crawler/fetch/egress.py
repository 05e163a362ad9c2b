"""Where connections may lead: the rule for addresses, lookups, dialling, and the choice of a proxy.

Names are resolved once, each address is judged, and exactly that address is dialled.
"""

import asyncio
import base64
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
from urllib.parse import unquote

import ada_url
import aiohappyeyeballs
import msgspec

from crawler.errors import FetchError, OwnShortage, UsageError, shortage_of
from crawler.fetch.budget import check_free

Ip = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""From a host name to its addresses, with scope ids if they have one; raises `OSError`."""

DNS_CACHE_S = 30.0  # cached addresses are judged anew at each use
DNS_CACHE_NAMES = 2000
DNS_THREADS = 64  # a name server that never answers blocks a thread for each name
MAX_ADDRESSES = 8  # addresses of one name that are tried
SPARE_DESCRIPTORS = 4  # a connection needs one, a resolver a few
SPARE_MEMORY = 1 << 25  # a decoder needs up to 16 MB, the stack of a thread 8
ATTEMPT_S = 0.25  # head start of one address over the next (RFC 8305)

_SPECIAL_NETWORKS = {
    "this network": "0.0.0.0/8",
    "a private network": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
    "a carrier's network": "100.64.0.0/10",
    "loopback": "127.0.0.0/8 ::1/128",
    "link-local": "169.254.0.0/16 fe80::/10",
    "site-local": "fec0::/10",
    "multicast": "224.0.0.0/4 ff00::/8",
    "for benchmarks": "198.18.0.0/15",
    "for documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
    "for segment routing": "5f00::/16",
    "reserved": "240.0.0.0/4",
    "reserved for protocols": "192.0.0.0/24 2001::/23",
    "a 6to4 relay": "192.88.99.0/24",
    "a Teredo tunnel": "2001::/32",
    "a private translation of IPv4": "64:ff9b:1::/48",
    "an IPv4 address in disguise": "::/96 ::ffff:0:0:0/96",
    "the unspecified address": "::/128",
    "the discard prefix": "100::/64",
    "the dummy prefix": "100:0:0:1::/64",
}
_SPECIAL = [
    (ipaddress.ip_network(net), what)
    for what, networks in _SPECIAL_NETWORKS.items()
    for net in networks.split()
]
_SPECIAL.sort(key=lambda entry: -entry[0].prefixlen)  # the smallest network decides
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_MAPPED, _TRANSLATED = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR, _TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")
_IPV4_IN_LOW_BITS = (
    _MAPPED,
    _TRANSLATED,
    IPv6Network("::/96"),
    IPv6Network("::ffff:0:0:0/96"),
    IPv6Network("64:ff9b:1::/48"),
)
_ISATAP = (0x00005EFE, 0x02005EFE)


class Reach(Enum):
    """How far a connection may lead; connections of one reach are not reused for another."""

    GLOBAL = "global"  # and networks that the operator has opened
    LOOPBACK = "loopback"  # this machine only: for a URL from its own command line
    OPERATOR = "operator"  # global, and this machine: for the operator's own proxy


def embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address may lead to, in every form of embedding."""
    number = int(address)
    if number <= 1:
        return ()  # unspecified and loopback are addresses of their own
    low = number & 0xFFFFFFFF
    if any(address in net for net in _IPV4_IN_LOW_BITS):
        return (IPv4Address(low),)
    if address in _SIX_TO_FOUR:
        return (IPv4Address(number >> 80 & 0xFFFFFFFF),)
    if address in _TEREDO:  # the server as it is, the client inverted
        return (IPv4Address(number >> 64 & 0xFFFFFFFF), IPv4Address(low ^ 0xFFFFFFFF))
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        return (IPv4Address(low),)
    return ()


def objection(address: Ip, allowed: Iterable[Network] = ()) -> str:
    """Return why an address may not be dialled, as in `10.0.0.1 is a private network`, or ""."""
    plain = type(address)(int(address))  # without a scope id
    suspects: list[Ip] = [plain]
    if isinstance(plain, IPv6Address):
        suspects += embedded(plain)
        if any(plain in net for net in (_MAPPED, _TRANSLATED, _SIX_TO_FOUR)):
            del suspects[0]  # another way to write an IPv4 address, and judged as that
    allowed = tuple(allowed)
    for suspect in suspects:
        what = _special(suspect)
        if what and not any(suspect in net for net in allowed):
            if suspect == plain:
                return f"{plain} is {what}"
            return f"{plain} leads to {suspect}, which is {what}"
    return ""


def _special(address: Ip) -> str:
    for net, what in _SPECIAL:
        if address in net:
            return what
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "not a global address"
    return ""


def is_loopback(address: Ip) -> bool:
    """Whether an address is this machine, also in its IPv6 form."""
    if isinstance(address, IPv6Address) and address in _MAPPED:
        address = embedded(address)[0]
    return address.is_loopback


@lru_cache(maxsize=10_000)
def ip_literal(host: str) -> Ip | None:
    """Return the address if a URL's host (in WHATWG's normal form) is one and not a name."""
    try:
        return _parsed(host.strip("[]"))
    except ValueError:
        return None


@lru_cache(maxsize=10_000)
def names_loopback(host: str) -> bool:
    """Whether a host is this machine by its spelling; a name that only resolves to it is not."""
    address = ip_literal(host)
    if address:
        return is_loopback(address)
    return _is_localhost(host)


def _is_localhost(host: str) -> bool:
    return is_within(host.rstrip(".").lower(), "localhost")


def is_within(name: str, domain: str) -> bool:
    """Whether a name is a domain or lies below it."""
    return name == domain or name.endswith(f".{domain}")


def _parsed(text: str) -> Ip:
    return ipaddress.ip_address(text.partition("%")[0])


def _getaddrinfo(host: str) -> Sequence[str]:
    name = host.encode("ascii")  # Python would encode a str by other rules than WHATWG's
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(_with_scope(entry) for entry in found))


def _with_scope(entry: tuple[Any, ...]) -> str:
    family, *_, place = entry
    address = str(place[0])
    if family == socket.AF_INET6 and place[3]:
        return f"{address.partition('%')[0]}%{place[3]}"
    return address


class Egress:
    """The rule for addresses, with the networks that are open and a cache of lookups."""

    def __init__(
        self,
        allow_nets: Sequence[str] = (),
        lookup: Lookup | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = tuple(ipaddress.ip_network(net, strict=False) for net in allow_nets)
        self._lookup = lookup or self._system_lookup
        self._threads = ThreadPoolExecutor(DNS_THREADS, "dns")  # slow names block nothing else
        self._clock = clock
        self._cache: OrderedDict[str, tuple[float, Sequence[str]]] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[Sequence[str]]] = {}

    def close(self) -> None:
        for task in self._lookups.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def objection(self, address: Ip, reach: Reach = Reach.GLOBAL) -> str:
        """Return why an address is out of reach, or an empty string."""
        if reach is not Reach.GLOBAL and is_loopback(address):
            return ""
        if reach is Reach.LOOPBACK:
            return f"{address} is not this machine"
        return objection(address, self._allowed)

    async def addresses(
        self, host: str, reach: Reach = Reach.GLOBAL, *, every: bool = False
    ) -> list[str]:
        """Return the addresses of a host that may be dialled; raises `FetchError` if none may.

        With `every`, all of them must be good, because somebody else (a proxy) will choose.
        """
        found = await self._resolve(host)
        if not found:
            raise FetchError("dns", f"the host name {host[:200]} has no address")
        objections = [self.objection(_parsed(text), reach) for text in found]
        good = [text for text, problem in zip(found, objections, strict=True) if not problem]
        if not good or (every and len(good) < len(found)):
            raise forbidden(host, next(filter(None, objections)))
        return good[:MAX_ADDRESSES]

    async def dial(self, host: str, port: int, reach: Reach = Reach.GLOBAL) -> socket.socket:
        """Return a socket that is connected to a checked address of the host."""
        infos = [_info(text, port) for text in await self.addresses(host, reach)]
        for info in infos:
            self.confirm(host, str(info[4][0]), reach)
        try:
            dialled = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=ATTEMPT_S)
        except OSError as error:
            if lack := _shortage_behind(error) or shortage_of_ports(error, infos):
                raise OwnShortage(lack) from None
            raise
        try:
            self.confirm(host, str(dialled.getpeername()[0]), reach)
        except BaseException:
            dialled.close()
            raise
        return dialled

    def confirm(self, host: str, address: str, reach: Reach) -> None:
        """Check the address that is really connected to; raises `FetchError`."""
        if problem := self.objection(_parsed(address), reach):
            raise forbidden(host, problem)

    async def _resolve(self, host: str) -> Sequence[str]:
        address = ip_literal(host)
        if address:
            return (str(address),)
        if _is_localhost(host):
            return ("127.0.0.1", "::1")  # never looked up in DNS (RFC 6761)
        known = self._cache.get(host)
        if known and known[0] > self._clock():
            self._cache.move_to_end(host)
            return known[1]
        task = self._lookups.get(host)
        if task is None:
            task = self._lookups[host] = asyncio.get_running_loop().create_task(self._look_up(host))
            task.add_done_callback(lambda done: self._looked_up(host, done))
        try:
            return await asyncio.shield(task)  # others may wait for the same lookup
        except (OSError, UnicodeError) as error:
            # A resolver that cannot open a file or a socket says that the name is unknown.
            if lack := _shortage_behind(error):
                raise OwnShortage(lack) from None
            reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
            message = f"the host name {host[:200]} could not be resolved ({reason})"
            raise FetchError("dns", message) from None

    async def _system_lookup(self, host: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _getaddrinfo, host)

    async def _look_up(self, host: str) -> Sequence[str]:
        found = await self._lookup(host)
        self._cache[host] = (self._clock() + DNS_CACHE_S, found)
        self._cache.move_to_end(host)
        while len(self._cache) > DNS_CACHE_NAMES:
            self._cache.popitem(last=False)
        return found

    def _looked_up(self, host: str, task: "asyncio.Task[Sequence[str]]") -> None:
        self._lookups.pop(host, None)
        with suppress(asyncio.CancelledError):
            task.exception()  # marks it as seen: nobody may be waiting any more


def _info(text: str, port: int) -> Any:
    """Return an address in the form of `getaddrinfo`."""
    bare, _, scope = text.partition("%")
    if ":" not in bare:
        return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (bare, port))
    number = int(scope) if scope.isdigit() else 0
    place = (bare, port, 0, number)
    return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place)


def forbidden(host: str, problem: str) -> FetchError:
    """Return the error for an address out of reach, with what an operator can do."""
    return FetchError(
        "forbidden_address",
        f"{host[:200]} is not fetched from: {problem}; "
        "if it is meant, open its network with CRAWLER_ALLOW_NETS",
    )


def shortage_now() -> str:
    """Return what this process lacks, descriptors or memory (`ulimit -v`), or an empty string.

    Asked after a failure, because libraries give other reasons for it.
    """
    if lack := shortage_of_descriptors():
        return lack
    try:
        check_free(SPARE_MEMORY)
    except MemoryError as error:
        return shortage_of(error)
    return ""


def _shortage_behind(error: Exception) -> str:
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_MEMORY:
        error = MemoryError()
    return shortage_of(error) or shortage_now()


def shortage_of_descriptors() -> str:
    """Return what this process lacks if it can hardly open files.

    Several must be free: the failed attempt has closed its own by now.
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


def shortage_of_ports(error: OSError, infos: Sequence[Any]) -> str:
    """Return what is lacking if an address could be reached but for a local port.

    Without IPv6 the same error means that there is no route.
    """
    if error.errno != errno.EADDRNOTAVAIL:
        return ""
    for family, *_, address in infos:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: it only asks for the route
            return "there is no local port left to connect from"
    return ""


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy; its password is in no text made of it."""

    host: str
    port: int
    user_password: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self})"

    @property
    def authorization(self) -> str:
        """The header line with the credentials, or an empty string."""
        if not self.user_password:
            return ""
        secret = base64.b64encode(self.user_password.encode()).decode()
        return f"Proxy-Authorization: Basic {secret}\r\n"


def parse_proxy(text: str) -> Proxy:
    """Parse `http://[user:password@]host:port`; raises `UsageError` without repeating the text."""
    if "://" not in text:
        text = f"http://{text}"
    try:
        url = ada_url.URL(text.strip())
    except ValueError:
        raise UsageError("the proxy's address is no URL; write http://host:port") from None
    if url.protocol != "http:" or not url.hostname:
        scheme = f"{url.protocol[:20]}//"
        raise UsageError(
            f"a proxy's address begins with http://, not {scheme}; write http://host:port"
        )
    if url.pathname not in ("", "/") or url.search or url.hash:
        raise UsageError("a proxy's address ends with its port; write http://host:port")
    if url.port == "0":
        raise UsageError("the proxy's port 0 cannot be connected to")
    secret = ""
    if url.username or url.password:
        secret = f"{unquote(url.username)}:{unquote(url.password)}"
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in secret):
        raise UsageError("the proxy's user name or password holds control characters")
    return Proxy(url.hostname, int(url.port or 80), secret)


class Proxies(msgspec.Struct, frozen=True):
    """The proxies of the environment, and the hosts that are reached without."""

    http: Proxy | None = None
    https: Proxy | None = None
    exempt: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, http: str | None, https: str | None, exempt: str | None) -> "Proxies":
        """Parse HTTP_PROXY, HTTPS_PROXY and NO_PROXY."""
        rules = [rule.strip().lower() for rule in (exempt or "").split(",")]
        http_proxy, https_proxy = [parse_proxy(text) if text else None for text in (http, https)]
        return cls(http_proxy, https_proxy, tuple(filter(None, rules)))

    def choose(self, scheme: str, host: str, port: int, own: Proxy | None = None) -> Proxy | None:
        """Return the proxy for a request, a job's `own` first; this machine is reached without."""
        proxy = own or (self.https if scheme == "https" else self.http)
        if proxy is None or names_loopback(host):
            return None
        if any(_exempts(rule, host, port) for rule in self.exempt):
            return None
        return proxy


def _exempts(rule: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY (`*`, a domain, a network, maybe with a port) means a host."""
    if rule == "*":
        return True
    address = ip_literal(host)
    if address:
        with suppress(ValueError):
            return address in ipaddress.ip_network(rule.strip("[]"), strict=False)
    name, colon, digits = rule.rpartition(":")
    is_port = bool(colon) and digits.isascii() and digits.isdigit()
    if is_port and (":" not in name or name.endswith("]")):
        if int(digits) != port:
            return False
        rule = name
    name, own = rule.removeprefix("*").strip("[]").strip("."), host.strip("[]").rstrip(".")
    return bool(name) and is_within(own, name)
