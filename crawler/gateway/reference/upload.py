"""The parts of an upload, on their way to the store's own disk."""

import contextlib
from collections.abc import AsyncIterator
from typing import BinaryIO, cast

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from crawler.db.connection import store_errors
from crawler.errors import GatewayRefused
from crawler.gateway.reference.contents import Contents


class _Parser(MultiPartParser):
    """Starlette's parser, whose files lie where they are told to and not wherever temporary files
    do."""

    def __init__(self, request: Request, contents: Contents) -> None:
        super().__init__(request.headers, request.stream(), max_files=1)
        self._contents = contents

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file:
            spool = self._contents.spool()
            self._files_to_close_on_error[-1] = spool
            self._current_part.file.file = cast(BinaryIO, spool)


@contextlib.asynccontextmanager
async def read(request: Request, contents: Contents) -> AsyncIterator[FormData]:
    """The parts of a request; what is none is refused, and a disk that cannot take them is a
    `StoreError`."""
    if not request.headers.get("Content-Type", "").lower().startswith("multipart/form-data"):
        raise GatewayRefused(422, "the body is no multipart/form-data")
    with store_errors(contents.folder):
        try:
            form = await _Parser(request, contents).parse()
        except MultiPartException as error:
            raise HTTPException(400, error.message) from None
    try:
        yield form
    finally:
        await form.close()
