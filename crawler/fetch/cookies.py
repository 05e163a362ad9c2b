"""Cookies as browsers keep them (RFC 6265bis), capped so that no server can fill the memory."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path

import msgspec

from crawler import times, urls
from crawler.errors import InputError
from crawler.fetch.egress import literal
from crawler.fetch.wire import BLANKS

MAX_SIZE = 4096
"""The bytes of a name and its value; a larger cookie is ignored, as browsers do."""
MAX_COOKIES, MAX_BYTES = 60, 16_384
"""Per domain."""
MAX_HEADER = 8_000
"""The cookies of one request: servers refuse more, so that a flood of them would shut us out."""
MAX_JARS = 1000
MAX_SET = 200
"""So many Set-Cookie headers of one answer are looked at."""
MAX_FILE = 10_000_000
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NUMBER = re.compile(r"(-?[0-9]+(\.[0-9]*)?([eE]\+?[0-9]{1,2})?)?")
"""`float()` takes underscores and other scripts' digits, too."""
_SESSION = 9e15
"""When a cookie without an expiry expires: with the process."""


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """One cookie; `domain` has no leading dot."""

    name: str
    value: str
    domain: str
    path: str = "/"
    subdomains: bool = False
    """Whether hosts below the domain get it, too."""
    secure: bool = False
    expires: float = _SESSION
    """By the wall clock, because a date is what `Expires` gives."""
    lasts_until: float = _SESSION
    """By the machine's uptime, because an age is what `Max-Age` gives."""
    given: bool = False
    """Whether it comes from the operator's file: then no flood pushes it out."""

    def __repr__(self) -> str:
        return f"Cookie({self.name[:40]!r} of {self.domain!r})"

    @property
    def key(self) -> tuple[str, str, str]:
        """A cookie with the same key takes its place."""
        return (self.name, self.domain, self.path)

    def lives(self, now: float, uptime: float) -> bool:
        """Whether it has not expired."""
        return self.expires > now and self.lasts_until > uptime

    @property
    def size(self) -> int:
        """What it weighs."""
        return len(self.name) + len(self.value)


class Jars:
    """The cookies of one job in this process, a jar for each registrable domain, the last used are
    kept."""

    def __init__(
        self,
        given: Iterable[Cookie] = (),
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = times.uptime,
    ) -> None:
        self._clock, self._uptime = clock, uptime
        self._given: dict[str, list[Cookie]] = {}
        for cookie in given:
            self._given.setdefault(urls.domain(cookie.domain), []).append(cookie)
        self._jars: OrderedDict[str, dict[tuple[str, str, str], Cookie]] = OrderedDict()

    def __repr__(self) -> str:
        return f"Jars({len(self._jars)} domains)"

    @property
    def used(self) -> bool:
        """Whether there is any cookie at all."""
        return bool(self._given or self._jars)

    def header(self, scheme: str, host: str, path: str, room: int = MAX_HEADER) -> str:
        """The value of the `Cookie` header for a request, longer paths first; empty where there is
        none.

        Where there are more than have room, the operator's own go first, then those that came last.
        """
        host = host.rstrip(".")
        jar = self._jar(urls.domain(host), create=False)
        if not jar:
            return ""
        now, uptime = self._clock(), self._uptime()
        fitting = [
            cookie
            for cookie in jar.values()
            if cookie.lives(now, uptime)
            and (scheme == "https" or not cookie.secure)
            and (
                host == cookie.domain or (cookie.subdomains and host.endswith(f".{cookie.domain}"))
            )
            and _path_fits(path, cookie.path)
        ]
        sent = []
        by_age = list(enumerate(fitting))
        for _, cookie in sorted(by_age, key=lambda item: (not item[1].given, -item[0])):
            room -= cookie.size + 3
            if room >= 0:
                sent.append(cookie)
        order = {cookie.key: place for place, cookie in enumerate(fitting)}
        sent.sort(key=lambda cookie: (-len(cookie.path), order[cookie.key]))
        return "; ".join(
            f"{cookie.name}={cookie.value}" if cookie.name else cookie.value for cookie in sent
        )

    def take(self, scheme: str, host: str, path: str, headers: Iterable[str]) -> None:
        """Keep what an answer's `Set-Cookie` headers say, as far as it may say it."""
        host, now, uptime = host.rstrip("."), self._clock(), self._uptime()
        for text in list(headers)[:MAX_SET]:
            cookie = parse(text, scheme, host, path, uptime)
            if cookie and (scheme == "https" or not self._overlays_secure(cookie, now, uptime)):
                self._put(cookie, now, uptime)

    def _overlays_secure(self, cookie: Cookie, now: float, uptime: float) -> bool:
        """Whether an answer without TLS, maybe of another port, would take the place of a cookie
        that came with it."""
        jar = self._jar(urls.domain(cookie.domain), create=False)
        return any(
            kept.secure
            and kept.name == cookie.name
            and (_is_within(kept.domain, cookie.domain) or _is_within(cookie.domain, kept.domain))
            and _path_fits(cookie.path, kept.path)
            and kept.lives(now, uptime)
            for kept in jar.values()
        )

    def _put(self, cookie: Cookie, now: float, uptime: float) -> None:
        jar = self._jar(urls.domain(cookie.domain), create=True)
        old = jar.pop(cookie.key, None)
        if not cookie.lives(now, uptime):
            return
        jar[cookie.key] = (
            msgspec.structs.replace(cookie, given=True) if old and old.given else cookie
        )
        while len(jar) > MAX_COOKIES or sum(kept.size for kept in jar.values()) > MAX_BYTES:
            victim = next(
                (key for key, kept in jar.items() if not (kept.given and kept.lives(now, uptime))),
                None,
            )
            if victim is None:
                return  # all of them are the operator's own
            del jar[victim]

    def _jar(self, domain: str, *, create: bool) -> dict[tuple[str, str, str], Cookie]:
        jar = self._jars.get(domain)
        if jar is None:
            given = self._given.get(domain, ())
            if not given and not create:
                return {}
            jar = self._jars[domain] = {cookie.key: cookie for cookie in given}
        self._jars.move_to_end(domain)
        while len(self._jars) > MAX_JARS:
            self._jars.popitem(last=False)
        return jar


