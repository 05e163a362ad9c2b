"""The limit: an aiohttp loop with uvloop and selectolax that writes one line of JSON a page, and keeps nothing else.

`processes` loops share the addresses; each has `pages` in flight.
"""

import asyncio
import json
import multiprocessing
from pathlib import Path

import aiohttp
import uvloop
from selectolax.lexbor import LexborHTMLParser

from benchmarks.contestants import done, order, ready
from benchmarks.site import FIELDS


async def crawl(urls: list[str], file: Path, pages: int, cafile: str | None) -> int:
    """Fetch, parse, write."""
    import ssl

    stored, left = 0, iter(urls)
    context = ssl.create_default_context(cafile=cafile) if cafile else True
    connector = aiohttp.TCPConnector(limit=pages, ssl=context)
    with file.open("wb") as out:
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one() -> None:
                nonlocal stored
                for url in left:
                    async with session.get(url, raise_for_status=True) as response:
                        tree = LexborHTMLParser(await response.read())
                    record = {name: node.text() if (node := tree.css_first(css)) else None for name, css in FIELDS.items()}
                    out.write(json.dumps({"url": url, **record}).encode() + b"\n")
                    stored += 1

            await asyncio.gather(*(one() for _ in range(pages)))
    return stored


def child(urls: list[str], file: Path, pages: int, cafile: str | None, go, results) -> None:  # type: ignore[no-untyped-def]
    """One process's share."""
    go.wait()
    results.put(uvloop.run(crawl(urls, file, pages, cafile)))


def main() -> None:
    """Run."""
    given = order()
    count, pages = given.options["processes"], given.options["pages"]
    go, results = multiprocessing.Event(), multiprocessing.Queue()
    children = [
        multiprocessing.Process(
            target=child,
            args=(given.urls[n::count], given.folder / f"{n}.jsonl", pages, given.options.get("cafile"), go, results),
        )
        for n in range(count)
    ]
    for process in children:
        process.start()
    ready()
    go.set()
    stored = sum(results.get() for _ in children)
    done(stored)
    for process in children:
        process.join()


if __name__ == "__main__":
    main()
