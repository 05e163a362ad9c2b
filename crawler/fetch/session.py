"""What a job sends along: headers, proxy and credentials, in a file of its own, and cookies.

Cookies are kept as browsers keep them (RFC 6265bis), with limits on what a server can store.
"""

import base64
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path

import msgspec

from crawler import times, urls
from crawler.errors import InputError, StoreError, StoreFull, UsageError
from crawler.fetch.egress import Proxy, ip_literal, is_within
from crawler.fetch.escapes import spellings
from crawler.fetch.wire import BLANKS, TOKEN, Headers
from crawler.files import SESSION_COOKIES, replace_file, replacing, session_path
from crawler.locks import open_lock, try_lock

MAX_SIZE = 4096  # bytes of name and value; browsers ignore larger cookies, too
MAX_COOKIES, MAX_BYTES = 60, 16_384  # per domain
MAX_HEADER = 8_000  # bytes per request: servers refuse more, so a flood would shut us out
MAX_JARS = 1000
MAX_SET = 200  # Set-Cookie headers read per answer
MAX_AGE_S = 400 * 86400
MAX_FILE = 10_000_000
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NUMBER = re.compile(r"(-?[0-9]+(\.[0-9]*)?([eE]\+?[0-9]{1,2})?)?")
"""A number as `float()` reads it, without underscores and digits of other scripts."""
MAX_SECRET_VALUES = 20
"""Values of a login's cookies that are searched for in pages: a server may renew them often."""
_SECRET_VALUE = re.compile(
    r"(?!/|[\w./-]*(?:://|\?))(?:(?=.*[0-9])(?=.*[A-Za-z])\S{8,}|\S{16,}|(?=.*\{).{16,})", re.DOTALL
)
"""What may be the key to a session. Words, a date, a path or a URL may stand in any page and in its
links; words in braces are data."""
_NO_SECRET_NAME = re.compile("[cx]srf", re.IGNORECASE)
"""Cookies that forms have to repeat; they sign nobody in."""
_NEVER = 9e15  # expiry of a cookie that lives as long as the process

Key = tuple[str, str, str]


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """One cookie; `domain` has no leading dot."""

    name: str
    value: str
    domain: str
    path: str = "/"
    subdomains: bool = False  # whether hosts below the domain get it, too
    secure: bool = False
    expires: float = _NEVER  # by the wall clock: `Expires` gives a date
    lasts_until: float = _NEVER  # by the machine's uptime: `Max-Age` gives an age
    given: bool = False  # from the operator's file: no flood of cookies evicts it

    def __repr__(self) -> str:
        return f"Cookie({self.name[:40]!r} of {self.domain!r})"

    @property
    def key(self) -> Key:
        """A cookie replaces another with the same key."""
        return (self.name, self.domain, self.path)

    @property
    def size(self) -> int:
        return len(self.name) + len(self.value)

    def is_live(self, now: float, uptime: float) -> bool:
        return self.expires > now and self.lasts_until > uptime

    def fits(self, scheme: str, host: str, path: str) -> bool:
        """Whether it is sent with a request."""
        if self.secure and scheme != "https":
            return False
        is_host = host == self.domain or (self.subdomains and is_within(host, self.domain))
        return is_host and _path_fits(path, self.path)


