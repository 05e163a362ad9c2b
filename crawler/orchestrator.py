"""Starts and stops Redis and workers in order, and restarts what dies."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from crawler import locks, sites
from crawler.config import Settings, load, program
from crawler.db import guard, owners
from crawler.errors import CrawlerError, ServiceError, StackIsUp, UsageError
from crawler.logs import leave_lost_terminal
from crawler.lpm import LocalPersistenceManager
from crawler.models import BROWSER
from crawler.process import Child, ProcessMark, end_process, in_short
from crawler.redis_server import (
    START_LIMIT_S,
    RedisServer,
    answers,
    check_given,
    free_port,
    is_free,
)
from crawler.resilience.redis_rate_limiter import RedisRateLimiter
from crawler.sites.schedulefile import read_schedules
from crawler.stack import (
    SILENT_FACTOR,
    Autoscale,
    Stack,
    is_beat_running,
    is_locked,
    lock_path,
    read_stack,
    record_path,
    redis_address,
    write_stack,
)

if TYPE_CHECKING:
    from crawler.scaling import Scaler
    from crawler.site_scraping import SiteScraping

log = logging.getLogger(__name__)

WORKER_GRACE_S, REDIS_GRACE_S, AGENT_GRACE_S = 6.0, 1.5, 2.0
"""In sum below ten seconds, the limit of a stop."""
FLOWER_GRACE_S = BEAT_GRACE_S = API_GRACE_S = BROWSERS_GRACE_S = 1.0
LOCK_LIMIT_S = 0.5
"""Commands that check whether a stack is up hold its lock for a moment."""
WATCH_INTERVAL_S, MAX_WATCH_INTERVAL_S = 0.5, 5.0
"""How often to look for dead processes; the interval doubles while restarts are needed."""
FLOWER_PORT, API_PORT = 5555, 8000


class Orchestrator:
    """A context manager that stops what it has started, Celery before Redis."""

    def __init__(
        self,
        settings: Settings | None = None,
        workers: int | None = None,
        flower: bool = False,
        agent: Sequence[str] = (),
        beat: bool | None = None,
        join: bool = True,
        api: bool = False,
        browsers: int = 0,
        autoscale: tuple[int, int] | None = None,
    ) -> None:
        """Settings come from the environment unless given.

        If a stack is up already, it is used and left alone; without `join` that is an error.

        `agent` holds the arguments of the agent for a Gateway; without any it is not started.
        `beat` says whether to run the schedules of `config/schedules.yaml`; None means, if there
        are any. `api` says whether to serve the API on loopback. `browsers` is the number of
        processes that render pages. `autoscale` holds the minimum and the maximum of worker
        processes; without it, `workers` is their number.
        """
        self._settings = settings = settings or load()
        self._data = settings.data_dir.absolute()
        self._workers = workers or os.cpu_count() or 1
        self._flower_wanted = flower
        self._agent_arguments = list(agent)
        self._redis = RedisServer(self._data, SILENT_FACTOR * settings.stall_s, time.monotonic)
        self._celery: Child | None = None
        self._browsers_wanted = browsers
        self._browsers: Child | None = None
        self._flower: Child | None = None
        self._agent: Child | None = None
        self._beat_wanted = beat
        self._beat: Child | None = None
        self._api_wanted = api
        self._api: Child | None = None
        self._autoscale = autoscale
        self._scaler: Scaler | None = None
        self._record = _Record(self._data)
        self._guard = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._lock = -1
        self._may_join, self._joined = join, False
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Self:
        LocalPersistenceManager(self._data).close_after_check()
        try:
            self._take_lock()
        except StackIsUp:
            if not self._may_join or read_stack(self._data).unreadable:
                raise
            self._joined = True
            return self
        stop_stale(self._data, read_stack(self._data))
        shutil.rmtree(self._tmp, ignore_errors=True)
        self._tmp.mkdir(mode=0o700, exist_ok=True)
        self._record.note(supervisor=ProcessMark.of(os.getpid()))
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # Otherwise a program without signal handlers would leave its stack running.
            self._signals.enter_context(terminated_by_signal())
        return self

    @property
    def _tmp(self) -> Path:
        """The folder for temporary files. The next start empties it, after killed processes."""
        return self._data / "run" / "tmp"

    def _take_lock(self) -> None:
        self._lock = locks.open_lock(lock_path(self._data))
        end = time.monotonic() + LOCK_LIMIT_S
        while not locks.try_lock(self._lock):
            if time.monotonic() > end:
                os.close(self._lock)
                self._lock = -1
                if read_stack(self._data).unreadable:
                    raise StackIsUp(other_version(self._data))
                raise StackIsUp(
                    f"a stack is up already in {self._data}; stop it, whether `up` or `ondemand` "
                    f"has started it, with: {program()} down"
                )
            time.sleep(0.02)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._signals, _uninterrupted(self.kill_all):
            self.stop_all()

    def start_redis(self) -> bool:
        """Make sure that Redis answers: that of REDIS_URL, or our own.

        Returns True; raises `ServiceError`.
        """
        with self._guard:
            if self._uses_other():
                _wait_until(lambda: answers(redis_address(self._settings)), "its Redis answers")
                return True
            given = self._settings.redis_url
            if given:
                check_given(given)
                self._record.note(redis_url=given)
            elif not self._redis.is_up():
                self._redis.start(
                    self._record.stack.redis_url,
                    lambda mark, url: self._record.note(redis=mark, redis_url=url),
                    self._closing.is_set,
                )
            return True

    def start_celery(self) -> bool:
        """Make sure that workers are ready, and that beat is if it is wanted.

        Returns True; raises `ServiceError`, and `InputError` for a broken schedules.yaml.
        """
        with self._guard:
            if self._beat_wanted is None:
                self._beat_wanted = has_schedules(self._settings)
            if self._uses_other():
                _wait_until(lambda: bool(owners.workers(self._owners)), "its workers are ready")
                if self._beat_wanted and not is_beat_running(self._data):
                    log.warning("the stack that is up has no beat: schedules do not run")
                return True
            self._start_worker()
            if self._browsers_wanted:
                self._start_browsers()
            if self._beat_wanted:
                beat = self._start_beat()
                beat.wait_until(
                    lambda: is_beat_running(self._data), START_LIMIT_S, self._closing.is_set
                )
            if not self._watcher.is_alive():
                self._watcher.start()
            return True

    def _uses_other(self) -> bool:
        """Whether the stack of another process is used.

        Outside of a `with` block nobody would stop what is started, so that is refused.
        """
        if self._lock < 0 and not self._joined:
            if not read_stack(self._data).up:
                raise UsageError(
                    "use it in a with block, which stops what it starts: "
                    "with Orchestrator() as orch: ..."
                )
            self._joined = True
        return self._joined

    def _start_worker(self) -> None:
        """Make sure that workers are ready."""
        if self._celery and self._celery.alive:
            return
        if self._autoscale and not self._record.stack.autoscale:
            self._note_processes(self._autoscale[0], "it begins with the minimum")
        module = _worker_module("urgent,default", self._workers)
        self._celery = self._child("the worker", "worker.log", module)
        mark = self._celery.start()
        self._record.note(worker=mark)
        self._wait_until_ready(self._celery, mark)

    def _start_browsers(self) -> None:
        """Make sure that the worker is ready whose processes render pages."""
        if self._browsers and self._browsers.alive:
            return
        module = _worker_module(BROWSER, self._browsers_wanted)
        self._browsers = self._child("the browser worker", "browsers.log", module)
        mark = self._browsers.start()
        self._record.note(browsers=mark)
        self._wait_until_ready(self._browsers, mark)

    def _wait_until_ready(self, worker: Child, mark: ProcessMark) -> None:
        worker.wait_until(
            lambda: mark.pid in owners.workers(self._owners),
            START_LIMIT_S,
            self._closing.is_set,
        )

    def _start_beat(self) -> Child:
        """Start beat, without waiting: a restart that fails must not keep others from theirs."""
        if self._beat and self._beat.alive:
            return self._beat
        self._beat = self._child("beat", "beat.log", ["celery", "-A", "crawler", "beat"])
        self._record.note(beat=self._beat.start())
        return self._beat

    def start_agent(self) -> None:
        """Start the agent, without waiting: the Gateway may be away."""
        with self._guard:
            module = ["crawler", "agent", *self._agent_arguments]
            self._agent = self._child("the agent", "agent.log", module)
            self._record.note(agent=self._agent.start())

    def start_flower(self) -> str:
        """Start Flower on loopback; return its URL."""
        with self._guard:
            if self._uses_other():
                return read_stack(self._data).flower_url or ""
            if self._flower and self._flower.alive:
                return self._record.stack.flower_url or ""
            check_flower()
            port = FLOWER_PORT
            if not is_free(port):
                port = free_port()
            module = ["celery", "-A", "crawler", "flower", "--address=127.0.0.1", f"--port={port}"]
            self._flower = self._child("Flower", "flower.log", module)
            mark = self._flower.start()
            self._flower.wait_until(lambda: not is_free(port), START_LIMIT_S, self._closing.is_set)
            url = f"http://127.0.0.1:{port}"
            self._record.note(flower=mark, flower_url=url)
            return url

    def start_api(self) -> str:
        """Serve the API on loopback; return its URL, which a restart keeps."""
        with self._guard:
            if self._uses_other():
                return read_stack(self._data).api_url or ""
            if self._api and self._api.alive:
                return self._record.stack.api_url or ""
            port = int((self._record.stack.api_url or f":{API_PORT}").rpartition(":")[2])
            if not is_free(port):
                port = free_port()
            module = ["crawler", "serve", "--host", "127.0.0.1", "--port", str(port)]
            self._api = self._child("the API", "api.log", module)
            url = f"http://127.0.0.1:{port}"
            self._record.note(api=self._api.start(), api_url=url)
            self._api.wait_until(lambda: not is_free(port), START_LIMIT_S, self._closing.is_set)
            return url

    # Sites by name

    def start_site_scraping(self, site_name: str, start_urls: Sequence[str] = ()) -> dict[str, Any]:
        """Begin the crawl of a site; returns `task_id` and `site`."""
        return self._site_scraping.start(site_name, start_urls)

    def scrape_all_sites_parallel(
        self, sites_config: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """Begin the crawls of several sites at once; returns `group_id`."""
        return self._site_scraping.start_all(sites_config)

    def get_site_progress(self, job_id: str) -> dict[str, Any]:
        """Return how far a job is: `total`, `completed` and `status`."""
        return self._site_scraping.progress(job_id)

    def wait_for_all_sites_completion(
        self, group_id: str, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Wait until the crawls of a group, a task or a job have ended; return how far each is.

        It never waits for ever: see `SiteScraping.wait`.
        """
        return self._site_scraping.wait(group_id, timeout_s)

    @property
    def _site_scraping(self) -> "SiteScraping":
        from crawler.site_scraping import SiteScraping

        return SiteScraping(msgspec.structs.replace(self._settings, data_dir=self._data))

    def _child(self, name: str, log_name: str, module: Sequence[str]) -> Child:
        """Return a process that runs a Python module with the settings of this stack."""
        environment = os.environ | _config_folder(self._settings)
        environment |= {
            "CRAWLER_DATA_DIR": str(self._data),
            "REDIS_URL": self._settings.redis_url or "",
            "CRAWLER_PAGES": str(self._settings.pages),
            "TMPDIR": str(self._tmp),
        }
        log_file = self._data / "logs" / log_name
        return Child(name, [sys.executable, "-m", *module], log_file, environment)

    @property
    def drained(self) -> bool:
        """Whether the Gateway said `drain`, and has everything."""
        return self._agent is not None and self._agent.succeeded

    @property
    def _owners(self) -> Path:
        return self._data / "run" / "owners"

    def start_all(self) -> None:
        """Start everything in order, and restart what dies."""
        self.start_redis()
        if self._joined:
            self.start_celery()
            return
        if not self._settings.redis_url and not owners.living(self._owners):
            self._permit_at_once()
        self.start_celery()
        if self._flower_wanted:
            self.start_flower()
        if self._api_wanted:
            self.start_api()
        if self._agent_arguments:
            self.start_agent()
        self._record.note(ready=True)

    def _permit_at_once(self) -> None:
        """Tell our own Redis that no request is in flight, before anyone uses it."""
        settings = self._settings
        permit = RedisRateLimiter(
            self._redis.url,
            settings.redis_rate_limiter_db,
            "supervisor",
            settings.circuit_breaker_fail_max,
        )
        with contextlib.closing(permit):
            permit.nothing_booked()

    def stop_all(self) -> None:
        """Stop everything, Celery before Redis, so that no message is lost on its way."""
        self._closing.set()
        with self._guard:
            if self._agent:
                self._agent.ask_to_end()  # it takes no more tasks, and delivers what workers finish
            if self._beat:
                self._beat.ask_to_end()  # it has ended when the worker has
            if self._api:
                self._api.ask_to_end()  # it accepts no more batches
            if self._browsers:
                self._browsers.ask_to_end()  # it stops together with the other worker
            order = (
                (self._flower, FLOWER_GRACE_S),
                (self._celery, WORKER_GRACE_S),
                (self._browsers, BROWSERS_GRACE_S),
                (self._beat, BEAT_GRACE_S),
                (self._api, API_GRACE_S),
                (self._agent, AGENT_GRACE_S),
                (self._redis.child, REDIS_GRACE_S),
            )
            for child, grace_s in order:
                if child:
                    child.stop(grace_s)
            if self._lock >= 0:
                self._free_leases()
                record_path(self._data).unlink(missing_ok=True)
                os.close(self._lock)
                self._lock = -1

    def _free_leases(self) -> None:
        """Free the leases of killed processes; otherwise their tasks look busy until the next
        start."""
        lpm = LocalPersistenceManager(self._data)
        with contextlib.suppress(CrawlerError), lpm:
            lpm.bury()

    def kill_all(self) -> None:
        """Kill everything. Leases end with their processes."""
        self._closing.set()
        others = (self._agent, self._beat, self._api, self._flower)
        for child in (*others, self._browsers, self._celery, self._redis.child):
            if child:
                child.stop(0)

    def _watch(self) -> None:
        pause_s = WATCH_INTERVAL_S
        while not self._closing.wait(pause_s):
            if os.fstat(self._lock).st_nlink == 0:
                log.critical("%s was removed: the stack in it ends", self._data)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            trouble, calm = "", False
            try:
                self._redis.end_if_silent()
                calm = not self._revive()
            except Exception as error:  # the watcher must not die
                reason = in_short(error, self._data) or type(error).__name__
                trouble = f"a restart failed and is tried again: {reason}"
                log.error(trouble)  # noqa: TRY400 – the message says it all
            pause_s = min(pause_s * 2, MAX_WATCH_INTERVAL_S)
            if calm:
                pause_s = WATCH_INTERVAL_S
                trouble = self._scale()
            if not self._closing.is_set():
                self._record.note_trouble(trouble)
        if self._scaler:
            self._scaler.close()

    def _scale(self) -> str:
        """Follow the load, if wanted; return what keeps it from that."""
        if not self._autoscale:
            return ""
        try:
            if self._scaler is None:
                from crawler.scaling import Scaler  # most stacks need none

                settings = msgspec.structs.replace(self._settings, data_dir=self._data)
                self._scaler = Scaler(settings, self._autoscale)
            found = self._scaler.look()
        except Exception as error:  # the watcher must not die
            reason = in_short(error, self._data) or type(error).__name__
            return f"the number of worker processes stays at {self._workers}: {reason}"
        if found:
            with self._guard:
                before = self._workers
                self._note_processes(found.processes, found.why)
            log.info("%d worker processes instead of %d: %s", self._workers, before, found.why)
        return ""

    def _note_processes(self, processes: int, why: str) -> None:
        """Record how many worker processes there are to be. The worker follows the record."""
        assert self._autoscale is not None
        self._workers = processes
        noted = Autoscale(*self._autoscale, processes, why, time.time())
        self._record.note(autoscale=noted)

    def _revive(self) -> bool:
        """Start what has died; return whether anything had."""
        with self._guard:
            if self._closing.is_set():
                return False
            dead_redis = self._redis.is_dead
            dead_celery, dead_flower = _is_dead(self._celery), _is_dead(self._flower)
            dead_agent = _is_dead(self._agent) and not self.drained
            dead_beat, dead_api = _is_dead(self._beat), _is_dead(self._api)
            dead_browsers = _is_dead(self._browsers)
            if dead_redis:
                log.warning("Redis has died and is started again; the ledger fills it")
                self.start_redis()
            if dead_celery:
                log.warning("the worker has died and is started again")
                self._start_worker()
            if dead_browsers:
                log.warning("the browser worker has died and is started again")
                self._start_browsers()
            if dead_beat:
                log.warning("beat has died and is started again; a period that it missed runs then")
                self._start_beat()
            if dead_flower:
                self.start_flower()
            if dead_agent:
                log.warning(
                    "the agent has died and is started again; what it had begun is sent again"
                )
                self.start_agent()
            if dead_api:
                log.warning("the API has died and is started again; it continues what it accepted")
                self.start_api()
            dead = (dead_redis, dead_celery, dead_browsers, dead_beat)
            return any((*dead, dead_flower, dead_api, dead_agent))