def _is_within(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


def _path_fits(path: str, cookie_path: str) -> bool:
    return path == cookie_path or (
        path.startswith(cookie_path)
        and (cookie_path.endswith("/") or path[len(cookie_path)] == "/")
    )


def parse(text: str, scheme: str, host: str, path: str, uptime: float) -> Cookie | None:
    """Read one `Set-Cookie` header of an answer from a host; None where a browser would ignore
    it."""
    if _CONTROL.search(text):
        return None
    pair, *attributes = text.split(";", 20)
    name, equals, value = pair.partition("=")
    name, value = (name.strip(BLANKS), value.strip(BLANKS)) if equals else ("", pair.strip(BLANKS))
    if (not name and not value) or len(name) + len(value) > MAX_SIZE:
        return None
    told = {}
    for attribute in attributes:
        key, _, setting = attribute.partition("=")
        told[key.strip(BLANKS).lower()] = setting.strip(BLANKS)
    domain, subdomains = host, False
    if wanted := told.get("domain", "").removeprefix(".").lower():
        if not _may_set(host, wanted):
            return None
        domain, subdomains = wanted, literal(host) is None and not urls.is_public_suffix(wanted)
    secure = "secure" in told
    if secure and scheme != "https":
        return None
    asked = told.get("path", "")
    where = (
        asked if asked.startswith("/") and len(asked) <= 1024 else path.rpartition("/")[0] or "/"
    )
    if name.lower().startswith("__secure-") and not secure:
        return None
    if name.lower().startswith("__host-") and (not secure or subdomains or asked != "/"):
        return None
    expires, lasts_until = _expiry(told, uptime)
    return Cookie(
        name=name,
        value=value,
        domain=domain,
        path=where,
        subdomains=subdomains,
        secure=secure,
        expires=expires,
        lasts_until=lasts_until,
    )


def _may_set(host: str, wanted: str) -> bool:
    """A cookie may be for the host itself or a domain above it, but not for what many owners share,
    such as co.uk."""
    if wanted == host:
        return True
    return (
        literal(host) is None and host.endswith(f".{wanted}") and not urls.is_public_suffix(wanted)
    )


def _expiry(told: dict[str, str], uptime: float) -> tuple[float, float]:
    """When a cookie expires by the wall clock, and when by the machine's uptime; `Max-Age` goes
    before `Expires`."""
    age = told.get("max-age", "")
    if age.removeprefix("-").isdecimal() and age.isascii():
        return _SESSION, uptime + min(int(age[:12]), 400 * 86400) if not age.startswith(
            "-"
        ) else -1.0
    date = parsedate_tz(told.get("expires", "")[:100])
    try:
        return float(mktime_tz(date)) if date else _SESSION, _SESSION
    except (ValueError, OverflowError):
        return _SESSION, _SESSION


def read_file(path: Path, now: float) -> tuple[Cookie, ...]:
    """The cookies of a file in Netscape's format, as browsers' extensions and curl write it; raises
    `InputError`."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError(str(path), f"is larger than {MAX_FILE:,} bytes; is it a cookie file?")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(str(path), "is not a cookie file: it is not text in UTF-8") from None
    found: dict[tuple[str, str, str], Cookie] = {}
    for number, line in enumerate(re.split("\r\n?|\n", text), 1):
        if (bare := line.removeprefix("#HttpOnly_")).strip() and not bare.startswith("#"):
            cookie = _row(path, number, bare)
            if cookie.expires > now:
                found[cookie.key] = cookie
    return tuple(found.values())


def _row(path: Path, number: int, line: str) -> Cookie:
    parts = line.split("\t")
    if len(parts) == 6:
        parts.append("")  # an empty value, whose tab an editor has taken away
    if len(parts) != 7:
        raise InputError(
            str(path), f"has {len(parts)} fields between tabs, not the 7 of a cookie file", number
        )
    domain, subdomains, where, secure, expires, name, value = parts
    domain = domain.strip().removeprefix(".").lower()
    if (
        not 0 < len(domain) <= urls.MAX_HOST
        or not domain.isascii()
        or (any(sign in domain for sign in "/ :@") and literal(domain) is None)
    ):
        raise InputError(str(path), "the first field is no host name", number)
    for flag, which in ((subdomains, "second"), (secure, "fourth")):
        if flag.strip().upper() not in ("TRUE", "FALSE"):
            raise InputError(str(path), f"the {which} field must be TRUE or FALSE", number)
    if not where.startswith("/"):
        raise InputError(str(path), "the third field, the path, must begin with /", number)
    if not _NUMBER.fullmatch(expires):
        raise InputError(
            str(path), "the fifth field, the expiry, must be seconds since 1970", number
        )
    until = float(expires or 0)
    if _CONTROL.search(name + value) or ";" in name + value:
        raise InputError(
            str(path), "the name or value holds a character that no cookie can hold", number
        )
    return Cookie(
        name=name,
        value=value,
        domain=domain,
        path=where,
        subdomains=subdomains.strip().upper() == "TRUE" and not urls.is_public_suffix(domain),
        secure=secure.strip().upper() == "TRUE",
        expires=until if until > 0 else _SESSION,
        given=True,
    )
