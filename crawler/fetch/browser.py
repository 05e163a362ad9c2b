"""The browser of a worker process: pages that need JavaScript, one context each.

One Chromium serves many pages. It is replaced when it has served enough of them, is old, needs too
much memory, or has crashed. Its slots are counted here: a page that cannot be closed ends the whole
browser instead of holding its slot.
"""

import asyncio
import importlib
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from crawler.config import Settings
from crawler.errors import FetchError
from crawler.fetch.browser_process import Chromium, find_program, lacking, remove_leftovers
from crawler.fetch.browser_proxy import PinningProxy
from crawler.fetch.egress import Egress, Proxies
from crawler.fetch.http import Request, RequestHook
from crawler.fetch.rendering import Rendered
from crawler.render_options import RenderOptions

if TYPE_CHECKING:
    from types import ModuleType

    from playwright.async_api import Browser as PlaywrightBrowser

    from crawler.fetch.browser_page import PageLimits, PageVisit

CLOSE_S = 5.0
"""How long a page may take to close; after that the browser is ended."""
WATCH_S = 1.0
"""How often age and memory of a browser are looked at."""
FOLDER = "browser"


class BrowserLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one Chromium does before it is replaced."""

    slots: int = 4
    """Pages at a time."""
    pages: int = 100
    age_s: float = 1800.0
    memory: int = 1_500_000_000
    """Bytes above which it gets no more pages; with twice as many it is ended at once."""


class Browser:
    """Renders pages; it belongs to the event loop it is entered on."""

    def __init__(
        self,
        folder: Path,
        max_body: int,
        *,
        program: Path | None = None,
        egress: Egress | None = None,
        through: Proxies | None = None,
        limits: BrowserLimits | None = None,
        page_limits: "PageLimits | None" = None,
        switches: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is for its profiles. `switches` are given to Chromium, too."""
        # Chromium is told the path, and works elsewhere.
        self._folder, self._program = folder.absolute(), program
        self._max_body, self._switches = max_body, switches
        self._limits, self._page_limits = limits or BrowserLimits(), page_limits
        self._egress = egress or Egress()
        self._proxy = PinningProxy(self._egress, through or Proxies())
        self._clock = clock
        self._slots = asyncio.Semaphore(self._limits.slots)
        self._starting = asyncio.Lock()
        self._running: _Running | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the browser that the environment's settings describe."""
        proxies = (settings.http_proxy, settings.https_proxy, settings.no_proxy)
        return cls(
            settings.data_dir / "run" / FOLDER,
            settings.max_body,
            program=settings.browser_path,
            egress=Egress(settings.allow_nets),
            through=Proxies.from_environment(*proxies),
            limits=BrowserLimits(slots=settings.tabs),
        )

    @property
    def lacking(self) -> str:
        """What this machine lacks for it, in one line; or nothing."""
        return lacking(self._program)

    async def __aenter__(self) -> Self:
        await self._proxy.start()
        await asyncio.to_thread(remove_leftovers, self._folder)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running:
            self._end(self._running)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._proxy.stop()
        self._egress.close()

    async def render(
        self,
        request: Request,
        hook: RequestHook = lambda url: nullcontext(),
        options: RenderOptions | None = None,
    ) -> Rendered:
        """Return the page as a browser shows it, whatever its status; raises `FetchError`."""
        if problem := self.lacking:
            raise FetchError("browser_missing", problem)
        async with self._slots:
            loaded = await asyncio.to_thread(_page_module)
            visit = loaded.PageVisit(
                request,
                hook,
                options or RenderOptions(),
                proxy=self._proxy,
                limits=self._page_limits or loaded.PageLimits(),
                max_body=self._max_body,
            )
            running = await self._ready()
            running.in_flight += 1
            running.pages += 1
            try:
                rendered: Rendered = await visit.render(running.browser, running.chromium.died)
                return rendered
            finally:
                # A cancelled page is closed all the same, and holds its slot until then.
                await asyncio.shield(self._in_background(self._leave(running, visit)))

    async def _ready(self) -> "_Running":
        """Return the browser, started if need be."""
        async with self._starting:
            running = self._running
            if running and (running.chromium.died.is_set() or self._is_used_up(running)):
                self._retire(running)
            if self._running is None:
                chromium = Chromium(self._folder, find_program(self._program), self._switches)
                browser = await chromium.start(self._proxy.url)
                self._running = running = _Running(chromium, browser, self._clock())
                running.watch = self._in_background(self._watch(running))
            return self._running

    def _is_used_up(self, running: "_Running") -> bool:
        age_s = self._clock() - running.began
        return running.pages >= self._limits.pages or age_s > self._limits.age_s

    async def _watch(self, running: "_Running") -> None:
        """Retire a browser that is old or large, and end one that has died or grows on."""
        while not running.chromium.died.is_set():
            await asyncio.sleep(WATCH_S)
            used = 0
            if running.in_flight:
                used = await asyncio.to_thread(running.chromium.memory)
            if not running.chromium.is_whole:
                break
            if used > 2 * self._limits.memory:
                break
            if used > self._limits.memory or self._is_used_up(running):
                self._retire(running)
        self._end(running)

    def _retire(self, running: "_Running") -> None:
        """Give no more pages to a browser; the last page to leave ends it."""
        running.retired = True
        if self._running is running:
            self._running = None
        if not running.in_flight:
            self._end(running)

    async def _leave(self, running: "_Running", visit: "PageVisit") -> None:
        """Close a page, or else the browser."""
        closing = asyncio.ensure_future(visit.close())
        await asyncio.wait([closing], timeout=CLOSE_S)
        running.in_flight -= 1
        if not closing.done():
            closing.cancel()
            running.chromium.died.set()
        if running.chromium.died.is_set():
            self._retire(running)
            await running.chromium.end()
        elif running.retired and not running.in_flight:
            self._end(running)

    def _end(self, running: "_Running") -> None:
        if running.watch:
            running.watch.cancel()
        self._in_background(running.chromium.end())

    def _in_background(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


def find_browser(settings: Settings) -> Browser | None:
    """Return the browser of a process, which starts with its first page; None where there is
    none."""
    return None if lacking(settings.browser_path) else Browser.of(settings)


def _page_module() -> "ModuleType":
    """Load the driver's library, which takes seconds: for the first page only, beside the loop."""
    return importlib.import_module("crawler.fetch.browser_page")


class _Running:
    """A browser with the pages that it has had."""

    def __init__(self, chromium: Chromium, browser: "PlaywrightBrowser", began: float) -> None:
        self.chromium, self.browser, self.began = chromium, browser, began
        self.pages = self.in_flight = 0
        self.retired = False
        self.watch: asyncio.Task[None] | None = None