class _Record:
    """The record of the stack, in memory and in its file."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._is_written = True
        self.stack = Stack()

    def note(self, **changes: object) -> None:
        """Change some fields, and write the file."""
        self.stack = msgspec.structs.replace(self.stack, **changes)
        self._is_written = False
        write_stack(self._data_dir, self.stack)
        self._is_written = True

    def note_trouble(self, trouble: str) -> None:
        """Record a new trouble; also retry a write that failed on a full disk."""
        if trouble != self.stack.trouble or not self._is_written:
            with contextlib.suppress(OSError):  # a full disk must not end the watch
                self.note(trouble=trouble)


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a part of a stack that another process is starting."""
    end = time.monotonic() + START_LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise ServiceError(
                f"a stack is up, but it took more than {START_LIMIT_S:.0f} s "
                f"until {what}; see: {program()} status"
            )
        time.sleep(0.1)


def _worker_module(queues: str, processes: int) -> list[str]:
    """Return the command of a worker on some queues of messages."""
    arguments = f"worker -Q {queues} -c {processes} --without-mingle --without-gossip".split()
    return ["celery", "-A", "crawler", *arguments, "-n", f"crawler-{secrets.token_hex(3)}@%h"]


def _is_dead(child: Child | None) -> bool:
    return child is not None and not child.alive


