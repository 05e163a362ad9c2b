"""Who asks: checks the token, the Host and the Origin of every request and WebSocket."""

import ipaddress
import re
from typing import Annotated, Protocol
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import HTTPConnection

from crawler.api.errors import ApiError
from crawler.api.tokens import OPERATOR, Client, Tokens

__all__ = ["Auth", "Client", "CurrentClient", "LocalOnly", "TokenAuth", "current_client"]

OPEN_PATHS = ("/health", "/ready")
"""What monitors ask without a token. The answers say nothing about what is crawled."""
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")


class Auth(Protocol):
    """Finds out who asks; raises an `HTTPException` for those who may not."""

    def client_of(self, connection: HTTPConnection) -> Client:
        """Return the client of a request or a WebSocket."""


class LocalOnly:
    """Everybody who reaches this server is a program on this machine."""

    def client_of(self, connection: HTTPConnection) -> Client:
        """Return the operator."""
        return OPERATOR


class TokenAuth:
    """Asks for a token as soon as there is one, and always if other machines reach the server."""

    def __init__(self, tokens: Tokens, is_local: bool) -> None:
        """`is_local`: the server listens on loopback only."""
        self._tokens, self._is_local = tokens, is_local

    def client_of(self, connection: HTTPConnection) -> Client:
        """Return the client, after its Host, Origin and token have been checked."""
        host = connection.headers.get("host", "")
        if self._is_local and not names_this_machine(host):
            # A page elsewhere may have pointed its own name at this machine (DNS rebinding).
            raise ApiError(
                403,
                "wrong_host",
                f"this server is for this machine only, and knows no host {host[:100]!r}; "
                "use localhost or 127.0.0.1",
            )
        for origin in connection.headers.getlist("origin"):
            if not _is_same_origin(origin, host):
                raise ApiError(
                    403, "wrong_origin", f"pages of {origin[:100]!r} may not use this server"
                )
        if connection.scope["path"] in OPEN_PATHS:
            return Client("", ())
        if self._is_local and not self._tokens.any():
            return OPERATOR
        return self._by_token(connection)

    def _by_token(self, connection: HTTPConnection) -> Client:
        given = connection.headers.getlist("authorization")
        kind, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        client = self._tokens.client_of(secret.strip()) if kind.lower() == "bearer" else None
        if client is None:
            told = "this token is not known" if given else "a token is needed"
            raise ApiError(
                401,
                "no_token",
                f"{told}: send the header 'Authorization: Bearer TOKEN'",
                {"WWW-Authenticate": "Bearer"},
            )
        return client


def names_this_machine(host: str) -> bool:
    """Whether a Host header names loopback."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["name"].lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_same_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def current_client(connection: HTTPConnection) -> Client:
    """Return the client of this request, which the guard has found: a dependency of routes."""
    client: Client = connection.scope["crawler.client"]
    return client


CurrentClient = Annotated[Client, Depends(current_client)]