class Jars:
    """The cookies of one job in this process, one jar per registrable domain, as an LRU cache."""

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
        self._jars: OrderedDict[str, dict[Key, Cookie]] = OrderedDict()
        self._secret_keys: set[Key] = set()
        self._secret_values: OrderedDict[str, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"Jars({len(self._jars)} domains)"

    @property
    def used(self) -> bool:
        return bool(self._given or self._jars)

    def header(self, scheme: str, host: str, path: str, room: int = MAX_HEADER) -> str:
        """Return the value of the `Cookie` header, longer paths first.

        If not all fit into `room`, the operator's own go first, then the newest.
        """
        host = host.rstrip(".")
        jar = self._jar(urls.domain(host), create=False)
        now, uptime = self._clock(), self._uptime()
        fitting = [
            cookie
            for cookie in jar.values()
            if cookie.is_live(now, uptime) and cookie.fits(scheme, host, path)
        ]
        newest_first = fitting[::-1]
        newest_first.sort(key=lambda cookie: not cookie.given)
        sent = set()
        for cookie in newest_first:
            room -= cookie.size + 3
            if room >= 0:
                sent.add(cookie.key)
        chosen = [cookie for cookie in fitting if cookie.key in sent]
        chosen.sort(key=lambda cookie: -len(cookie.path))
        return "; ".join([_pair(cookie) for cookie in chosen])

    def take(self, scheme: str, host: str, path: str, headers: Iterable[str]) -> None:
        host, now, uptime = host.rstrip("."), self._clock(), self._uptime()
        for text in list(headers)[:MAX_SET]:
            cookie = parse(text, scheme, host, path, uptime)
            if cookie and (scheme == "https" or not self._overlays_secure(cookie, now, uptime)):
                self._put(cookie, now, uptime)

    def put(self, cookies: Iterable[Cookie]) -> None:
        """Add cookies that another jar has gained."""
        now, uptime = self._clock(), self._uptime()
        for cookie in cookies:
            self._put(cookie, now, uptime)

    def live(self) -> list[Cookie]:
        """Return all cookies that are sent somewhere."""
        now, uptime = self._clock(), self._uptime()
        jars: list[Iterable[Cookie]] = [jar.values() for jar in self._jars.values()]
        jars += [given for domain, given in self._given.items() if domain not in self._jars]
        return [cookie for jar in jars for cookie in jar if cookie.is_live(now, uptime)]

    @property
    def secret_values(self) -> Collection[str]:
        """The last values of the cookies whose values are to be hidden."""
        return self._secret_values

    def hide(self, cookies: Iterable[Cookie]) -> None:
        """Note that the values of these cookies, now and later, are to be hidden."""
        for cookie in cookies:
            if not _NO_SECRET_NAME.search(cookie.name):
                self._secret_keys.add(cookie.key)
                self._hide_value(cookie)

    def _hide_value(self, cookie: Cookie) -> None:
        # Pages are searched for all of these.
        if not all(map(_SECRET_VALUE.fullmatch, spellings(cookie.value))):
            return
        self._secret_values[cookie.value] = None
        self._secret_values.move_to_end(cookie.value)
        while len(self._secret_values) > MAX_SECRET_VALUES:
            self._secret_values.popitem(last=False)

    def gained(self) -> tuple[Cookie, ...]:
        """Return the cookies that servers have set, with expiries that another boot understands."""
        now, uptime = self._clock(), self._uptime()
        given = {cookie for cookies in self._given.values() for cookie in cookies}
        found = (cookie for jar in self._jars.values() for cookie in jar.values())
        return tuple(
            msgspec.structs.replace(
                cookie,
                expires=min(cookie.expires, now + cookie.lasts_until - uptime),
                lasts_until=_NEVER,
                given=True,
            )
            for cookie in found
            if cookie not in given and cookie.is_live(now, uptime)
        )

    def _overlays_secure(self, cookie: Cookie, now: float, uptime: float) -> bool:
        """Whether a cookie without TLS, maybe of another port, would replace one with TLS."""
        jar = self._jar(urls.domain(cookie.domain), create=False)
        return any(
            kept.secure
            and kept.name == cookie.name
            and (is_within(kept.domain, cookie.domain) or is_within(cookie.domain, kept.domain))
            and _path_fits(cookie.path, kept.path)
            and kept.is_live(now, uptime)
            for kept in jar.values()
        )

    def _put(self, cookie: Cookie, now: float, uptime: float) -> None:
        jar = self._jar(urls.domain(cookie.domain), create=True)
        old = jar.pop(cookie.key, None)
        if not cookie.is_live(now, uptime):
            return
        if old and old.given:
            cookie = msgspec.structs.replace(cookie, given=True)
        if cookie.key in self._secret_keys:
            self._hide_value(cookie)
        jar[cookie.key] = cookie
        while len(jar) > MAX_COOKIES or sum(kept.size for kept in jar.values()) > MAX_BYTES:
            for key, kept in jar.items():
                if not (kept.given and kept.is_live(now, uptime)):
                    del jar[key]
                    break
            else:
                return  # all of them are the operator's own

    def _jar(self, domain: str, *, create: bool) -> dict[Key, Cookie]:
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


def _pair(cookie: Cookie) -> str:
    return f"{cookie.name}={cookie.value}" if cookie.name else cookie.value


def _path_fits(path: str, cookie_path: str) -> bool:
    return path == cookie_path or path.startswith(cookie_path.removesuffix("/") + "/")


def parse(text: str, scheme: str, host: str, path: str, uptime: float) -> Cookie | None:
    """Parse one `Set-Cookie` header of an answer; None if a browser would ignore it."""
    if CONTROL.search(text):
        return None
    pair, *attributes = [part.strip(BLANKS) for part in text.split(";", 20)]
    name, equals, value = pair.partition("=")
    if not equals:
        name, value = "", pair
    name, value = name.strip(BLANKS), value.strip(BLANKS)
    if not 0 < len(name) + len(value) <= MAX_SIZE:
        return None
    told = {}
    for attribute in attributes:
        key, _, setting = attribute.partition("=")
        told[key.strip(BLANKS).lower()] = setting.strip(BLANKS)
    domain, subdomains = host, False
    if wanted := told.get("domain", "").removeprefix(".").lower():
        if not _may_set(host, wanted):
            return None
        domain, subdomains = wanted, ip_literal(host) is None and not urls.is_public_suffix(wanted)
    secure, asked = "secure" in told, told.get("path", "")
    if secure and scheme != "https":
        return None
    if name.lower().startswith("__secure-") and not secure:
        return None
    if name.lower().startswith("__host-") and (not secure or subdomains or asked != "/"):
        return None
    where = path.rpartition("/")[0] or "/"
    if asked.startswith("/") and len(asked) <= 1024:
        where = asked
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
    """Whether a cookie may be for a domain: the host's own or one above it, but not co.uk."""
    if wanted == host:
        return True
    is_above = ip_literal(host) is None and host.endswith(f".{wanted}")
    return is_above and not urls.is_public_suffix(wanted)


def _expiry(told: dict[str, str], uptime: float) -> tuple[float, float]:
    """Return the expiry by the wall clock and by the uptime; `Max-Age` precedes `Expires`."""
    age = told.get("max-age", "")
    if age.removeprefix("-").isdecimal() and age.isascii():
        if age.startswith("-"):
            return _NEVER, -1.0
        return _NEVER, uptime + min(int(age[:12]), MAX_AGE_S)
    date = parsedate_tz(told.get("expires", "")[:100])
    if date:
        try:
            return float(mktime_tz(date)), _NEVER
        except (ValueError, OverflowError):
            pass
    return _NEVER, _NEVER


def read_file(path: Path, now: float) -> tuple[Cookie, ...]:
    """Read a cookie file in Netscape's format, as browsers and curl write it; `InputError`."""
    found: dict[Key, Cookie] = {}
    not_text = "is not a cookie file: it is not text in UTF-8"
    for number, line in _lines_of(path, "is it a cookie file?", not_text):
        bare = line.removeprefix("#HttpOnly_")
        if not bare.strip() or bare.startswith("#"):
            continue
        try:
            cookie = _parse_line(bare)
        except ValueError as error:
            raise InputError(str(path), str(error), number) from None
        if cookie.expires > now:
            found[cookie.key] = cookie
    return tuple(found.values())


def _lines_of(path: Path, too_large: str, not_text: str) -> Iterable[tuple[int, str]]:
    """Return the numbered lines of a small file that a user gives."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError(str(path), f"is larger than {MAX_FILE:,} bytes; {too_large}")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(str(path), not_text) from None
    return enumerate(re.split("\r\n?|\n", text), 1)


def _parse_line(line: str) -> Cookie:
    """Parse one line of a cookie file; raises `ValueError`."""
    parts = line.split("\t")
    if len(parts) == 6:
        parts.append("")  # an empty value, whose tab an editor has removed
    if len(parts) != 7:
        raise ValueError(f"has {len(parts)} fields between tabs, not the 7 of a cookie file")
    domain, subdomains, where, secure, expires, name, value = parts
    domain = domain.strip().removeprefix(".").lower()
    has_signs = any(sign in domain for sign in "/ :@") and ip_literal(domain) is None
    if not 0 < len(domain) <= urls.MAX_HOST or not domain.isascii() or has_signs:
        raise ValueError("the first field is no host name")
    flags = []
    for flag, which in ((subdomains, "second"), (secure, "fourth")):
        if flag.strip().upper() not in ("TRUE", "FALSE"):
            raise ValueError(f"the {which} field must be TRUE or FALSE")
        flags.append(flag.strip().upper() == "TRUE")
    if not where.startswith("/"):
        raise ValueError("the third field, the path, must begin with /")
    if not _NUMBER.fullmatch(expires):
        raise ValueError("the fifth field, the expiry, must be seconds since 1970")
    if CONTROL.search(name + value) or ";" in name + value:
        raise ValueError("the name or value holds a character that no cookie can hold")
    until = float(expires or 0)
    if until <= 0:
        until = _NEVER
    return Cookie(
        name=name,
        value=value,
        domain=domain,
        path=where,
        subdomains=flags[0] and not urls.is_public_suffix(domain),
        secure=flags[1],
        expires=until,
        given=True,
    )


MAX_HEADERS, MAX_VALUE = 100, 8192
MAX_SECRETS, MAX_SECRET = 100, 10_000
REFRESH_S = 1.0
"""How often a session's file is looked at while it is in use."""
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
MAX_BRANCHES = 100  # lists of a job whose cookies a process keeps
MAX_LIVE = 100  # jobs whose cookies a process keeps
RESERVED = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer",
    "upgrade", "expect", "proxy-connection", "proxy-authorization", "referer", "http2-settings",
})  # fmt: skip
"""Headers that only the client sets: a wrong one breaks the exchange or reveals where a URL was
found."""
_HARMLESS = frozenset({
    "accept", "accept-language", "accept-encoding", "user-agent", "cache-control", "pragma", "dnt",
    "if-none-match", "if-modified-since", "upgrade-insecure-requests",
})  # fmt: skip
"""Headers that follow a redirect to another origin; any other may hold a secret."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a job has signed in, the cookies that it got, and how the last attempts failed."""

    number: int = 0
    cookies: tuple[Cookie, ...] = ()
    failures: int = 0
    """Refusals in a row."""
    useless: int = 0
    """Successes in a row after which the page still asked to sign in."""
    not_before: float = 0.0
    """When it may be tried again, after a failure or useless successes."""
    problem: str = ""
    """Why the last one failed; it holds no secret."""


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job sends along; no text made of it holds a secret."""

    headers: Headers = ()
    user_agent: str | None = None
    proxy: Proxy | None = None
    cookies: tuple[Cookie, ...] = ()
    credentials: dict[str, str] = {}
    """`user:password` by origin, such as `https://a.example`."""
    secrets: dict[str, str] = {}
    """What `$name` stands for in the forms of a site's file."""
    sign_in: SignIn = SignIn()

    def __repr__(self) -> str:
        return (
            f"Session({len(self.headers)} headers, {len(self.cookies)} cookies, "
            f"{len(self.credentials)} credentials, {len(self.secrets)} secrets, proxy {self.proxy})"
        )

    __str__ = __repr__


