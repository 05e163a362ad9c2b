"""The embedded site on loopback: a register of 300 parcels for `demo`, and pages for `drill`.

Some parcels are slow, broken or gone. A drill asks for `/drill/<milliseconds>/<fault>/<number>`:
it answers after that time, and its first request gets the fault (`ok` for none). The site counts
every request.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from random import Random
from typing import NamedTuple

COUNT = 300
BROKEN, GONE, DROPPED = frozenset({57, 141, 238}), frozenset({84, 208}), frozenset({170})
PLAN, PHOTO, CYRILLIC = 122, 263, 29
FAULTS = ("500", "cut")
"""Faults of a drill's page: answer 500, or break off in the middle of the body."""
SLOW, FLAKY = 7, 13
"""Remainders of a parcel's number by 20: one in twenty is slow, one in twenty fails once."""

FAILING = BROKEN | GONE | DROPPED
EXPECTED = {"completed": COUNT - len(FAILING), "failed": len(FAILING)}
"""The outcome of a crawl of all parcels with three attempts; plan and photo are completed."""

PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mNwaEgAAAIkASH7rFokAAAAAElFTkSuQmCC"
)
PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>> endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>> endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 240]/Contents 4 0 R>> endobj
4 0 obj<</Length 43>>stream
3 w 60 60 180 120 re S 60 140 m 240 140 l S
endstream endobj
xref\n0 5\n0000000000 65535 f \n0000000009 00000 n \n0000000053 00000 n \n\
0000000103 00000 n \n0000000182 00000 n \n\
trailer<</Size 5/Root 1 0 R>>\nstartxref\n271\n%%EOF
"""

_COUNTIES = ("Alder", "Bittern", "Cedar Fork", "Dunmore", "Elk Prairie", "Fairwater")
_FIRST = (
    "Ada", "Bruno", "Carmen", "Dmitri", "Elena", "Femi",
    "Grace", "Hugo", "Ines", "Jonas", "Keiko", "Liam",
)  # fmt: skip
_LAST = (
    "Abbott", "Brandt", "Castillo", "Dimitrova", "Eriksen",
    "Fontaine", "Greer", "Holloway", "Ito", "Jansen",
)  # fmt: skip
_STREETS = (
    "Orchard Lane",
    "Mill Road",
    "Quarry Street",
    "Depot Avenue",
    "Larkspur Court",
    "County Road 12",
)
_FEATURES = (
    "a detached garage",
    "a drilled well",
    "a pole barn",
    "mature oaks",
    "a creek along its south line",
)
_CLOSE = b"\r\nConnection: close\r\n\r\n"
_STYLE = (
    "body{font:16px sans-serif;margin:2rem auto;max-width:50rem} "
    "td,th{padding:.2rem 1rem .2rem 0;text-align:left}"
)


class Parcel(NamedTuple):
    """One entry of the register."""

    parcel_id: str
    county: str
    owner: str
    address: str
    value: int
    acres: float
    year_built: int
    sales: list[tuple[int, int, str]]
    description: str


def parcel(n: int) -> Parcel:
    """Return the n-th parcel, the same in every run."""
    chance = Random(n)
    county = _COUNTIES[n % len(_COUNTIES)]
    if n == CYRILLIC:
        owner = "Елена Димитрова от Самоков"
    else:
        owner = f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"
    address = f"{chance.randint(10, 4900)} {chance.choice(_STREETS)}, {county} Township"
    value = chance.randint(600, 9000) * 100
    acres = chance.randint(12, 900) / 100
    built = chance.randint(1904, 2021)
    years = sorted(chance.sample(range(built, 2025), 3), reverse=True)
    sales = [(year, int(value * 0.97 ** (2025 - year)), chance.choice(_LAST)) for year in years]
    description = (
        f"A parcel of {acres} acres in {county} County with a dwelling from {built} "
        f"and {chance.choice(_FEATURES)}. "
        f"It was last inspected in {chance.randint(2015, 2024)}; "
        f"its boundary is in plat book {chance.randint(1, 60)}."
    )
    parcel_id = f"{1 + n % len(_COUNTIES):02d}-{1000 + n}"
    return Parcel(parcel_id, county, owner, address, value, acres, built, sales, description)


NUMBERS = {parcel(n).parcel_id: n for n in range(1, COUNT + 1)}


def urls(base: str) -> list[dict[str, str]]:
    """Return the rows of the import file of `demo`."""
    return [
        {
            "url": f"{base}/parcel/{key}",
            "parcel_id": key,
            "priority": str(3 + n % 5),
            "county": parcel(n).county,
        }
        for key, n in NUMBERS.items()
    ]


def _document(title: str, content: str) -> str:
    head = f"<head><title>{title}</title><style>{_STYLE}</style></head>"
    body = f"<body>\n<h1>{title}</h1>\n{content}\n</body>"
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _rows(*rows: tuple[object, ...]) -> str:
    return "\n".join(
        f"<tr><th>{first}</th><td>{'</td><td>'.join(map(str, rest))}</td></tr>"
        for first, *rest in rows
    )


def _page(n: int) -> str:
    it = parcel(n)
    address = {
        "@type": "PostalAddress",
        "streetAddress": it.address,
        "addressRegion": "KS",
        "addressCountry": "US",
    }
    house = {
        "@type": "House",
        "identifier": it.parcel_id,
        "address": address,
        "yearBuilt": it.year_built,
    }
    facts = _rows(
        ("Parcel ID", it.parcel_id),
        ("Owner", it.owner),
        ("Situs address", it.address),
        ("County", it.county),
        ("Assessed value", f"${it.value:,}"),
        ("Acreage", f"{it.acres:.2f}"),
        ("Year built", it.year_built),
    )
    sales = _rows(*((year, f"${price:,}", seller) for year, price, seller in it.sales))
    linked_data = json.dumps({"@context": "https://schema.org", **house})
    content = f"""<script type="application/ld+json">{linked_data}</script>
