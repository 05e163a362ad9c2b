"""One page never hurts another: real workers, pages that cost too much, and processes that lack
something."""

import asyncio
import contextlib
import gzip
import re
import resource
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from crawler.db import owners
from crawler.fetch.budget import Memory
from tests.support.pages import Answer, Pages, parcel
from tests.support.serving import serving
from tests.support.site import Site
from tests.support.stack import Folder, wait_for


@pytest.fixture
def folder(folder: Folder, redis_url: str) -> Folder:
    """A folder on the tests' own Redis, whose pages are given up at the first failure."""
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    (folder.path / "config").mkdir()
    configure(folder, 60)
    return folder


def configure(folder: Folder, timeout_s: int) -> None:
    """Give each page one attempt of so many seconds."""
    defaults = folder.path / "config" / "scraping_defaults.yaml"
    defaults.write_text(f"timeout_s: {timeout_s}\nretry: {{attempts: 1}}\n")


def crawl(folder: Folder, urls: list[str], limit_s: float = 120) -> None:
    """Import the URLs and wait until each has come to its end."""
    bring(folder, urls)
    folder.wait_until_done(len(urls), limit_s)


def bring(folder: Folder, urls: list[str]) -> None:
    """Import the URLs."""
    done = folder.crawler("bulk", "import", str(folder.write(f"{len(urls)}.txt", urls)))
    assert done.returncode == 0, done.stderr


def ends(folder: Folder) -> dict[str, tuple[object, ...]]:
    """State, reason, attempts, failures and strikes by URL."""
    lpm = folder.lpm()
    rows = lpm.store.db.all(
        "SELECT url, status, error_type, attempts, failures, strikes FROM tasks"
    )
    lpm.close()
    return {str(url): tuple(rest) for url, *rest in rows}


def troubles(folder: Folder) -> list[str]:
    """What keeps the living processes from working."""
    return [note.trouble for note in owners.living(folder.data / "run" / "owners") if note.trouble]


MARKS = "\u0301" * 4_000 + "\u0316" * 4_000
COLLECTED = ("completed", None, 1, 0, 0)


def test_pages_that_take_long_to_decode_hurt_nobody(folder: Folder, site: Site) -> None:
    """Bodies of a million empty pieces fail alone, at once: no process dies, and no neighbour gets
    a strike."""
    # Given a worker that is ended when it stands still for two seconds
    folder.env["CRAWLER_STALL_S"] = "2"
    folder.worker(concurrency=2)
    children = folder.children()
    good = [site.page(n) for n in range(40)]
    bad = [
        f"{site.url}/odd/{kind}?{n}"
        for n in range(4)
        for kind in ("gzip-pieces", "zstd-pieces", "zstd-skipped")
    ]

    # When such pages are among others
    crawl(
        folder,
        [url for n in range(4) for url in (*good[n * 10 : n * 10 + 10], *bad[n * 3 : n * 3 + 3])],
    )

    # Then each of them is too large, and all else is collected by the processes that began
    found = ends(folder)
    assert {url: found[url] for url in bad} == dict.fromkeys(bad, ("failed", "too_large", 1, 1, 0))
    assert {url: found[url] for url in good} == dict.fromkeys(good, COLLECTED)
    assert folder.children() == children


def test_small_pages_that_stand_for_much_hurt_nobody(folder: Folder, pages: Pages) -> None:
    """Items in items, hosts of marks, links with endless beginnings: all are collected at the first
    attempt."""
    # Given a worker that is ended when it stands still for two seconds, and pages of some KB among
    # others
    folder.env["CRAWLER_STALL_S"] = "2"
    hosts = "".join(f"<a id=x{n} itemprop=u href='http://a{n}{MARKS}'></a>" for n in range(3))
    repeated = {
        "items": "<div itemscope>" + '<div itemscope itemprop="a b c d e f g h i j">' * 8,
        "hosts": hosts + "<div itemscope itemref='x0 x1 x2'></div>" * 500,
        "links": f"<base href='http://a.example/{'x' * 8_000}/'>"
        + "".join(f"<a href={n}></a>" for n in range(1_000)),
    }
    bad = [f"{pages.url}/{kind}/{n}" for n in range(10) for kind in repeated]
    pages.answers |= {
        url.removeprefix(pages.url): Answer(parcel(1) + repeated[url.split("/")[-2]]) for url in bad
    }
    good = pages.parcels(60)
    folder.worker(concurrency=2)
    children = folder.children()

    # When they are crawled
    crawl(folder, [url for n in range(30) for url in (*good[n * 2 : n * 2 + 2], bad[n])])

    # Then all are collected, by the processes that began
    assert ends(folder) == dict.fromkeys([*good, *bad], COLLECTED)
    assert folder.children() == children