def harmless(headers: Headers) -> Headers:
    """Return the headers that may go to another origin."""
    return tuple((name, value) for name, value in headers if name.lower() in _HARMLESS)


def header_problem(name: str, value: str) -> str:
    """Return why a header cannot be sent, without its value, or an empty string."""
    if not TOKEN.fullmatch(name):
        return f"{name[:60]!r} is not the name of a header"
    if name.lower() in RESERVED:
        return f"the header {name} is not for you to set"
    if CONTROL.search(value):
        return f"the value of the header {name} holds a line break or another control character"
    if len(value) > MAX_VALUE:
        return f"the value of the header {name} has more than {MAX_VALUE:,} characters"
    return ""


def check(session: Session) -> None:
    """Raise `UsageError` if a session cannot be sent as it is."""
    if len(session.headers) > MAX_HEADERS:
        raise UsageError(f"{len(session.headers)} headers are more than {MAX_HEADERS}")
    for name, value in (*session.headers, ("User-Agent", session.user_agent or "")):
        if problem := header_problem(name, value):
            raise UsageError(problem)


class SessionFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session's file; the job's name tells whether it is this job's."""

    job: str
    format: int = 1
    session: Session


def save(folder: Path, name: str, session: Session) -> None:
    """Write a job's session atomically, readable for its owner only."""
    check(session)
    path = session_path(folder, name)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, mode=0o600, part=temporary) as file:
            file.write(msgspec.json.encode(SessionFile(job=name, session=session)))
    except OSError as error:
        message = f"the session of job {name!r} cannot be kept in {folder} ({error.strerror})"
        raise StoreFull(message) from None