<p class="description">{it.description}</p>
<table class="facts">\n{facts}\n</table>
<h2>Sale history</h2>
<table class="sales">\n<tr><th>Year</th><th>Price</th><th>Seller</th></tr>\n{sales}\n</table>
<p><a href="/">All parcels of the register</a></p>"""
    return _document(f"Parcel {it.parcel_id}", content)


def _index() -> str:
    parcels = map(parcel, NUMBERS.values())
    rows = _rows(
        *(
            (f'<a href="/parcel/{it.parcel_id}">{it.parcel_id}</a>', it.county, it.address)
            for it in parcels
        )
    )
    return _document("County register", f"<p>{COUNT} parcels.</p>\n<table>\n{rows}\n</table>")


def _response(body: bytes, status: int = 200, kind: str = "text/html; charset=utf-8") -> bytes:
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    return f"{first}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _error(title: str, text: str, status: int) -> bytes:
    return _response(_document(title, f"<p>{text}</p>").encode(), status)


async def _drill_page(path: str, first: bool) -> bytes:
    _, _, latency_ms, fault, number = path.split("/")
    await asyncio.sleep(int(latency_ms) / 1000)
    if first and fault == "500":
        return _error("Error", "This page fails once.", 500)
    response = _response(_page(int(number)).encode())
    if first and fault == "cut":
        head, _, body = response.partition(b"\r\n\r\n")
        return head + _CLOSE + body[: len(body) // 2]
    return response


async def _answer(path: str, requests: int) -> bytes | None:
    """Return the response to the n-th request for a path; None drops the connection."""
    if path == "/":
        return _response(_index().encode())
    if path.startswith("/drill/"):
        return await _drill_page(path, requests == 1)
    n = NUMBERS.get(path.removeprefix("/parcel/"), 0)
    if n in DROPPED:
        return None
    if not n or n in GONE:
        return _error("Not found", "The register has no such parcel.", 404)
    if n in BROKEN:
        return _error("Error", "The register cannot show this parcel.", 500)
    if n % 20 == FLAKY and requests == 1:
        return _error("Busy", "The register is busy; try again.", 503)
    if n % 20 == SLOW:
        await asyncio.sleep(0.3 + n * 7 % 13 / 10)
    if n == PLAN:
        return _response(PDF, kind="application/pdf")
    if n == PHOTO:
        return _response(PNG, kind="image/png")
    if n == CYRILLIC:
        return _response(_page(n).encode("cp1251"), kind="text/html; charset=windows-1251")
    return _response(_page(n).encode())


async def _talk(
    requests: Counter[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    # A client that hangs up or does not speak HTTP only loses its connection.
    with (
        closing(writer),
        suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
    ):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode("latin-1")
            requests[path] += 1
            response = await _answer(path, requests[path])
            writer.write(response or b"")
            await writer.drain()
            if response is None or _CLOSE in response or b"connection: close" in head.lower():
                break


async def _main() -> None:
    requests: Counter[str] = Counter()
    server = await asyncio.start_server(partial(_talk, requests), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)  # it ends with the parent, even a killed one
    server.close()
    with suppress(OSError):  # a killed parent does not read them
        os.write(1, json.dumps(requests).encode())


class running_site:
    """Runs the site in its own process, which ends with its standard input."""

    requests: dict[str, int]
    """The requests for each path; known at the end."""

    def __enter__(self) -> str:
        """Start it; returns its address."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crawler.demo_site"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        self.requests = json.loads(self._process.communicate()[0] or "{}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback
    asyncio.run(_main())
