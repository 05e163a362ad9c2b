"""Processes and the record of a stack: known by what no clock step changes."""

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from crawler import times
from crawler.cli.commands.stack import down, up
from crawler.config import Settings
from crawler.errors import ServiceError, StackIsUp
from crawler.orchestrator import Orchestrator, end_orphans
from crawler.process import Child, ProcessMark, disk_full, end_process, in_short
from crawler.stack import Stack, read_stack, write_stack
from tests.support.patient import look, of
from tests.support.stack import wait_for


@contextmanager
def sleeper(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a name of one's own."""
    shutil.copy(str(shutil.which("sleep")), path)
    process = subprocess.Popen([path, "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def held(data: Path) -> Iterator[None]:
    """A supervisor lives in the folder."""
    (data / "run").mkdir(exist_ok=True)
    with (data / "run" / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_process_is_known_by_boot_and_ticks(tmp_path: Path) -> None:
    """No time of day is part of it, so that it is the same one after a clock step; its name may be
    anything."""
    with sleeper(tmp_path / "a) R 1 (b") as process:
        mark = ProcessMark.of(process.pid)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert mark.began == f"{boot} {fields[22 - 3]}"
        assert mark.find() is not None

        # Another begin, or another boot, is another process
        assert ProcessMark(mark.pid, f"{boot} {int(fields[19]) + 1}").find() is None
        assert ProcessMark(mark.pid, f"another {fields[19]}").find() is None
    assert mark.find() is None


def test_a_stopped_process_is_seen_to_be_stopped(tmp_path: Path) -> None:
    """SIGSTOP leaves a process that is there and does nothing: the doctor names it, and what
    helps."""
    (tmp_path / "run").mkdir()
    with sleeper(tmp_path / "sleep") as process:
        mark = ProcessMark.of(process.pid)
        assert not mark.is_stopped()
        process.send_signal(signal.SIGSTOP)
        wait_for(
            lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 10, "it to stop"
        )
        assert mark.is_stopped()
        write_stack(tmp_path, Stack(supervisor=mark, redis_url="redis://127.0.0.1:1/0"))
        [wrong] = [finding for finding in look(tmp_path) if "is stopped" in finding.detail]
        assert wrong.detail.startswith(f"supervisor {process.pid} of the stack")
        assert f"kill -CONT {process.pid}" in (wrong.fix or "")


def test_a_stopped_process_ends_in_order(tmp_path: Path) -> None:
    """It is woken to hear SIGTERM, instead of being killed when its time is over."""
    with sleeper(tmp_path / "sleep") as process:
        process.send_signal(signal.SIGSTOP)
        found = psutil.Process(process.pid)
        wait_for(lambda: found.status() == psutil.STATUS_STOPPED, 10, "it to stop")
        end_process(found, 60)
        assert getattr(found, "returncode", None) == -signal.SIGTERM


def test_the_stack_of_another_version_is_left_alone(tmp_path: Path) -> None:
    """Its record cannot be read, but its lock is held: every command says so, and none removes the
    record."""
    record = tmp_path / "run" / "stack.json"
    with held(tmp_path):
        record.write_bytes(
            msgspec.json.encode({"supervisor": {"pid": os.getpid(), "began": 17.5}, "ready": True})
        )
        for command in (up, down):
            done = CliRunner(env={"CRAWLER_DATA_DIR": str(tmp_path)}).invoke(command, [])
            assert isinstance(done.exception, StackIsUp), done.output
            assert "of another version" in str(done.exception)
        with (
            pytest.raises(StackIsUp, match="the version that started it"),
            Orchestrator(Settings(data_dir=tmp_path)),
        ):
            pass
        assert "another version of this program" in of(look(tmp_path), "stack", "wrong")[0]
        assert record.exists()

    # Without a living supervisor it is of a stack that is gone
    assert not read_stack(tmp_path).unreadable


def test_orphans_end_and_a_living_stacks_processes_do_not(tmp_path: Path) -> None:
    """What a dead supervisor left is ended; where one lives, nothing is, and its record stays."""
    (tmp_path / "run").mkdir()
    with sleeper(tmp_path / "sleep") as process:
        write_stack(
            tmp_path,
            Stack(supervisor=ProcessMark(1, "another begin"), redis=ProcessMark.of(process.pid)),
        )
        with held(tmp_path):
            assert end_orphans(tmp_path) == 0
        assert process.poll() is None
        assert (tmp_path / "run" / "stack.json").exists()

        assert end_orphans(tmp_path) == 1

        assert not psutil.pid_exists(process.pid)
        assert not (tmp_path / "run" / "stack.json").exists()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero ({log} has more)"),
        ("print('no such option')", "no such option"),
        ("pass", "{log} says nothing of it"),
        (
            "raise OSError(28, 'No space left on device')",
            "no room was left on the disk ({log} has more)",
        ),
    ],
)
def test_a_child_that_does_not_start_is_told_in_one_line(
    tmp_path: Path, code: str, reason: str
) -> None:
    """The last line of what it has said this time, not a traceback, and not what its log holds from
    before."""
    log = tmp_path / "child.log"
    log.write_text("MISCONF of yesterday\n")
    child = Child("the worker", [sys.executable, "-c", code], log)
    child.start()

    with pytest.raises(ServiceError) as caught:
        child.wait_until(lambda: False, 120)

    assert str(caught.value) == f"the worker ended at once: {reason.format(log=log)}"


def test_a_full_disk_is_told_whatever_the_error_says(tmp_path: Path) -> None:
    """Redis calls it MISCONF, and where nothing can be written there is no text at all."""
    refused = (
        "Traceback …\nredis.exceptions.ResponseError: MISCONF Errors writing to the AOF file: No "
        "space left\n"
    )

    assert in_short(refused, tmp_path) == "no room was left on the disk"
    assert disk_full(tmp_path) == ""
    assert disk_full(tmp_path, least=10**18) == f"the disk of {tmp_path} is full; free some room"


def test_a_process_that_cannot_open_files_takes_itself_for_no_other_boot(tmp_path: Path) -> None:
    """Without free descriptors the id of the boot cannot be read: that is an error, and not
    remembered as an answer."""
    boot = tmp_path / "boot_id"
    boot.write_text("a boot\n")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            times.boot_id(boot)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert times.boot_id(boot) == "a boot"
    assert times.boot_id(tmp_path / "none") == ""