def load(folder: Path, name: str) -> Session | None:
    """Read a job's session, if it has one; raises `StoreError` if the file is not usable."""
    path = session_path(folder, name)
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=SessionFile)
        check(stored.session)
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"{path}: the session of job {name!r} cannot be read ({error.strerror})"
        raise StoreError(message) from None
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        # msgspec names the place, never the content.
        message = f"{path}: is damaged, or is no session ({error}); import again, or remove it"
        raise StoreError(message) from None
    if stored.job != name or stored.format != 1:
        raise StoreError(
            f"{path}: is the session of another job or of a newer program; "
            "import again, or remove it"
        )
    return stored.session


def read_secrets(path: Path) -> dict[str, str]:
    """Read a file of lines such as `password=…`; `InputError` names the line, never a value."""
    found: dict[str, str] = {}
    for number, line in _lines_of(path, "are these secrets?", "is not text in UTF-8"):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        name, value = name.strip(), value.strip()
        problem = ""
        if not equals or not _SECRET_NAME.fullmatch(name):
            problem = "must be name=value; a name has letters, digits and _"
        elif name in found:
            problem = f"names {name} a second time"
        elif not 0 < len(value) <= MAX_SECRET:
            problem = f"the value of {name} must have 1 to {MAX_SECRET:,} characters"
        elif len(found) >= MAX_SECRETS:
            problem = f"there are more than {MAX_SECRETS} secrets"
        if problem:
            raise InputError(str(path), problem, number)
        found[name] = value
    return found


