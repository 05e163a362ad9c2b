"""Fetches pages in processes with hardly any memory: `python -m tests.support.tight URL...`.

Prints a line for each fetch that a page would be charged for or that ended its process, and one for
each URL.
"""

import asyncio
import os
import re
import resource
import sys
from pathlib import Path

import uvloop

from crawler.errors import FetchError, shortage_of
from crawler.fetch.http import Client, Request

SIZES = [
    0,
    250_000,
    500_000,
    1_000_000,
    2_000_000,
    *range(4_000_000, 37_000_000, 3_000_000),
    200_000_000,
    400_000_000,
]
"""How much memory a process gets beside what it has."""
PAGE, SHORT, CHARGED = 0, 1, 2
"""What a fetch comes to, as the end of its process."""


def taken() -> int:
    """The bytes of address space that this process has."""
    found = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


async def fetch(url: str, more: int) -> None:
    """Fetch a page with a client of its own and so much memory."""
    async with Client(20_000_000) as client:
        resource.setrlimit(resource.RLIMIT_AS, (taken() + more, resource.RLIM_INFINITY))
        try:
            await client.fetch(
                Request(url=url, loopback=True, timeout_s=600, connect_timeout_s=600)
            )
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def outcome(url: str, more: int) -> int:
    """What becomes of a fetch."""
    try:
        asyncio.run(fetch(url, more))
    except Exception as error:
        if shortage_of(error):
            return SHORT
        told = f"{error.reason}: {error}" if isinstance(error, FetchError) else repr(error)
        print(f"{url} with {more:,} bytes is charged: {told}", flush=True)
        return CHARGED
    return PAGE


def main(urls: list[str]) -> None:
    """Fetch each URL with every size, in a process for each."""
    uvloop.install()
    for url in urls:
        ends = []
        for more in SIZES:
            child = os.fork()
            if not child:
                os._exit(outcome(url, more))
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            if ends[-1] < 0:
                print(
                    f"{url} with {more:,} bytes ended its process by signal {-ends[-1]}", flush=True
                )
        print(f"{url}: {ends.count(PAGE)} pages, {ends.count(SHORT)} times short", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
