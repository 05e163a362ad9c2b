"""The rate of a domain holds when workers are killed in the middle of a permit and Redis is
emptied."""

import os
import signal
from pathlib import Path

import redis

from crawler.redis_client import RedisAddress
from tests.support.stack import Folder, wait_for

PER_SECOND = 20


def test_no_second_holds_more_than_the_rate_whatever_dies(folder: Folder, redis_url: str) -> None:
    """Ten processes at 20 a second; two are killed while they hold bookings, then Redis is emptied,
    script and all: no window of a second, before, between or after, has more than 20 requests."""
    client = redis.Redis.from_url(RedisAddress.parse(redis_url).for_redis(2))
    client.flushall()
    log = folder.path / "sent"
    log.touch()
    argv = ("tests.support.hungry", redis_url, str(PER_SECOND), str(log))
    here = str(Path(__file__).parents[2])
    processes = [folder.start(*argv, PYTHONPATH=here) for _ in range(10)]

    def sent(count: int) -> None:
        wait_for(lambda: len(_times(log)) >= count, 120, f"{count} requests")

    sent(60)
    for process in processes[:2]:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
    sent(120)
    client.flushall()
    sent(180)
    client.script_flush()
    client.flushall()
    sent(240)
    for process in processes[2:]:
        assert process.poll() is None, folder.log(process)
        process.kill()

    times = sorted(_times(log))
    windows = [sum(begin <= at < begin + 1 for at in times) for begin in times]
    assert max(windows) <= PER_SECOND


def _times(log: Path) -> list[float]:
    return [float(line) for line in log.read_text().splitlines()]