def test_dozens_of_costly_pages_at_once_hurt_nobody(folder: Folder, pages: Pages) -> None:
    """Pages that each take a quarter of a second to refuse come one after another, and others go
    before them."""
    # Given a worker that is ended when it stands still for five seconds, and pages that take 16 s
    # together
    folder.env |= {"CRAWLER_STALL_S": "5", "CRAWLER_PAGES": "64"}
    configure(folder, 10)
    costly = [f"{pages.url}/costly/{n}" for n in range(64)]
    pages.answers |= {f"/costly/{n}": Answer(parcel(n) + "<h1><div>" * 6_900) for n in range(64)}
    good = pages.parcels(64)
    folder.worker(concurrency=1)
    children = folder.children()

    # When all are in flight at once
    crawl(folder, [url for pair in zip(costly, good, strict=True) for url in pair], limit_s=240)

    # Then each comes to its own end at the first attempt, in the process that began
    refused = dict.fromkeys(costly, ("failed", "too_deep", 1, 1, 0))
    assert ends(folder) == dict.fromkeys(good, COLLECTED) | refused
    assert folder.children() == children


def test_pages_that_grow_and_stall_share_the_memory_of_their_process(
    folder: Folder, site: Site
) -> None:
    """Pages of 9.9 MB that never end, of more than the memory there is: it stays bounded, and
    what gave way costs nothing."""
    # Given a worker with one child, and pages that are given up after some seconds
    configure(folder, 5)
    folder.env["CRAWLER_PAGES"] = "256"
    folder.worker(concurrency=1)
    [child] = folder.children()
    before = peak(child)
    good = [site.page(n) for n in range(80)]
    bad = [f"{site.url}/stall/unpacked?{n}" for n in range(80)]
    assert len(bad) * 9_900_000 > Memory().most + 150_000_000

    # When they come all at once
    crawl(folder, [url for pair in zip(bad, good, strict=True) for url in pair], 300)

    # Then each has ended after one attempt, and the child did not grow beyond its share
    found = ends(folder)
    assert {url: found[url] for url in bad} == dict.fromkeys(bad, ("failed", "timeout", 1, 1, 0))
    assert {url: found[url] for url in good} == dict.fromkeys(good, COLLECTED)
    assert folder.children() == [child]
    assert peak(child) - before < Memory().most + 150_000_000