class LiveSession:
    """A session in use: what it sends to each origin, and the cookies that came back.

    With a file, other processes share how the job has signed in, but no other cookies.
    """

    def __init__(
        self,
        session: Session | None = None,
        clock: Callable[[], float] = time.time,
        file: tuple[Path, str] | None = None,
    ) -> None:
        """`file`: the folder of sessions and the job's name."""
        self._session = session or Session()
        self._clock, self._file = clock, file
        self._jars = Jars((*self._session.cookies, *self._session.sign_in.cookies), clock)
        self._jars.hide(self._session.sign_in.cookies)
        self._version = self._seen_version()
        self._look_at = time.monotonic() + REFRESH_S
        self._is_signing_in = False
        self._branches: OrderedDict[str, LiveSession] = OrderedDict()
        self.user_agent = self._session.user_agent
        self.proxy = self._session.proxy

    def __repr__(self) -> str:
        return f"LiveSession({self._session}, {self._jars})"

    @property
    def secrets(self) -> dict[str, str]:
        """What `$name` stands for in the forms of a site's file."""
        return self._session.secrets

    @property
    def hidden_values(self) -> list[str]:
        """What no stored page may show: secrets, and the cookies of the login."""
        return [*self._session.secrets.values(), *self._jars.secret_values]

    @property
    def has_credentials(self) -> bool:
        """Whether the operator gave anything that may open pages: cookies, passwords, headers."""
        given = self._session
        secret_headers = len(given.headers) > len(harmless(given.headers))
        return bool(given.cookies or given.credentials or given.secrets or secret_headers)

    @property
    def sign_in(self) -> SignIn:
        """How the job has signed in, as last read."""
        return self._session.sign_in

    def headers(
        self, scheme: str, authority: str, host: str, path: str, home: bool
    ) -> dict[str, tuple[str, str]]:
        """Return the headers for a request by their names in lower case.

        Away from `home`, the origin of the page, only harmless ones and those of the other origin.
        """
        session = self._session
        if not (session.headers or session.user_agent or session.credentials or self._jars.used):
            return {}
        kept = session.headers if home else harmless(session.headers)
        sent = {name.lower(): (name, value) for name, value in kept}
        if session.user_agent is not None:
            sent["user-agent"] = ("User-Agent", session.user_agent)
        secret = session.credentials.get(f"{scheme}://{authority}")
        if secret is not None and "authorization" not in sent:
            basic = base64.b64encode(secret.encode()).decode()
            sent["authorization"] = ("Authorization", f"Basic {basic}")
        _, own = sent.get("cookie", ("", ""))
        cookies = self._jars.header(scheme, host, path, MAX_HEADER - len(own))
        if cookies:
            sent["cookie"] = ("Cookie", "; ".join(filter(None, (own, cookies))))
        return sent

    def take(self, scheme: str, host: str, path: str, set_cookie: list[str]) -> None:
        self._jars.take(scheme, host, path, set_cookie)

    def live_cookies(self) -> list[Cookie]:
        """Return all cookies, for a browser that sends them by itself."""
        return self._jars.live()

    def put(self, cookies: Iterable[Cookie]) -> None:
        """Take over the cookies of a browser; one that has expired is removed."""
        self._jars.put(cookies)

    def is_based_on(self, session: Session) -> bool:
        """Whether this is that session, apart from how it has signed in."""
        return _without_sign_in(self._session) == _without_sign_in(session)

    # Signing in

    def fresh(self) -> "LiveSession":
        """Return the session as the operator gave it, without any cookie that came back."""
        return LiveSession(_without_sign_in(self._session), self._clock)

    def branch(self, name: str = "") -> "LiveSession | None":
        """Return a session for one form, with the cookies of the operator and of signing in only:
        servers keep searches by their cookies, and two searches at a time must not mix.

        With a name, it is one that `keep_branch` or another process has kept, or None.
        """
        if known := self._branches.get(name):
            return known
        made = LiveSession(self._session, self._clock)
        if name:
            cookies = self._stored_branch(name)
            if cookies is None:
                return None
            made._jars.put(cookies)
        return made

    def keep_branch(self, branch: "LiveSession", name: str) -> str:
        """Keep a session for the next page of its list, and use its cookies for other pages, too.

        Returns its name, which is empty if any session will do: no server has set a cookie.
        """
        gained = branch.gained_cookies()
        if not gained and not self.sign_in.number:
            return ""
        self._jars.put(gained)
        self._branches[name] = branch
        while len(self._branches) > MAX_BRANCHES:
            self._branches.popitem(last=False)
        return name

    def store_branch(self, name: str) -> None:
        """Let other processes continue a list: keep the cookies of its session in a file.

        Without the file they begin the list anew, which takes longer.
        """
        branch = self._branches.get(name)
        if branch is None or self._file is None:
            return
        folder, job = self._file
        content = msgspec.json.encode(branch.gained_cookies())
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(_branch_path(folder, job, name), content, 0o600)

    def _stored_branch(self, name: str) -> tuple[Cookie, ...] | None:
        if self._file is None:
            return None
        try:
            content = _branch_path(*self._file, name).read_bytes()
            return msgspec.json.decode(content, type=tuple[Cookie, ...])
        except (OSError, msgspec.DecodeError):
            return None  # the list is then begun anew

    def has_cookies_for(self, host: str) -> bool:
        """Whether the operator gave cookies for a host."""
        return any(is_within(host, cookie.domain) for cookie in self._session.cookies)

    def refresh(self, *, now: bool = False) -> None:
        """Take over how another process has signed in meanwhile.

        Looks at the file at most once a second, unless it has to be `now`. A file that cannot be
        read changes nothing.
        """
        if self._file is None or (not now and time.monotonic() < self._look_at):
            return
        self._look_at = time.monotonic() + REFRESH_S
        version = self._seen_version()
        if version == self._version:
            return
        try:
            session = load(*self._file)
        except StoreError:
            return
        self._version = version
        if session and self.is_based_on(session):
            self._adopt(session)

    @contextmanager
    def signing_in(self) -> Iterator[bool]:
        """Whether this may sign in now: of all processes only one may, until the block ends."""
        if self._file is None:
            may, self._is_signing_in = not self._is_signing_in, True
            try:
                yield may
            finally:
                self._is_signing_in = not may
            return
        folder, name = self._file
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_lock(session_path(folder, name).with_suffix(".lock"))
        try:
            yield try_lock(descriptor)
        finally:
            os.close(descriptor)

    def keep(self, signed_in: SignIn) -> None:
        """Keep how the job has signed in, for all processes; only while `signing_in`.

        If the file cannot be written, this process knows it alone.
        """
        session = msgspec.structs.replace(self._session, sign_in=signed_in)
        if self._file:
            with suppress(StoreError):
                # What the operator has given since then stays.
                if not self.is_based_on(load(*self._file) or session):
                    return
                save(*self._file, session)
                self._version = self._seen_version()
        self._adopt(session)

    @property
    def has_gained_cookies(self) -> bool:
        """Whether servers may have set cookies, or the job has signed in."""
        return self._jars.used

    def gained_cookies(self) -> tuple[Cookie, ...]:
        """Return the cookies that servers have set, to be kept in a file."""
        return self._jars.gained()

    def _adopt(self, session: Session) -> None:
        is_new = session.sign_in.number != self._session.sign_in.number
        self._session = session
        if is_new:
            self._jars.hide(session.sign_in.cookies)
            self._jars.put(session.sign_in.cookies)

    def _seen_version(self) -> tuple[int, int]:
        """Return what changes with every new content of the file."""
        if self._file is None:
            return 0, 0
        try:
            status = session_path(*self._file).stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino


def _branch_path(folder: Path, job: str, name: str) -> Path:
    return session_path(folder, job).with_suffix(f".{name}{SESSION_COOKIES}")


def _without_sign_in(session: Session) -> Session:
    return msgspec.structs.replace(session, sign_in=SignIn())


class Sessions:
    """The sessions of the jobs that a process works for, read again when their files change."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._live: OrderedDict[str, tuple[int, LiveSession]] = OrderedDict()

    def of(self, name: str) -> LiveSession:
        """Return the session of a job, which keeps cookies even if the job sends nothing else.

        If only the way in which the job has signed in is new, the session refreshes itself: another
        thread may be using it.
        """
        try:
            changed = session_path(self._folder, name).stat().st_mtime_ns
        except OSError:
            changed = 0
        known = self._live.get(name)
        if known is None or known[0] != changed:
            session = load(self._folder, name) or Session()
            live = known[1] if known and known[1].is_based_on(session) else None
            live = live or LiveSession(session, self._clock, (self._folder, name))
            known = (changed, live)
        self._live[name] = known
        self._live.move_to_end(name)
        while len(self._live) > MAX_LIVE:
            self._live.popitem(last=False)
        return known[1]
