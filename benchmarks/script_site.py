"""The site that needs a browser: empty pages whose script fetches a record as JSON and builds the
page from it."""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.site import SEED, sentence

SHELL = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Parcel</title>
<link rel="stylesheet" href="/style.css"><script src="/app.js" defer></script></head>
<body><header><img src="/map/{number}.png" alt="Map"></header><main>Loading</main></body></html>
"""
SCRIPT = """
const make = (name, text, kind) => {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
const row = (...cells) => {
  const made = make("tr");
  made.append(...cells);
  return made;
};
const show = data => {
  const main = document.querySelector("main"), title = make("h1", data.record.parcel);
  title.id = "parcel";
  document.title = "Parcel " + data.record.parcel;
  const record = make("table", "", "record");
  for (const [name, text] of Object.entries(data.record).slice(1))
    record.append(row(make("th", name), make("td", text, name)));
  main.replaceChildren(title, record);
  for (const year of data.years) {
    const section = make("section"), table = make("table");
    for (const [tax, due] of year.due) table.append(row(make("td", tax), make("td", due)));
    section.append(make("h2", year.title), make("p", year.about), table);
    main.append(section);
  }
};
fetch("/data" + location.pathname + ".json").then(answer => answer.json()).then(show);
"""
STYLE = """
@font-face { font-family: Parcel; src: url(/parcel.woff2); }
body { font: 15px Parcel, sans-serif; margin: 0 auto; max-width: 60em; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid #ccc; padding: 4px 8px; text-align: left; }
h1, h2 { color: #234; }
"""
TYPES = {
    "css": "text/css",
    "js": "text/javascript",
    "json": "application/json",
    "txt": "text/plain",
}
BLOCKED = ("png", "woff2")
"""What browsers that block images and fonts do not ask for."""
YEARS = (40, 100)


def data(number: int) -> str:
    """The record of a page and its years, of 17 to 42 KB as they stand in the page."""
    dice = random.Random(SEED * 1_000_033 + number)
    record = {
        "parcel": f"{number:05d}-{dice.randint(100, 999)}",
        "owner": sentence(dice),
        "address": f"{dice.randint(1, 9999)} Alder Street",
        "county": "Birch County",
        "use": dice.choice(("Farm", "Office", "Duplex")),
        "acres": f"{dice.randint(5, 4000) / 100:.2f}",
        "value": f"${dice.randint(20, 900) * 1_000:,}",
        "sold": f"{dice.randint(1970, 2025)}-{dice.randint(1, 12):02d}-01",
    }
    years = [
        {
            "title": f"Year {2025 - year}",
            "about": sentence(dice),
            "due": [[f"Levy {n}", f"${dice.randint(10, 9999):,}.00"] for n in range(6)],
        }
        for year in range(dice.randint(*YEARS))
    ]
    return json.dumps({"record": record, "years": years})


class ScriptSite:
    """Serves so many pages, and counts what is asked for by its ending."""

    def __init__(self, pages: int) -> None:
        self._files = {"/style.css": STYLE, "/app.js": SCRIPT, "/robots.txt": "User-agent: *\n"}
        for number in range(pages):
            self._files[f"/parcel/{number}"] = SHELL.format(number=number)
            self._files[f"/data/parcel/{number}.json"] = data(number)
        self._base = ""
        self.asked = Counter[str]()

    def urls(self, count: int) -> list[str]:
        """The first pages."""
        return [f"{self._base}/parcel/{number}" for number in range(count)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                kind = path.rpartition("/")[2].partition(".")[2]
                self.asked[kind] += 1
                status, body = "200 OK", self._files.get(path, "").encode()
                if path not in self._files:
                    status = "404 Not Found"
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {TYPES.get(kind, 'text/html')}\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    async def run(self, up: threading.Event, stop: asyncio.Event) -> None:
        """Serve until told to stop."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self._base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            up.set()
            await stop.wait()


@contextmanager
def serving(pages: int) -> Iterator[ScriptSite]:
    """The site, in a thread of its own."""
    site, up = ScriptSite(pages), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(site.run(up, stop)))
    thread.start()
    up.wait()
    try:
        yield site
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
