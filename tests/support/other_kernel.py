"""Plays the stack of another kernel on a data folder: `python -m tests.support.other_kernel
DATA_DIR` until SIGTERM."""

import signal
import sys
from pathlib import Path

from crawler.config import Settings
from crawler.db import guard
from crawler.inbox import Inbox


def main(data_dir: Path) -> None:
    """Import what lies in the inbox, under another kernel's name."""
    data_dir.mkdir(exist_ok=True)
    guard.BOOT_ID = data_dir.with_name("boot_id")
    guard.BOOT_ID.write_text("another kernel\n")
    guard.MACHINE_ID = data_dir.with_name("machine-id")
    guard.MACHINE_ID.write_text("another machine\n")
    inbox = Inbox(Settings(data_dir=data_dir))
    signal.signal(signal.SIGTERM, lambda *_: inbox.stop())
    inbox.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
