"""A real browser without a window, where there is one."""

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LACKING = "no Chromium: no page is opened in a browser by tests (apt-get install chromium-headless-shell)"


def chromium() -> str | None:
    """The program, if it is there."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def show(url: str, scratch: Path, wait_s: float = 4.0) -> bytes:
    """Open a page, let it do for a while what it likes, and give a picture of it."""
    program, picture = chromium(), scratch / "page.png"
    assert program, LACKING
    scratch.mkdir(exist_ok=True)
    argv = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={scratch / 'profile'}"]
    argv += [f"--virtual-time-budget={wait_s * 1000:.0f}", "--window-size=400,300", f"--screenshot={picture}", url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert picture.exists(), done.stderr[-2000:]
    return picture.read_bytes()
