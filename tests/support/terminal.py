"""A command in a terminal of its own, which can be closed as a window is."""

import os
import pty
import select
import subprocess
import sys
import threading

from tests.support.stack import Folder

_TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "1" else signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])
"""


class Terminal:
    """`nohup` lets the command ignore that its terminal is closed."""

    def __init__(self, folder: Folder, *argv: str, nohup: bool = False) -> None:
        self._master, slave = pty.openpty()
        self._text = b""
        self._closing = threading.Event()

        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, str(int(nohup)), *argv],
            cwd=folder.path,
            env=folder.env | {"CRAWLER_DATA_DIR": str(folder.data)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing.is_set():
            if select.select([self._master], [], [], 0.05)[0]:
                try:
                    self._text += os.read(self._master, 65536)
                except OSError:  # the command has ended
                    return

    @property
    def text(self) -> str:
        """What it has shown so far."""
        return self._text.decode(errors="replace")

    def type(self, keys: str) -> None:
        """Type on its keyboard."""
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """Close it: whoever it belongs to gets SIGHUP, and nothing can be written to it any
        more."""
        self._closing.set()
        self._reader.join()
        os.close(self._master)
