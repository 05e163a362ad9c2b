"""How much of a rate many hungry processes get through the permit, beside a limiter that tests and
sleeps.

Example: python benchmarks/permit.py --rate 20 --processes 10 --seconds 10
"""

import argparse
import itertools
import json
import multiprocessing
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from crawler.models import RateRule
from crawler.process import Child
from crawler.redis_server import redis_program
from crawler.resilience.permit import HEADROOM, LATE_S, PermitRequest, RequestReport
from crawler.resilience.redis_rate_limiter import RedisRateLimiter

WARM_UP_S = 1.0
"""Before counting begins."""


def book(url: str, rule: RateRule, until: float, wish: int) -> tuple[int, list[float]]:
    """Ask, wait for the start, report: as a worker does. Gives the calls and when each request
    went."""
    permit, calls, sent = RedisRateLimiter(url, 2, secrets.token_hex(4), 5), 0, list[float]()
    while (now := time.monotonic()) < until:
        calls += 1
        answer = permit.ask([PermitRequest(domain="x.example", rule=rule, wish=wish)])[0]
        begun = time.monotonic()
        for start in answer.starts_s:
            time.sleep(max(0.0, begun + start - time.monotonic()))
            if time.monotonic() <= begun + start + LATE_S:
                sent.append(time.monotonic())
        if answer.starts_s:
            permit.report(
                [
                    RequestReport(
                        domain="x.example", rule=rule, slots=len(answer.starts_s), good=True
                    )
                ]
            )
        time.sleep(min(max(0.0, begun + answer.wait_s - time.monotonic()), max(0.0, until - now)))
    permit.close()
    return calls, sent


def sleep_and_try(url: str, rule: RateRule, until: float, _: int) -> tuple[int, list[float]]:
    """Ask whether one may go now; if not, sleep for an interval and ask again."""
    permit, calls, sent = RedisRateLimiter(url, 2, secrets.token_hex(4), 5), 0, list[float]()
    while time.monotonic() < until:
        calls += 1
        if permit.can_request("x.example", rule):
            sent.append(time.monotonic())
        else:
            time.sleep(rule.interval_s)
    permit.close()
    return calls, sent


def _child(
    way: str, url: str, rule: RateRule, begin: float, seconds: float, wish: int
) -> tuple[int, list[float]]:
    time.sleep(max(0.0, begin - WARM_UP_S - time.monotonic()))
    run = {"book": book, "test and sleep": sleep_and_try}[way]
    return run(url, rule, begin + seconds, wish)


def most_in_a_second(times: list[float]) -> int:
    """The most requests in any window of one second."""
    most, window = 0, list[float]()
    for at in times:
        window = [each for each in window if each > at - 1] + [at]
        most = max(most, len(window))
    return most


def measure(
    way: str, url: str, rate: float, processes: int, seconds: float, wish: int
) -> dict[str, float | str]:
    """Let the processes run and count."""
    client = redis.Redis.from_url(url, db=2)
    client.flushdb()
    client.set("permit-epoch", "0")
    begin = time.monotonic() + WARM_UP_S + 1 + processes * 0.2
    job = (way, url, RateRule(interval_s=1 / rate), begin, seconds, wish)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        done = pool.starmap(_child, [job] * processes, chunksize=1)
    sent = sorted(itertools.chain.from_iterable(times for _, times in done))
    calls = sum(count for count, _ in done)
    within = sum(begin <= at < begin + seconds for at in sent)
    return {
        "way": way,
        "wish": wish,
        "requests per second": round(within / seconds, 2),
        "share of what is given out": round(within / seconds / (rate * HEADROOM), 3),
        "calls per grant": round(calls / max(1, len(sent)), 2),
        "most in any second": most_in_a_second(sent),
    }


def own_redis(folder: Path) -> Iterator[str]:
    """A Redis of our own, gone at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [
        redis_program(),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--save",
        "",
    ]
    child = Child("Redis", argv, folder / "redis.log")
    child.start()

    def answers() -> bool:
        try:
            return bool(redis.Redis(port=port).ping())
        except redis.RedisError:
            return False

    child.wait_until(answers, 30)
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        child.stop(1)


def main() -> None:
    """Print one line of figures for each way."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rate", type=float, default=20.0, help="requests per second")
    options.add_argument("--processes", type=int, default=10)
    options.add_argument("--seconds", type=float, default=10.0)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp())
    about = (
        f"{given.processes} processes, {given.rate:g}/s, {given.seconds:g} s, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print(about, file=sys.stderr)
    try:
        for url in own_redis(folder):
            for way, wish in (("book", 1), ("book", 8), ("test and sleep", 1)):
                print(
                    json.dumps(measure(way, url, given.rate, given.processes, given.seconds, wish)),
                    flush=True,
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
