"""Orchestrator: Redis and workers up and down in order, and up again when they die."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import redis

from crawler.config import Settings, load, program
from crawler.db import kernel, owners
from crawler.errors import CrawlerError, ServiceError, StackIsUp, UsageError
from crawler.logs import leave_lost_terminal
from crawler.lpm import LocalPersistenceManager
from crawler.process import (
    SILENT,
    Child,
    Mark,
    Stack,
    end_process,
    in_short,
    is_locked,
    read_stack,
    redis_program,
    write_stack,
)
from crawler.redis_client import check_redis, connect
from crawler.resilience.redis_rate_limiter import RedisRateLimiter
from crawler.sites import config as sites

log = logging.getLogger(__name__)

WORKER_GRACE_S, REDIS_GRACE_S, AGENT_GRACE_S = 6.0, 1.5, 2.0
"""Together below the ten seconds in which a stop must be done."""
START_LIMIT_S = 45.0
LOCK_LIMIT_S = 0.5
PING_S = 2.0
"""How often our own Redis is asked whether it is well."""
_REDIS_CONF = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir {folder}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
daemonize no
"""


class Orchestrator:
    """A context manager: what it has started is stopped at its end, Celery before Redis."""

    def __init__(
        self,
        settings: Settings | None = None,
        workers: int | None = None,
        flower: bool = False,
        agent: Sequence[str] = (),
    ) -> None:
        """The settings are those of the environment, unless given.

        `agent` are the arguments of the command that speaks to a Gateway, where one is wanted.
        """
        self._settings = settings = settings or load()
        self._data = settings.data_dir.absolute()
        self._workers = workers or os.cpu_count() or 1
        self._flower_wanted = flower
        self._agent_wanted = list(agent)
        self._redis: Child | None = None
        self._celery: Child | None = None
        self._flower: Child | None = None
        self._agent: Child | None = None
        self._stack, self._unwritten = Stack(), False
        self._guard = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._lock = -1
        self._signals = contextlib.ExitStack()
        self._asked = self._silent_since = 0.0
        self._silent_limit_s = SILENT * settings.stall_s

    def __enter__(self) -> Self:
        LocalPersistenceManager(self._data).close_after_check()
        self._lock = os.open(
            self._data / "run" / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        if not self._take_lock():
            os.close(self._lock)
            if read_stack(self._data).unreadable:
                raise StackIsUp(other_version(self._data))
            raise StackIsUp(
                f"a stack is up already in {self._data}; stop it, whether `up` or `ondemand` has started it, with: "
                f"{program()} down"
            )
        stop_stale(self._data, read_stack(self._data))
        shutil.rmtree(self._data / "run" / "tmp", ignore_errors=True)
        (self._data / "run" / "tmp").mkdir(mode=0o700, exist_ok=True)
        self._record(supervisor=Mark.of(os.getpid()))
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # Else a program that does not care about signals would leave its stack behind.
            self._signals.enter_context(terminated_by_signal())
        return self

    def _take_lock(self) -> bool:
        """Commands that look whether a stack is up hold the lock for a moment, too: that is waited
        for."""
        end = time.monotonic() + LOCK_LIMIT_S
        while not owners.try_lock(self._lock):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._signals, _uninterrupted(self.kill_all):
            self.stop_all()

    def start_redis(self) -> bool:
        """See that a fit Redis answers: the one of REDIS_URL, else our own; True, or a
        `ServiceError`."""
        with self._guard:
            if self._settings.redis_url:
                _ping(self._settings.redis_url)
                self._record(redis_url=self._settings.redis_url)
                return True
            if (
                self._redis
                and self._redis.alive
                and self._stack.redis_url
                and _answers(self._stack.redis_url)
            ):
                return True
            self._start_own_redis()
            return True

    def _start_own_redis(self) -> None:
        folder = self._data / "redis"
        folder.mkdir(mode=0o700, exist_ok=True)
        url = (
            self._stack.redis_url or f"redis://:{secrets.token_hex(16)}@127.0.0.1:{_free_port()}/0"
        )
        password, _, place = url.removeprefix("redis://:").partition("@")
        port = place.partition(":")[2].partition("/")[0]
        conf = folder / "redis.conf"
        conf.touch(mode=0o600)
        conf.write_text(_REDIS_CONF.format(port=port, password=password, folder=_quoted(folder)))
        log = self._data / "logs" / "redis.log"
        self._redis = Child("Redis", [redis_program(), str(conf)], log)
        try:
            self._run_redis(self._redis, url)
        except ServiceError:
            if self._redis.alive or not _set_aside(folder):
                raise
            # Redis is disposable: what it kept is set aside, and the ledger fills it again.
            self._run_redis(self._redis, url)

    def _run_redis(self, server: Child, url: str) -> None:
        self._record(redis=server.start(), redis_url=url)
        server.wait_until(lambda: _answers(url), START_LIMIT_S, self._closing.is_set)

    def _permit_at_once(self) -> None:
        """Tell a Redis that is our own, before anyone works with it, that no request can be on its
        way."""
        settings = self._settings
        number, fail_max = settings.redis_rate_limiter_db, settings.circuit_breaker_fail_max
        permit = RedisRateLimiter(str(self._stack.redis_url), number, "supervisor", fail_max)
        with contextlib.closing(permit):
            permit.nothing_booked()

    def start_celery(self) -> bool:
        """See that workers run, and wait until they are ready; True, or a `ServiceError`."""
        with self._guard:
            if self._celery and self._celery.alive:
                return True
            log = self._data / "logs" / "worker.log"
            argv = [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "crawler",
                "worker",
                "-Q",
                "urgent,default",
            ]
            argv += ["-c", str(self._workers), "-n", f"crawler-{secrets.token_hex(3)}@%h"]
            argv += ["--without-mingle", "--without-gossip"]
            self._celery = Child("the worker", argv, log, self._environment())
            mark = self._celery.start()
            self._record(worker=mark)
            self._celery.wait_until(
                lambda: mark.pid in owners.workers(self._data / "run" / "owners"),
                START_LIMIT_S,
                self._closing.is_set,
            )
            return True

    def start_agent(self) -> None:
        """Start what speaks to the Gateway; it may be away, so nothing is waited for."""
        with self._guard:
            argv = [sys.executable, "-m", "crawler", "agent", *self._agent_wanted]
            self._agent = Child(
                "the agent", argv, self._data / "logs" / "agent.log", self._environment()
            )
            self._record(agent=self._agent.start())

    @property
    def drained(self) -> bool:
        """Whether the Gateway wants no more, and has got everything."""
        return self._agent is not None and self._agent.succeeded

    def start_flower(self) -> str:
        """Start Flower on loopback; returns its address."""
        with self._guard:
            if self._flower and self._flower.alive:
                return self._stack.flower_url or ""
            check_flower()
            port = 5555 if _is_free(5555) else _free_port()
            log = self._data / "logs" / "flower.log"
            argv = [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "crawler",
                "flower",
                "--address=127.0.0.1",
                f"--port={port}",
            ]
            self._flower = Child("Flower", argv, log, self._environment())
            mark = self._flower.start()
            self._flower.wait_until(lambda: not _is_free(port), START_LIMIT_S, self._closing.is_set)
            self._record(flower=mark, flower_url=f"http://127.0.0.1:{port}")
            return f"http://127.0.0.1:{port}"

    def _environment(self) -> dict[str, str]:
        """What children see: this data folder, this Redis or none, and a folder for what the killed
        ones leave."""
        env = {"CRAWLER_DATA_DIR": str(self._data), "REDIS_URL": self._settings.redis_url or ""}
        env |= {"CRAWLER_PAGES": str(self._settings.pages), **_config_folder(self._settings)}
        return os.environ | env | {"TMPDIR": str(self._data / "run" / "tmp")}

    def start_all(self) -> None:
        """Everything in order, then watched: what dies is started again."""
        self.start_redis()
        if not self._settings.redis_url and not owners.living(self._data / "run" / "owners"):
            self._permit_at_once()
        self.start_celery()
        if self._flower_wanted:
            self.start_flower()
        if self._agent_wanted:
            self.start_agent()
        self._record(ready=True)
        if not self._watcher.is_alive():
            self._watcher.start()

    def stop_all(self) -> None:
        """Everything down: Celery before Redis, so that nothing is on its way when Redis goes."""
        self._closing.set()
        with self._guard:
            if self._agent:
                self._agent.ask_to_end()  # it takes no more work, and delivers what the workers finish meanwhile
            order = (
                (self._flower, 1.0),
                (self._celery, WORKER_GRACE_S),
                (self._agent, AGENT_GRACE_S),
                (self._redis, REDIS_GRACE_S),
            )
            for child, grace_s in order:
                if child:
                    child.stop(grace_s)
            if self._lock >= 0:
                self._free_leases()
                (self._data / "run" / "stack.json").unlink(missing_ok=True)
                os.close(self._lock)
                self._lock = -1

    def _free_leases(self) -> None:
        """What had to be killed must not look busy until the next start."""
        lpm = LocalPersistenceManager(self._data)
        with contextlib.suppress(CrawlerError), lpm:
            lpm.bury()

    def kill_all(self) -> None:
        """Everything down at once: leases fall with their processes."""
        self._closing.set()
        for child in (self._agent, self._flower, self._celery, self._redis):
            if child:
                child.stop(0)

    def _watch(self) -> None:
        pause_s = 0.5
        while not self._closing.wait(pause_s):
            if os.fstat(self._lock).st_nlink == 0:
                log.critical("%s was removed: the stack in it ends", self._data)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            try:
                self._end_silent_redis()
                pause_s = 0.5 if not self._revive() else min(pause_s * 2, 5.0)
                trouble = ""
            except Exception as error:  # a watcher that has died starts nothing again
                reason = in_short(error, self._data) or type(error).__name__
                trouble = f"a restart failed and is tried again: {reason}"
                log.error(trouble)  # noqa: TRY400 – the message says it all
                pause_s = min(pause_s * 2, 5.0)
            if (trouble != self._stack.trouble or self._unwritten) and not self._closing.is_set():
                with contextlib.suppress(OSError):  # a full disk must not end the watch
                    self._record(trouble=trouble)

    def _end_silent_redis(self) -> None:
        """Kill a Redis of our own that lives but answers nobody, as one that was stopped does: it
        is started again."""
        url, rested_s = self._stack.redis_url, time.monotonic() - self._asked
        if not self._redis or not self._redis.alive or not url or rested_s < PING_S:
            return
        slept = (
            rested_s > self._silent_limit_s
        )  # this process itself: then nothing is known of Redis
        answered = _answers(url)
        self._asked = time.monotonic()
        if answered or slept or not self._silent_since:
            self._silent_since = 0.0 if answered else self._asked
        elif self._asked - self._silent_since > self._silent_limit_s:
            log.warning(
                "Redis lives but has not answered for %.0f s: it is killed",
                self._asked - self._silent_since,
            )
            self._silent_since = 0.0
            self._redis.stop(0)

    def _revive(self) -> bool:
        """Start what has died; True if anything had."""
        with self._guard:
            if self._closing.is_set():
                return False
            dead_redis = self._redis is not None and not self._redis.alive
            dead_celery = self._celery is not None and not self._celery.alive
            dead_flower = self._flower is not None and not self._flower.alive
            dead_agent = self._agent is not None and not self._agent.alive and not self.drained
            if dead_redis:
                log.warning("Redis has died and is started again; the ledger fills it")
                self.start_redis()
            if dead_celery:
                log.warning("the worker has died and is started again")
                self.start_celery()
            if dead_flower:
                self.start_flower()
            if dead_agent:
                log.warning(
                    "the agent has died and is started again; what it had begun is sent again"
                )
                self.start_agent()
            return dead_redis or dead_celery or dead_flower or dead_agent

    def _record(self, **changes: object) -> None:
        self._stack = msgspec.structs.replace(self._stack, **changes)
        self._unwritten = True  # on a full disk; the watcher tries again
        write_stack(self._data, self._stack)
        self._unwritten = False


def check_flower() -> None:
    """Raise `UsageError` where Flower is not installed, before anything is started."""
    if find_spec("flower") is None:
        raise UsageError("Flower is not installed; install it with: pip install 'crawler[flower]'")


def stop_stale(data_dir: Path, stack: Stack) -> int:
    """End what a stack has left, known by pid and begin, and nothing of a stranger's or a newer
    stack's."""
    found = [mark.find() for mark in (stack.agent, stack.flower, stack.worker, stack.redis) if mark]
    for process in found:
        end_process(process, WORKER_GRACE_S)
    if not is_locked(data_dir) and not kernel.is_other(
        data_dir
    ):  # else a living supervisor has written it
        (data_dir / "run" / "stack.json").unlink(missing_ok=True)
    return sum(process is not None for process in found)


def end_orphans(data_dir: Path) -> int:
    """End what a stack has left whose supervisor is dead; returns how many processes that were."""
    stack = read_stack(data_dir)
    orphaned = any(
        mark and mark.find() for mark in (stack.agent, stack.flower, stack.worker, stack.redis)
    )
    return stop_stale(data_dir, stack) if orphaned and not is_locked(data_dir) else 0


def other_version(data_dir: Path) -> str:
    """What to say where a stack is up whose record cannot be read."""
    return (
        f"a stack of another version of this program is up in {data_dir}; "
        f"stop it with the version that started it: {program()} down"
    )


@contextlib.contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP unless it was ignored from the start (nohup), end what runs in here
    in order."""

    def stop(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell sends it to its jobs once more
            leave_lost_terminal()
        raise SystemExit(128 + number)

    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


@contextlib.contextmanager
def _uninterrupted(hasten: Callable[[], None]) -> Iterator[None]:
    """Let signals hasten a stop instead of breaking it off: what it has not ended yet would be left
    behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: hasten()) for number in numbers}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _config_folder(settings: Settings) -> dict[str, str]:
    """For processes that may have another working folder."""
    folder = settings.config_dir.absolute()
    return {"CRAWLER_CONFIG_DIR": str(folder)} if folder.is_dir() else {}


