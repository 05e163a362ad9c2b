"""The limit: an aiohttp loop with uvloop and selectolax that writes one line of JSON a page, and
keeps nothing else.

`pages` are in flight; `processes` loops share the addresses.
"""

import asyncio
import json
import os
import ssl

import aiohttp
import uvloop

from benchmarks.contestants import Done, Order, Ready, divide
from benchmarks.contestants.fields import fields


async def collect(given: Order) -> int:
    """Fetch, parse, write."""
    stored, left, pages = 0, iter(given.urls), given.options["pages"]
    context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
    connector = aiohttp.TCPConnector(limit=pages, ssl=context)
    with (given.folder / "pages.jsonl").open("wb") as out:
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one() -> None:
                nonlocal stored
                for url in left:
                    async with session.get(url, raise_for_status=True) as response:
                        record = fields(await response.read())
                    out.write(json.dumps({"url": url, **record}).encode() + b"\n")
                    stored += 1

            await asyncio.gather(*(one() for _ in range(pages)))
    return stored


def crawl(given: Order, ready: Ready, done: Done) -> None:
    """Run."""
    ready()
    done(uvloop.run(collect(given)))


if __name__ == "__main__":
    divide(crawl)
