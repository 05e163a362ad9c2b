"""Who asks: the client behind a token, or a program on this machine."""

from typing import Annotated, Protocol

import msgspec
from fastapi import Depends
from starlette.requests import HTTPConnection


class Client(msgspec.Struct, frozen=True):
    """Whose sessions are seen; the name of a token, empty for programs on this machine."""

    name: str


class Auth(Protocol):
    """Finds out who asks; raises an `HTTPException` for those who may not."""

    def client_of(self, connection: HTTPConnection) -> Client:
        """Return the client of a request or a WebSocket."""


class LocalOnly:
    """Everybody who reaches this server is a program on this machine."""

    def client_of(self, connection: HTTPConnection) -> Client:
        """Return the client without a name."""
        return Client("")


def current_client(connection: HTTPConnection) -> Client:
    """Return the client of this request: the dependency of every route."""
    auth: Auth = connection.app.state.auth
    return auth.client_of(connection)


CurrentClient = Annotated[Client, Depends(current_client)]