def peak(pid: int) -> int:
    """The most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


TABLE = "<table>" + ("<tr>\n" + " <td>123.45</td>\n" * 5 + "</tr>\n") * 19_000 + "</table>"


def test_the_memory_of_large_pages_goes_back_to_the_system(folder: Folder, pages: Pages) -> None:
    """When some large tables at once are stored, the process is hardly larger than before they
    came."""
    # Given a child that has read ordinary pages
    folder.worker(concurrency=1)
    [child] = folder.children()
    good = pages.parcels(100)
    crawl(folder, good)
    before = psutil.Process(child).memory_info().rss

    # When it has read large ones
    large = [f"{pages.url}/table/{n}" for n in range(12)]
    pages.answers |= {url.removeprefix(pages.url): Answer(parcel(1) + TABLE) for url in large}
    bring(folder, large)
    folder.wait_until_done(len(good) + len(large), 120)
    assert ends(folder) == dict.fromkeys([*good, *large], COLLECTED)

    # Then most of what it has grown by is free again
    most = (peak(child) - before) / 3
    wait_for(
        lambda: psutil.Process(child).memory_info().rss - before < most,
        20,
        "the memory to be given back",
    )
    assert folder.children() == [child]


@contextlib.contextmanager
def limited(pid: int, kind: int, more: int) -> Iterator[None]:
    """A process that may have so much more of something than now, until the end of the block."""
    process = psutil.Process(pid)
    has = process.num_fds() if kind == resource.RLIMIT_NOFILE else process.memory_info().vms
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (has + more, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


LACKING = "file descriptor|open files|unable to open"
"""What is said where none is left: for a page, or for the store."""


def test_a_process_without_descriptors_charges_no_page(folder: Folder, site: Site) -> None:
    """Pages wait for connections that cannot be had, at no cost; `status` and the log say what is
    lacking."""
    # Given a worker whose child may open hardly anything more
    folder.env["CRAWLER_PAGES"] = "64"
    worker = folder.worker(concurrency=1)
    [child] = folder.children()
    pages = [site.page(n, 0.3) for n in range(120)]

    # When there is work
    with limited(child, resource.RLIMIT_NOFILE, 12):
        bring(folder, pages)
        wait_for(lambda: troubles(folder), 60, "the trouble to be known")
        shown = wait_for(lambda: folder.status()["trouble"], 60, "status to show it")
        assert re.search(LACKING, shown[str(child)])

    # Then all of it is collected at the first attempt, and nothing is in the way any more
    folder.wait_until_done(len(pages), 120)
    assert ends(folder) == dict.fromkeys(pages, COLLECTED)
    wait_for(lambda: not troubles(folder), 20, "the trouble to be over")
    log = folder.log(worker)
    assert re.search(f"nothing more is claimed.*({LACKING})", log)
    assert folder.children() == [child]


def test_a_process_without_memory_charges_no_page(folder: Folder, site: Site) -> None:
    """Under `ulimit -v` pages are broken off wherever memory ends, and come when there is some
    again."""
    # Given a worker at work whose child may have only a little more memory
    folder.env["CRAWLER_PAGES"] = "64"
    folder.worker(concurrency=1)
    [child] = folder.children()
    few = [site.page(n) for n in range(20)]
    crawl(folder, few)
    pages = [f"{site.url}/large/{n}" for n in range(40)]

    # When large pages come
    with limited(child, resource.RLIMIT_AS, 20_000_000):
        bring(folder, pages)
        wait_for(
            lambda: any("no memory left" in text for text in troubles(folder)),
            60,
            "the trouble to be known",
        )

    # Then they are collected when there is memory, at the first attempt
    folder.wait_until_done(len(few) + len(pages), 120)
    assert ends(folder) == dict.fromkeys([*few, *pages], COLLECTED)
    assert folder.children() == [child]


def test_pages_that_stall_with_much_memory_keep_no_other_from_being_claimed(
    folder: Folder, site: Site
) -> None:
    """Pages of 9.9 MB whose servers fall silent, of more than the memory there is, give way to
    pages of other hosts, and end by themselves."""
    # Given pages that nobody gives up soon, on one host, and good ones on three others, all in one
    # child
    configure(folder, 900)
    folder.env |= {"CRAWLER_PAGES": "256", "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    worker = folder.worker(concurrency=1)
    [child] = folder.children()
    before = peak(child)
    stalled = [f"{site.url}/stall/unpacked?{n}" for n in range(100)]
    assert len(stalled) * 9_900_000 > Memory().most + 150_000_000
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(Pages(f"127.0.0.{n}")) for n in (2, 3, 4)]
        bring(folder, stalled)
        wait_for(
            lambda: any("of memory" in text for text in troubles(folder)),
            60,
            "the memory to be full",
        )

        # When the good ones come, then they are collected although no stalled one has ended
        good = [url for host in hosts for url in host.parcels(40)]
        bring(folder, good)
        folder.wait_until_completed(len(good), 300)
    found = ends(folder)
    assert {url: found[url] for url in good} == dict.fromkeys(good, COLLECTED)
    assert {found[url][0] for url in stalled} <= {"pending", "processing"}
    assert {found[url][3:] for url in stalled} == {(0, 0)}
    assert folder.children() == [child]
    assert peak(child) - before < Memory().most + 150_000_000

    # And when they are given up soon, each ends with its own reason
    worker.terminate()
    worker.wait(120)
    configure(folder, 2)
    folder.worker(concurrency=1)
    folder.wait_until_done(len(good) + len(stalled), 600)
    found = ends(folder)
    assert {found[url][:2] + found[url][3:] for url in stalled} == {("failed", "timeout", 1, 0)}


def told(*headers: bytes, body: bytes = b"x") -> bytes:
    """An answer with these headers."""
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Type: text/html", *headers, b"", body])


CHUNKS = told(b"Transfer-Encoding: chunked", body=b"")
ONE = b"Content-Length: 1"
BAD_SHAPES = {
    "extensions": CHUNKS + b"".join(b"1;a=%d\r\nx\r\n" % n for n in range(100_000)),
    "an extension": CHUNKS + b"1;" + b"x" * 16_000 + b"\r\na\r\n",
    "small chunks": CHUNKS + b"1\r\nx\r\n" * 1_000_000,
    "a chunk without end": CHUNKS + b"fffffffffffffff\r\n" + b"x" * 11_000_000,
    "trailers": CHUNKS + b"1\r\nx\r\n0\r\n" + b"T: y\r\n" * 1_000_000,
    "cookies": told(*(b"Set-Cookie: a%d=b; Path=/%d" % (n, n) for n in range(8_000)), ONE),
    "a cookie": told(b"Set-Cookie: a=b" + b"; Domain=.." * 20_000, ONE),
    "a name": told(b"A" * 100_000 + b": b", ONE),
    "names": told(*(b"A%d:" % n for n in range(30_000)), ONE),
    "announcements": b"HTTP/1.1 100 C\r\n\r\n" * 200_000,
    "long announcements": (b"HTTP/1.1 103 E\r\n" + b"A: b\r\n" * 400 + b"\r\n") * 1_000,
    "lengths": told(*(b"Content-Length: %d" % n for n in range(9_000))),
    "a length": told(b"Content-Length: " + b"9" * 200_000, body=b"x" * 11_000_000),
    "lists": told(
        b"Connection: " + b"x," * 60_000, b"Content-Encoding: " + b"identity," * 14_000, ONE
    ),
    "layers": told(b"Content-Encoding: " + b"gzip," * 48_000, ONE),
    "members": told(b"Content-Encoding: gzip", body=gzip.compress(b"") * 100_000),
    "empty blocks": told(b"Content-Encoding: deflate", body=b"\0\0\0\xff\xff" * 1_000_000),
    "mixed deflate": told(
        b"Content-Encoding: deflate", body=zlib.compress(b"x") + b"\x03\0" * 1_000_000
    ),
    "empty zstd blocks": told(
        b"Content-Encoding: zstd", body=b"\x28\xb5\x2f\xfd\0\x58" + b"\0\0\0" * 1_000_000
    ),
    "skipped brotli": told(b"Content-Encoding: br", body=b"\x0c" + b"\x06" * 9_000_000),
    "a loop": b"HTTP/1.1 302 F\r\nLocation: /a%20loop?"
    + b"x" * 8_000
    + b"\r\nContent-Length: 0\r\n\r\n",
    "many places": b"HTTP/1.1 302 F\r\n"
    + b"".join(b"Location: /%d\r\n" % n for n in range(12_000))
    + b"\r\n",
    "a stalled buffer": told(b"Content-Length: 262000", body=b"x" * 261_000),
    "unasked": told(ONE) + told(ONE) * 10_000,
}


@contextlib.contextmanager
def raw_server(address: str) -> Iterator[str]:
    """A server that answers with one of the bad shapes, by the number in the path, and then falls
    silent; its URL."""
    shapes = [*BAD_SHAPES.values()]
    started, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    url = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while found := re.match(rb"GET /(\d*)", await reader.readuntil(b"\r\n\r\n")):
            writer.write(
                shapes[int(found[1])]
                if found[1]
                else b"HTTP/1.1 404 N\r\nContent-Length: 0\r\n\r\n"
            )
            await writer.drain()

    async def serve() -> None:
        async with serving(talk, address) as port:
            url.append(f"http://{address}:{port}")
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_answers_of_bad_shape_hurt_nobody(folder: Folder, pages: Pages) -> None:
    """Whatever heads, chunks, codings and redirects a server makes up, pages of other hosts come at
    once."""
    # Given a worker that is ended when it stands still for two seconds, and gives up the bad host's
    # pages soon
    (folder.path / "config" / "sites").mkdir()
    (folder.path / "config" / "sites" / "bad.yaml").write_text("hosts: [127.0.0.5]\ntimeout_s: 4\n")
    folder.env |= {
        "CRAWLER_STALL_S": "2",
        "CRAWLER_PAGES": "64",
        "CRAWLER_ALLOW_NETS": "127.0.0.0/8",
    }
    folder.worker(concurrency=1)
    [child] = folder.children()
    before = peak(child)
    good = pages.parcels(200)

    # When all shapes come together, twice
    with raw_server("127.0.0.5") as url:
        bad = [f"{url}/{n}?{turn}" for turn in range(2) for n in range(len(BAD_SHAPES))]
        crawl(folder, [url for n in range(200) for url in (*bad[n : n + 1], good[n])], 300)

    # Then each has come to its own end in one attempt, nobody got a strike, and the child lives and
    # has not grown much
    found = ends(folder)
    assert {url: found[url] for url in good} == dict.fromkeys(good, COLLECTED)
    assert {found[url][4] for url in bad} == {0}
    assert {found[url][0] for url in bad} <= {"failed", "completed"}
    assert folder.children() == [child]
    assert peak(child) - before < Memory().most + 150_000_000
