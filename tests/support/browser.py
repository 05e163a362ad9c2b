"""A real browser without a window, where there is one."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
