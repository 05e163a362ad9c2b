"""A real browser without a window, where there is one."""

import asyncio
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import uvloop

from crawler.fetch.browser import Browser
from crawler.fetch.http import Request, RequestHook
from crawler.fetch.rendering import Rendered
from crawler.render_options import RenderOptions

T = TypeVar("T")

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
LACKING = (
    "no Chromium: no page is opened in a browser by tests (apt-get install chromium-headless-shell)"
)


def no_hook(url: str) -> AbstractAsyncContextManager[None]:
    """Let every request pass."""
    return nullcontext()


def chromium() -> str | None:
    """The program, if it is there."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def show(url: str, scratch: Path, wait_s: float = 4.0) -> bytes:
    """Open a page, let it do for a while what it likes, and give a picture of it."""
    picture = scratch / "page.png"
    options = [
        f"--virtual-time-budget={wait_s * 1000:.0f}",
        "--window-size=400,300",
        f"--screenshot={picture}",
    ]
    with _running(scratch, *options, url) as process:
        process.wait(timeout=120)
    return picture.read_bytes()


@contextmanager
def opened(url: str, scratch: Path) -> Iterator[None]:
    """A browser that shows a page, for as long as one looks: a page that goes elsewhere may never
    get its picture."""
    with _running(scratch, "--remote-debugging-port=0", url):
        yield


@contextmanager
def _running(scratch: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    program = chromium()
    assert program, LACKING
    scratch.mkdir(exist_ok=True)
    argv = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={scratch / 'profile'}",
    ]
    with (scratch / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, *arguments], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(
            ProcessLookupError
        ):  # the program is a shell around the browser: end all of it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Renderer:
    """A browser of the crawler on an event loop like a worker's: uvloop, in a thread of its own."""

    def __init__(self, folder: Path, max_body: int = 1_000_000, **how: Any) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.folder = folder

        async def enter() -> Browser:
            return await Browser(folder, max_body, **how).__aenter__()

        self.browser = self.run(enter())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(300)

    def start(self, url: str, hook: RequestHook = no_hook, **asked: Any) -> Future[Rendered]:
        """Begin to render a page. What is no field of `Request` is one of `RenderOptions`."""
        fields = {
            name: asked.pop(name) for name in RenderOptions.__struct_fields__ if name in asked
        }
        request = Request(url=url, **({"loopback": True} | asked))
        work = self.browser.render(request, hook, RenderOptions(**fields))
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def render(self, url: str, hook: RequestHook = no_hook, **asked: Any) -> Rendered:
        """Render a page."""
        return self.start(url, hook, **asked).result(300)

    def processes(self) -> list[psutil.Process]:
        """All processes of its browser: the driver first, then the guard, then Chromium's."""
        return family(psutil.Process(), self.folder)

    def close(self) -> None:
        self.run(self.browser.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def family(program: psutil.Process, folder: Path) -> list[psutil.Process]:
    """Return the processes that a program runs for its browsers with profiles in a folder."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for driver in program.children():
            below = driver.children(recursive=True)
            if any(str(folder) in part for guard in below[:1] for part in guard.cmdline()):
                found += [driver, *below]
    return found
