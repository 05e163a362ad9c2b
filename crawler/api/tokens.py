"""Tokens of the API: the operator's from the settings, and those of clients, stored as hashes."""

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import msgspec

from crawler import locks
from crawler.config import Settings
from crawler.errors import ConfigError, StoreError, StoreFull, UsageError
from crawler.files import replacing

log = logging.getLogger(__name__)

Scope = Literal["read", "crawl", "admin"]
SCOPES: tuple[str, ...] = get_args(Scope)
FILE = "api-tokens.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_SECRET = re.compile(r"[!-~]{1,4096}")


class Client(msgspec.Struct, frozen=True):
    """Who asks, and whose sessions are seen: the name of a token. The operator has none."""

    name: str
    scopes: tuple[Scope, ...] = ("read", "crawl", "admin")
    max_urls: int | None = None
    """URLs that may be open at a time."""
    max_sessions: int | None = None
    """Sessions that may run at a time."""

    def may(self, scope: Scope) -> bool:
        """Whether a scope allows it: `admin` includes `crawl`, and `crawl` includes `read`."""
        return any(SCOPES.index(own) >= SCOPES.index(scope) for own in self.scopes)

    @property
    def is_operator(self) -> bool:
        """Whether it may change what the operator has set up, such as rates."""
        return self.may("admin")

    @property
    def sees_all(self) -> bool:
        """Whether it sees the whole ledger: only who works on this machine, or has its token."""
        return not self.name


OPERATOR = Client("")


class Token(Client, frozen=True, kw_only=True):
    """A client with the hash of its token."""

    sha256: str
    created_at: float


class _TokenList(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...] = ()
    format: int = 1


class TokenFile:
    """The tokens of clients, in a file of the data folder that only its owner can read."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / FILE
        self._guard = threading.Lock()
        self._version: object = None
        self._tokens: tuple[Token, ...] = ()

    def all(self) -> tuple[Token, ...]:
        """The tokens; the file is read again when it has changed."""
        with self._guard:
            version = _version_of(self.path)
            if version != self._version:
                self._tokens = self._read()
                self._version = version
            return self._tokens

    def add(
        self,
        name: str,
        scopes: tuple[Scope, ...],
        max_urls: int | None = None,
        max_sessions: int | None = None,
    ) -> str:
        """Make a token and return it: nobody can read it later."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name of a token: 1 to 40 letters, digits, - and _, "
                "the first a letter or digit"
            )
        secret = f"crawler_{secrets.token_urlsafe(32)}"
        with self._changing() as tokens:
            if any(token.name == name for token in tokens):
                raise UsageError(f"there is a token {name} already; remove it first")
            tokens.append(
                Token(
                    name,
                    scopes,
                    max_urls,
                    max_sessions,
                    sha256=_hash(secret),
                    created_at=time.time(),
                )
            )
        return secret

    def remove(self, name: str) -> None:
        """Remove a token: from now on it opens nothing. What it has crawled stays."""
        with self._changing() as tokens:
            left = [token for token in tokens if token.name != name]
            if len(left) == len(tokens):
                known = ": " + ", ".join(token.name for token in tokens) if tokens else " none"
                raise UsageError(f"there is no token {name}; there are{known}")
            tokens[:] = left

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """The list, to be changed; one program at a time."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = locks.open_lock(self.path.with_name(f".{FILE}.lock"))
            try:
                locks.wait_lock(lock)
                tokens = list(self._read())
                yield tokens
                with replacing(self.path, mode=0o600) as file:
                    file.write(msgspec.json.encode(_TokenList(tuple(tokens))))
            finally:
                os.close(lock)
        except OSError as error:
            raise StoreFull(f"{self.path}: cannot be written ({error.strerror})") from None

    def _read(self) -> tuple[Token, ...]:
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=_TokenList)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error.strerror})") from None
        except msgspec.DecodeError as error:  # it names the place, never the content
            raise StoreError(
                f"{self.path}: is damaged ({error}); remove it, and add the tokens again"
            ) from None
        return found.tokens


class Tokens:
    """All tokens that open this server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file = TokenFile(settings.data_dir)
        self._own_version: object = None
        self._own = ""
        self.any()  # a token that cannot be read ends the start, not the first request

    def any(self) -> bool:
        """Whether there is a token at all: then every request needs one."""
        return bool(self._operator_hash() or self._file.all())

    def client_of(self, secret: str) -> Client | None:
        """The client of a token; the time it takes does not depend on how much of it is right."""
        given, found = _hash(secret), None
        for token in self._file.all():
            if hmac.compare_digest(token.sha256, given):
                found = Client(token.name, token.scopes, token.max_urls, token.max_sessions)
        if (own := self._operator_hash()) and hmac.compare_digest(own, given):
            return OPERATOR
        return found

    def _operator_hash(self) -> str:
        """The hash of CRAWLER_API_TOKEN, or of what CRAWLER_API_TOKEN_FILE holds now."""
        if self._settings.api_token:
            return _hash(self._settings.api_token)
        path = self._settings.api_token_file
        if path is None:
            return ""
        version = _version_of(path)
        if version != self._own_version or version is None:
            try:
                self._own = _hash(_read_secret(path))
            except ConfigError:
                if not self._own:
                    raise
                log.exception("the last operator's token that could be read stays valid")
            self._own_version = version
        return self._own


def _read_secret(path: Path) -> str:
    where = f"CRAWLER_API_TOKEN_FILE={path}"
    try:
        secret = path.read_text("utf-8", "replace").strip()
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror})") from None
    if not _SECRET.fullmatch(secret):
        raise ConfigError(f"{where}: must hold one token, of printable ASCII without spaces")
    return secret


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _version_of(path: Path) -> object:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