def spawn_supervisor(settings: Settings, workers: int | None, flower: bool) -> Stack:
    """Start a supervisor in the background and wait until its stack is ready."""
    data = settings.data_dir.absolute()
    LocalPersistenceManager(data).close_after_check()
    sites.load(settings.config_dir, settings.rate)
    argv = [sys.executable, "-m", "crawler", "supervise"]
    argv += ["--workers", str(workers)] if workers else []
    argv += ["--flower"] if flower else []
    log = data / "logs" / "supervisor.log"
    env = {"CRAWLER_DATA_DIR": str(data)} | _config_folder(settings)
    child = Child("the supervisor", argv, log, os.environ | env)
    mark = child.start()
    end = time.monotonic() + 2 * START_LIMIT_S
    while time.monotonic() < end:
        stack = read_stack(data)
        if stack.ready and stack.up:
            return stack
        if mark.find() is None:
            break
        time.sleep(0.05)
    raise ServiceError(f"the stack did not start: {child.last_words().removeprefix('Error: ')}")


def _ping(url: str) -> None:
    try:
        client = connect(url)
        client.ping()
        check_redis(client)
        client.close()
    except redis.RedisError as error:
        raise ServiceError(
            f"Redis does not answer at the address of REDIS_URL ({error})"
        ) from error


def _answers(url: str) -> bool:
    try:
        client = connect(url)
        answer = bool(client.ping())
        client.close()
    except redis.RedisError:
        return False
    return answer


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _set_aside(folder: Path) -> bool:
    kept = folder / "appendonlydir"
    if not kept.exists():
        return False
    kept.rename(folder / f"appendonlydir.broken-{time.time():.0f}")
    return True
