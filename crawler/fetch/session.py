"""What a job sends along: headers, cookies, a proxy, credentials; kept in a file that only its
owner can read."""

import base64
import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from crawler.errors import StoreError, StoreFull, UsageError
from crawler.fetch.cookies import MAX_HEADER, Cookie, Jars
from crawler.fetch.proxy import Proxy
from crawler.files import replacing

MAX_HEADERS, MAX_VALUE = 100, 8192
MAX_LIVE = 100
"""The jobs whose cookies a process keeps at a time."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
RESERVED = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
    }
    | {"proxy-connection", "proxy-authorization", "referer", "http2-settings"}
)
"""What the client decides itself, because a wrong one breaks the exchange or tells where a URL was
found."""
_HARMLESS = frozenset(
    {
        "accept",
        "accept-language",
        "accept-encoding",
        "user-agent",
        "cache-control",
        "pragma",
        "dnt",
        "if-none-match",
    }
    | {"if-modified-since", "upgrade-insecure-requests"}
)
"""What goes along on a redirect to another origin; any other header may hold a secret."""

Headers = tuple[tuple[str, str], ...]


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job sends along; no text made of it holds a secret."""

    headers: Headers = ()
    user_agent: str | None = None
    proxy: Proxy | None = None
    cookies: tuple[Cookie, ...] = ()
    credentials: dict[str, str] = {}
    """`user:password` by origin, such as `https://a.example`."""

    def __repr__(self) -> str:
        return (
            f"Session({len(self.headers)} headers, {len(self.cookies)} cookies, "
            f"{len(self.credentials)} credentials, proxy {self.proxy})"
        )

    __str__ = __repr__


def header_problem(name: str, value: str) -> str:
    """Why a header cannot be sent; empty where it can. The value is not repeated."""
    if not _TOKEN.fullmatch(name):
        return f"{name[:60]!r} is not the name of a header"
    if name.lower() in RESERVED:
        return f"the header {name} is not for you to set"
    if _CONTROL.search(value):
        return f"the value of the header {name} holds a line break or another control character"
    if len(value) > MAX_VALUE:
        return f"the value of the header {name} has more than {MAX_VALUE:,} characters"
    return ""


def check(session: Session) -> None:
    """Raise `UsageError` where a session could not be sent as it is."""
    if len(session.headers) > MAX_HEADERS:
        raise UsageError(f"{len(session.headers)} headers are more than {MAX_HEADERS}")
    agent = (("User-Agent", session.user_agent),) if session.user_agent is not None else ()
    for name, value in (*session.headers, *agent):
        if problem := header_problem(name, value):
            raise UsageError(problem)


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session's file; the job's name is in it, so that a foreign file is recognised."""

    job: str
    format: int = 1
    session: Session


def path_of(folder: Path, name: str) -> Path:
    """The file of a job's session: its name as far as it is harmless, and a hash that is its
    own."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40].strip("-")
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return folder / f"{plain or 'job'}.{digest}.json"


def save(folder: Path, name: str, session: Session) -> None:
    """Keep a job's session, whole or not at all, for its owner's eyes only."""
    check(session)
    path = path_of(folder, name)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, mode=0o600, part=temporary) as file:
            file.write(msgspec.json.encode(Stored(job=name, session=session)))
    except OSError as error:
        raise StoreFull(
            f"the session of job {name!r} cannot be kept in {folder} ({error.strerror})"
        ) from None


def load(folder: Path, name: str) -> Session | None:
    """A job's session, if it has one; raises `StoreError` where its file is damaged or not this
    job's."""
    path = path_of(folder, name)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{path}: the session of job {name!r} cannot be read ({error.strerror})"
        ) from None
    try:
        stored = msgspec.json.decode(data, type=Stored)
        check(stored.session)
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        # msgspec names the place, never the content.
        raise StoreError(
            f"{path}: is damaged, or is no session ({error}); import again, or remove it"
        ) from None
    if stored.job != name or stored.format != 1:
        raise StoreError(
            f"{path}: is the session of another job or of a newer program; import again, or remove it"
        )
    return stored.session


class LiveSession:
    """A session at work in a process: what it sends to each address, and the cookies that came
    back."""

    def __init__(
        self, session: Session | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._session = session or Session()
        self._jars = Jars(self._session.cookies, clock)

    def __repr__(self) -> str:
        return f"LiveSession({self._session}, {self._jars})"

    @property
    def user_agent(self) -> str | None:
        """The name that the job goes by, if it has one of its own."""
        return self._session.user_agent

    @property
    def proxy(self) -> Proxy | None:
        """The job's own proxy."""
        return self._session.proxy

    def headers(
        self, scheme: str, authority: str, host: str, path: str, home: bool
    ) -> dict[str, tuple[str, str]]:
        """The headers for a request by their names in lower case; away from `home`, the origin of
        the page that was asked for, only harmless ones and those that belong to that other
        origin."""
        session = self._session
        if not (session.headers or session.user_agent or session.credentials or self._jars.used):
            return {}
        sent = {
            name.lower(): (name, value)
            for name, value in session.headers
            if home or name.lower() in _HARMLESS
        }
        if session.user_agent is not None:
            sent["user-agent"] = ("User-Agent", session.user_agent)
        secret = session.credentials.get(f"{scheme}://{authority}")
        if secret is not None and "authorization" not in sent:
            sent["authorization"] = (
                "Authorization",
                f"Basic {base64.b64encode(secret.encode()).decode()}",
            )
        own = sent["cookie"][1] if "cookie" in sent else ""
        if crumbs := self._jars.header(scheme, host, path, MAX_HEADER - len(own)):
            sent["cookie"] = ("Cookie", f"{own}; {crumbs}" if own else crumbs)
        return sent

    def take(self, scheme: str, host: str, path: str, set_cookie: list[str]) -> None:
        """Keep the cookies of an answer."""
        if set_cookie:
            self._jars.take(scheme, host, path, set_cookie)


class Sessions:
    """The sessions of the jobs that a process works for, read again when their files change."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._live: OrderedDict[str, tuple[int, LiveSession]] = OrderedDict()

    def of(self, name: str) -> LiveSession:
        """The session of a job, which also keeps the cookies of a job that has nothing of its own
        to send."""
        try:
            changed = path_of(self._folder, name).stat().st_mtime_ns
        except OSError:
            changed = 0
        known = self._live.get(name)
        if known is None or known[0] != changed:
            known = (changed, LiveSession(load(self._folder, name), self._clock))
        self._live[name] = known
        self._live.move_to_end(name)
        while len(self._live) > MAX_LIVE:
            self._live.popitem(last=False)
        return known[1]


def harmless(headers: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """The headers that may go along to another origin."""
    return {name: pair for name, pair in headers.items() if name in _HARMLESS}
