"""One Chromium and its driver: started under a guard, measured, and ended with all of it."""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from crawler.errors import OwnShortage
from crawler.fetch import browser_guard
from crawler.locks import is_locked, open_lock, try_lock
from crawler.process import ProcessMark

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

START_S = 60.0
"""Time limit of a start; a machine under load may take ten times as long as an idle one."""
KILL_S = 5.0
"""How long a step of the end may take before the next, harder one."""
POLL_S = 0.02
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
_SWITCHES = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-startup-window",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm has 64 MB in a container
    "--force-color-profile=srgb",
    "--password-store=basic",
    "--use-mock-keychain",
    # A page behind another one works on.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-back-forward-cache",
    "--disable-hang-monitor",
    # Chromium itself asks nobody for anything.
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-field-trial-config",
    "--disable-search-engine-choice-screen",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-pings",
    # Nothing leaves but through the proxy.
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--block-new-web-contents",
    "--disable-shared-workers",  # the driver does not tell of their requests
    "--disable-features=DialMediaRouteProvider,HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,"
    "MediaRouter,NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,PreconnectToSearch,"
    "Prerender2,SpeculationRulesPrefetchFuture,Translate,"
    "WebRtcHideLocalIpsWithMdns",  # it would listen to the local network; no local IP is found out
)
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "FONTCONFIG_FILE", "FONTCONFIG_PATH")
"""What Chromium gets to know of our environment, which holds secrets."""
_NO_SANDBOX = "sandbox"
"""What Chromium's complaint holds where the kernel or a container gives it no sandbox."""


def find_program(path: Path | None) -> str:
    """Return the path of an installed Chromium, or an empty string."""
    names = [str(path)] if path else NAMES
    return next(filter(None, map(shutil.which, names)), "")


def lacking(path: Path | None) -> str:
    """Return what pages in a browser need and this machine lacks, in one line; or nothing."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "pages in a browser need the extra `browser`; install it: pip install '.[browser]'"
    if find_program(path):
        return ""
    if path:
        return f"CRAWLER_BROWSER_PATH={path}: there is no such program"
    return (
        "pages in a browser need Chromium; install it: apt-get install chromium-headless-shell; "
        "or name another one with CRAWLER_BROWSER_PATH"
    )


def remove_leftovers(folder: Path) -> None:
    """Remove what browsers of killed programs have left, should their guards have been killed too.

    A folder in use is locked by its program, and later by its guard.
    """
    for own in folder.glob("*/lock"):
        if is_locked(own):
            continue
        _kill_users_of(own.parent)
        shutil.rmtree(own.parent, ignore_errors=True)


def _kill_users_of(folder: Path) -> None:
    """Kill the processes whose profile is in a folder; Chromium's others end with these."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in part for part in process.cmdline()):
                process.kill()


