"""What a job sends along: headers, cookies, proxy, credentials; in a file of its own."""

import base64
import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from crawler.errors import StoreError, StoreFull, UsageError
from crawler.fetch.cookies import CONTROL, MAX_HEADER, Cookie, Jars
from crawler.fetch.egress import Proxy
from crawler.fetch.wire import TOKEN, Headers
from crawler.files import replacing

MAX_HEADERS, MAX_VALUE = 100, 8192
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


def path_of(folder: Path, name: str) -> Path:
    """Return the file of a job's session: the harmless part of its name, and a hash."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40].strip("-")
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return folder / f"{plain or 'job'}.{digest}.json"


def save(folder: Path, name: str, session: Session) -> None:
    """Write a job's session atomically, readable for its owner only."""
    check(session)
    path = path_of(folder, name)
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
    path = path_of(folder, name)
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


class LiveSession:
    """A session in use: what it sends to each origin, and the cookies that came back."""

    def __init__(
        self, session: Session | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._session = session or Session()
        self._jars = Jars(self._session.cookies, clock)
        self.user_agent = self._session.user_agent
        self.proxy = self._session.proxy

    def __repr__(self) -> str:
        return f"LiveSession({self._session}, {self._jars})"

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


class Sessions:
    """The sessions of the jobs that a process works for, read again when their files change."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._live: OrderedDict[str, tuple[int, LiveSession]] = OrderedDict()

    def of(self, name: str) -> LiveSession:
        """Return the session of a job, which keeps cookies even if the job sends nothing else."""
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
