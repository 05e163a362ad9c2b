"""Tells those who wait on the event loop that the ledger has changed."""

import asyncio

from crawler.api.backend import LedgerBackend


class Changes:
    """One thread looks at the ledger, however many wait here."""

    def __init__(self) -> None:
        self.version = 0
        """Rises with each change."""
        self.is_stopping = False
        self._event = asyncio.Event()

    def follow(self, backend: LedgerBackend) -> None:
        """Be told by the thread of a back end, from the running loop on."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(self._tell)

        backend.on_change = tell

    def stop(self) -> None:
        """Wake everybody: the server ends."""
        self.is_stopping = True
        self._tell()

    def _tell(self) -> None:
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, limit_s: float) -> None:
        """Wait until there is another version than the one that was seen, or for some time."""
        if self.version != seen or self.is_stopping:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._event.wait()
        except TimeoutError:
            return