def check_flower() -> None:
    """Raise `UsageError` if Flower is not installed, before anything is started."""
    if find_spec("flower") is None:
        raise UsageError(
            "Flower is not installed; install it with: "
            "pip install '.[flower]' in the project's folder"
        )


def stop_stale(data_dir: Path, stack: Stack) -> int:
    """End the processes that a dead stack has left; return their number."""
    found = [process for mark in stack.services if (process := mark.find())]
    for process in found:
        end_process(process, WORKER_GRACE_S)
    # A living supervisor keeps its record.
    if not is_locked(data_dir) and not guard.is_on_other_kernel(data_dir):
        record_path(data_dir).unlink(missing_ok=True)
    return len(found)


def end_orphans(data_dir: Path) -> int:
    """End the processes of a stack whose supervisor is dead; return their number."""
    stack = read_stack(data_dir)
    if is_locked(data_dir) or not any(mark.find() for mark in stack.services):
        return 0
    return stop_stale(data_dir, stack)


def other_version(data_dir: Path) -> str:
    """Return the message for a stack that is up but has an unreadable record."""
    return (
        f"a stack of another version of this program is up in {data_dir}; "
        f"stop it with the version that started it: {program()} down"
    )


@contextlib.contextmanager
def terminated_by_signal() -> Iterator[None]:
    """End the block in order on SIGTERM, and on SIGHUP unless it is ignored (nohup)."""

    def stop(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell sends it to its jobs once more
            leave_lost_terminal()
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


@contextlib.contextmanager
def _uninterrupted(hasten: Callable[[], None]) -> Iterator[None]:
    """Let signals speed up a stop instead of interrupting it, which would leave processes."""
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
    """Return the absolute config folder, for processes with another working folder."""
    folder = settings.config_dir.absolute()
    if not folder.is_dir():
        return {}
    return {"CRAWLER_CONFIG_DIR": str(folder)}


def has_schedules(settings: Settings) -> bool:
    """Whether `config/schedules.yaml` has entries; raises `InputError` for a broken one."""
    known = sites.load(settings.config_dir, settings.rate)
    return bool(read_schedules(settings.config_dir, known))


def spawn_supervisor(
    settings: Settings,
    workers: int | None,
    flower: bool,
    beat: bool,
    api: bool = False,
    browsers: int = 0,
    autoscale: tuple[int, int] | None = None,
) -> Stack:
    """Start a supervisor in the background, and wait until its stack is ready."""
    data = settings.data_dir.absolute()
    LocalPersistenceManager(data).close_after_check()
    sites.load(settings.config_dir, settings.rate)
    if beat:
        has_schedules(settings)  # raises an error for a broken file before anything starts
    argv = [sys.executable, "-m", "crawler", "supervise"]
    if workers:
        argv += ["--workers", str(workers)]
    if autoscale:
        argv += ["--autoscale", "{},{}".format(*autoscale)]
    if flower:
        argv.append("--flower")
    if beat:
        argv.append("--beat")
    if api:
        argv.append("--api")
    if browsers:
        argv += ["--browsers", str(browsers)]
    environment = os.environ | {"CRAWLER_DATA_DIR": str(data)} | _config_folder(settings)
    child = Child("the supervisor", argv, data / "logs" / "supervisor.log", environment)
    mark = child.start()
    services = 2 + beat + api + bool(browsers)
    end = time.monotonic() + services * START_LIMIT_S
    while time.monotonic() < end:
        stack = read_stack(data)
        if stack.ready and stack.up:
            return stack
        if mark.find() is None:
            break
        time.sleep(0.05)
    raise ServiceError(f"the stack did not start: {child.last_words().removeprefix('Error: ')}")