class Chromium:
    """A running browser with its driver, in a folder of its own."""

    def __init__(self, folder: Path, program: str, switches: Sequence[str]) -> None:
        self._folder = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._program, self._switches = program, switches
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._guard: ProcessMark | None = None
        self._driver: ProcessMark | None = None
        self._lock: int | None = None
        self._descriptors: list[int] = []  # readable when a process has ended
        self._ending: asyncio.Task[None] | None = None
        self.died = asyncio.Event()
        """Set once it cannot be used any more."""
        self.sandboxed = os.geteuid() != 0  # Chromium refuses its sandbox to root

    async def start(self, proxy: str) -> "Browser":
        """Start it, with a proxy that it cannot go around; raises `OwnShortage`."""
        from playwright.async_api import Error, async_playwright

        self._folder.mkdir(mode=0o700, parents=True)
        self._lock = open_lock(self._folder / "lock")
        try_lock(self._lock)
        starting = asyncio.ensure_future(async_playwright().start())
        try:
            async with asyncio.timeout(START_S):
                self._playwright = await asyncio.shield(starting)
                try:
                    browser = await self._launch(self._playwright, proxy)
                except Error as error:
                    if not self.sandboxed or _NO_SANDBOX not in error.message:
                        raise
                    self.sandboxed = False
                    browser = await self._launch(self._playwright, proxy)
        except BaseException as error:
            if not starting.done():
                starting.add_done_callback(_stop_late)
            await asyncio.shield(self.end())
            if isinstance(error, TimeoutError):
                raise OwnShortage(f"the browser did not start within {START_S:g} s") from None
            if isinstance(error, Exception):  # the library has none of its own for its driver's end
                told = _last_line(str(error))
                raise OwnShortage(f"the browser did not start ({told})") from None
            raise
        browser.on("disconnected", lambda _: self.died.set())
        self._browser = browser
        return browser

    async def _launch(self, playwright: "Playwright", proxy: str) -> "Browser":
        sandbox = () if self.sandboxed else ("--no-sandbox",)
        given: dict[str, str | float | bool] = {
            name: os.environ[name] for name in _ENVIRONMENT if name in os.environ
        }
        # The order of an interpreter's arguments: the guard, what it needs, and what it runs.
        guard = ["-I", "-S", browser_guard.__file__, str(self._folder), self._program]
        browser = await playwright.chromium.launch(
            executable_path=sys.executable,
            ignore_default_args=True,
            args=[
                *guard,
                *_SWITCHES,
                *sandbox,
                *self._switches,
                f"--proxy-server={proxy}",
                f"--user-data-dir={self._folder / 'profile'}",
            ],
            env=given | {"HOME": str(self._folder), "TMPDIR": str(self._folder)},
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=START_S * 1000,
        )
        self._note_processes()
        return browser

    def _note_processes(self) -> None:
        """Note guard and driver, as the guard tells them."""
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            guard, driver = map(int, (self._folder / "processes").read_text().split())
            self._guard, self._driver = ProcessMark.of(guard), ProcessMark.of(driver)
            for pid in (guard, driver):
                self._watch(pid)

    def _watch(self, pid: int) -> None:
        """Note the end of a process at once: the driver's library does not tell of its own."""
        if hasattr(os, "pidfd_open"):  # Linux
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                self._descriptors.append(descriptor)
                asyncio.get_running_loop().add_reader(descriptor, self._note_death)

    def _note_death(self) -> None:
        self.died.set()
        for descriptor in self._descriptors:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._descriptors.clear()

    @property
    def is_whole(self) -> bool:
        """Whether guard and driver are there."""
        return all(mark and mark.find() for mark in (self._guard, self._driver))

    def memory(self) -> int:
        """Return the bytes of memory of all its processes, what they share counted once."""
        total = 0
        with suppress(psutil.NoSuchProcess):
            guard = self._guard and self._guard.find()
            for process in guard.children(recursive=True) if guard else ():
                with suppress(psutil.Error):
                    about = process.memory_full_info()
                    total += getattr(about, "pss", about.rss)
        return total

    async def end(self) -> None:
        """End it with all its processes, and remove its folder; may be called several times."""
        if self._ending is None:
            self._note_death()
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._browser:  # the driver then removes its folders from that for temporary ones
            await _settled(self._browser.close())
        if self._guard is None:
            self._note_processes()
        guarded = self._guard and self._guard.find()
        if not guarded or not await self._gone(self._guard, signal.SIGTERM):
            await asyncio.to_thread(_kill_users_of, self._folder)
        if self._playwright and not await _settled(self._playwright.stop()):
            await self._gone(self._driver, signal.SIGKILL)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    async def _gone(self, mark: ProcessMark | None, with_signal: signal.Signals) -> bool:
        """Send a signal to a process; return whether it has ended in time."""
        until = time.monotonic() + KILL_S
        process = mark and mark.find()
        if process:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(with_signal)
                process.send_signal(signal.SIGCONT)  # a stopped process would not hear of it
        while mark and mark.find():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_S)
        return True


async def _settled(work: Coroutine[Any, Any, None]) -> bool:
    """Wait for something that may fail or hang; return whether it is done, whatever it says."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task], timeout=KILL_S)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task.done()


def _stop_late(starting: "asyncio.Task[Playwright]") -> None:
    """Stop a driver that has started when nobody waited for it any more."""
    if not starting.cancelled() and not starting.exception():
        stopping = asyncio.ensure_future(starting.result().stop())
        stopping.add_done_callback(lambda done: done.exception())


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"
