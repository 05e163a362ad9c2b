"""Runs a browser, and lets nothing of it outlive the program that uses it.

A program of its own, without other modules of the package, so that it starts in some milliseconds:
`python -I -S browser_guard.py FOLDER PROGRAM ARGUMENT…`. FOLDER/lock is locked by the program that
uses the browser; the kernel gives the lock up when that program ends, however it ends. Being the
reaper of all that the browser starts, the guard also leaves no zombies to a container without init.
"""

import ctypes
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
DRIVER_S = 5.0  # how long the driver may take to clean up after its program
PIPES = (3, 4)  # over which the driver talks to the browser


def main() -> None:
    """Run the browser until it, its driver or its program ends; then end all of it."""
    folder, program, *arguments = sys.argv[1:]
    driver, program_ended = os.getppid(), threading.Event()

    def end(status: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with suppress(ChildProcessError):
            while True:
                kill_children()
                os.wait()  # the children of a dead one become ours
        if program_ended.is_set():
            with suppress(ProcessLookupError):
                outlive(driver, folder)
        os._exit(status & 0xFF)

    prctl = getattr(ctypes.CDLL(None), "prctl", lambda option, value: 0)  # macOS has none
    prctl(SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: end(0))
    prctl(SET_PDEATHSIG, signal.SIGTERM)
    Path(folder, "processes").write_text(f"{os.getpid()} {driver}")
    if os.getppid() != driver:
        return  # it ended before it could be watched
    browser = subprocess.Popen([program, *arguments], pass_fds=PIPES)
    for descriptor in PIPES:
        os.close(descriptor)  # else the driver would not see them close
    threading.Thread(target=watch, args=(folder, program_ended), daemon=True).start()
    end(browser.wait())


def watch(folder: str, program_ended: threading.Event) -> None:
    """Wait for the end of the program that uses the browser, and then end the browser."""
    descriptor = os.open(Path(folder, "lock"), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    program_ended.set()
    kill_children()


def outlive(driver: int, folder: str) -> None:
    """Let the driver clean up, which waits for the end of this process; kill it if it hangs."""
    # macOS has no such descriptors; there the driver is trusted to end.
    descriptor = os.pidfd_open(driver) if hasattr(os, "pidfd_open") else None
    if os.fork():
        return
    for stream in range(3):
        os.close(stream)  # the driver waits for the end of these, too
    if descriptor is not None and not select.select([descriptor], [], [], DRIVER_S)[0]:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def kill_children() -> None:
    """Kill the processes whose parent this is now."""
    this = str(os.getpid())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == this:
                os.kill(int(stat.parent.name), signal.SIGKILL)


if __name__ == "__main__":
    main()
