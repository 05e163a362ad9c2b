"""Slots: so many at a time per domain, over all processes, and back at once when a holder is killed."""

import os
import signal
from pathlib import Path

from crawler.resilience.slots import Slots


def test_a_domain_gives_eight(tmp_path: Path) -> None:
    """Eight at a time for one domain, another eight for another; what is given back can be taken again."""
    slots = Slots(tmp_path / "slots")

    assert slots.take("a.example", 5) == 5
    assert slots.take("a.example", 5) == 3
    assert slots.take("a.example", 1) == 0
    assert slots.take("b.example", 20) == 8
    slots.give("a.example", 2)
    assert slots.take("a.example", 5) == 2
    slots.close()


def test_the_limit_holds_over_processes_and_a_killed_one_gives_back(tmp_path: Path) -> None:
    """What another process holds cannot be taken; kill -9 frees it without anybody's help."""
    # Given a process that holds six
    slots = Slots(tmp_path / "slots")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        Slots(tmp_path / "slots").take("a.example", 6)
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)
    assert slots.take("a.example", 8) == 2

    # When it is killed
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    # Then they are free
    assert slots.take("a.example", 8) == 6
    slots.close()
    os.close(reader)
    os.close(writer)


def test_no_two_domains_of_one_process_share_a_slot(tmp_path: Path) -> None:
    """Domains whose bytes fall together have eight slots between them, not eight each."""
    slots = Slots(tmp_path / "slots")
    one = "d0.example"
    twin = next(f"d{n}.example" for n in range(1, 10_000_000) if slots._places(f"d{n}.example") == slots._places(one))

    assert slots.take(one, 5) + slots.take(twin, 8) == 8
    slots.close()
