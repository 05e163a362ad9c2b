"""A process that always wants to send to one domain: `python -m tests.support.hungry URL PER_SECOND
FILE`.

It appends the moment of each request to the file, in seconds of the machine's monotonic clock,
until it is ended.
"""

import os
import secrets
import sys
import time

from crawler.models import RateRule
from crawler.resilience.permit import LATE_S, PermitRequest, RequestReport
from crawler.resilience.redis_rate_limiter import RedisRateLimiter


def main(url: str, per_second: float, path: str) -> None:
    """Ask, wait for the start, note it as sent, report; for ever."""
    rule = RateRule(interval_s=1 / per_second)
    permit = RedisRateLimiter(url, 2, secrets.token_hex(4), 5)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        answer = permit.ask([PermitRequest(domain="x.example", rule=rule, wish=4)])[0]
        asked = time.monotonic()
        for start in answer.starts_s:
            time.sleep(max(0.0, asked + start - time.monotonic()))
            now = time.monotonic()
            if now <= asked + start + LATE_S:  # a worker that comes late asks again
                os.write(file, f"{now:.6f}\n".encode())
            permit.report([RequestReport(domain="x.example", rule=rule, good=True)])
        time.sleep(max(0.0, asked + answer.wait_s - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
