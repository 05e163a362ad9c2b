"""Small servers inside a test's own loop, which leave nothing open when they end."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

LAST_TURNS = 4
"""Turns of the loop after which what was accepted has its task, and what was closed is closed."""
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(
    talk: Talk, address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve every connection by `talk` until the end; gives the port."""
    talks: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await talk(reader, writer)
        finally:
            with suppress(OSError):
                writer.close()
                await writer.wait_closed()

    def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(converse(reader, writer))
        talks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            talks.discard(task)
            if not writer.is_closing():  # it was cancelled before it had begun
                writer.transport.abort()

        task.add_done_callback(ended)

    server = await asyncio.start_server(attend, address, port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(LAST_TURNS):  # a connection may just be accepted
            await asyncio.sleep(0)
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
