"""Pages that need JavaScript, in browsers that hang, eat memory and are killed: see
scripts/browsers."""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crawler.db import owners
from crawler.fetch.browser_process import NAMES
from crawler.stack import read_stack
from tests.support import browser
from tests.support.pages import Answer, Pages
from tests.support.stack import Folder, wait_for

PAGES, BAD = 200, 5
"""Pages of the job; how many of them hang, and how many eat memory."""
KINDS = ("browser", "renderer", "driver", "child", "guard", "worker")
"""What a kill -9 hits, in turn: Chromium's main process, one page's process, the driver of a
browser, the process of the worker that uses it, its guard, the worker with all its children."""
HEAP_MB = 1024
"""V8 lets a page have so much; then its process dies."""
EATEN_MB = 3600
"""What a page takes at most outside of V8's heap: more than twice CRAWLER's limit of a browser."""
NEEDED_MB = 9000
"""Two such pages at a time, and what the stack takes besides."""
ENDS = ("broken off", "retry", "failed")
"""Events of a page whose attempt has not succeeded."""
BLAMED_S = 15.0
"""How much later than its cause the outcome of a page may be stored."""
AUTO_PAGES, MAX_RENDERED = 500, 70
LISTED = 50
"""Pages of a list."""
PARTS = 10
MAX_RATIO, MAX_GROWTH_MB = 1.25, 150
WORDS = "The parcel lies behind the mill, and its bounds were surveyed with the county. " * 5

Record = dict[str, str]


class Site(Pages):
    """Serves pages by their kind: `/KIND/…/N`. It notes which documents a browser asked for."""

    def __init__(self, needing: Iterable[str] = (), latency_s: float = 0.0) -> None:
        """`latency_s` is how long a script waits for what its page shows."""
        super().__init__()
        self._latency_s = latency_s
        self._needing = frozenset(needing)
        self.listed: Sequence[str] = ()
        """The pages that `/index/…` link to."""
        self.rule = self._answer

    def rendered(self) -> Counter[str]:
        """How often each page was asked for by a browser."""
        return Counter(
            asked.path for asked in self.asked if asked.headers.get("sec-fetch-dest") == "document"
        )

    def fetched(self) -> Counter[str]:
        """How often each page was asked for by HTTP."""
        return Counter(
            asked.path
            for asked in self.asked
            if "sec-fetch-dest" not in asked.headers and asked.path != "/robots.txt"
        )

    def _answer(self, path: str) -> Answer | None:
        _, kind, *rest = path.split("/")
        if not rest:
            return None
        match kind:
            case "shown":
                time.sleep(self._latency_s)
                return Answer(shown(rest[-1]))
            case "hang":
                return Answer(hanging(int(rest[-1])))
            case "eat":
                return Answer(eating(int(rest[-1])))
            case "index":
                return Answer(index(self.listed, int(rest[-1])))
        name = name_of(path)
        if kind == "app" or path in self._needing:
            return Answer(shell(name))
        return Answer(f"<html><head><title>Parcel</title></head><body>{shown(name)}")


def name_of(path: str) -> str:
    """What a page is about."""
    return path.strip("/").replace("/", "-")


def shown(name: str) -> str:
    """What there is to see on a page."""
    return f"<h1>Parcel {name}</h1><p>{WORDS}</p><p class=owner>{owner(name)}</p>"


def owner(name: str) -> str:
    """The owner of a parcel."""
    return f"Nora Whitfield the {len(name) * 7}th of {name}"


def record(path: str) -> Record:
    """What a page's record must be."""
    name = name_of(path)
    return {"parcel": f"Parcel {name}", "owner": owner(name)}


def shell(name: str) -> str:
    """A page that is empty until its script has run."""
    return (
        "<html><head><title>Loading</title></head><body><div id=app></div><script>"
        f"fetch('/shown/{name}').then(answer => answer.text())"
        ".then(text => { document.getElementById('app').innerHTML = text; });</script>"
    )


def index(paths: Sequence[str], number: int) -> str:
    """A list of pages, and the way to the next list."""
    part = paths[number * LISTED : (number + 1) * LISTED]
    if (number + 1) * LISTED < len(paths):
        part = [f"/index/{number + 1}", *part]
    links = "".join(f"<li><a href={path}>Parcel {name_of(path)}</a>" for path in part)
    return f"<html><body><h1>Parcels</h1><ul>{links}</ul>"


def hanging(number: int) -> str:
    """A page whose script never ends: at once, or when it has loaded."""
    spins = "for (;;);"
    if number % 2:
        spins = "setTimeout(() => { for (;;); }, 100);"
    return f"<html><body><div id=app>wait</div><script>{spins}</script>"


def eating(number: int) -> str:
    """A page that takes memory: until V8 ends its process, or outside of V8's heap until the
    browser is ended. It takes no more than the machine can give."""
    piece = "new Array(4e6).fill(0.5)"
    if number % 2:
        piece = "new Uint8Array(32e6).fill(1)"
    takes = f"for (let n = 0; n < {EATEN_MB // 32}; n++) held.push({piece});"
    return f"<html><body><script>const held = []; {takes} for (;;);</script>"


class Stack:
    """A stack with browsers over a site, and all processes that it has ever had."""

    def __init__(self, path: Path, browsers: int, timeout_s: int, measures: bool = False) -> None:
        self.folder = Folder(
            path,
            CRAWLER_CONFIG_DIR=str(path / "config"),
            CRAWLER_BROWSER_PATH=str(limited_chromium(path)),
        )
        sites = path / "config" / "sites"
        sites.mkdir(parents=True)
        (sites / "local.yaml").write_text(
            f"hosts: ['127.0.0.1']\nrate: none\nconcurrency: none\ntimeout_s: {timeout_s}\n"
            "fields: {parcel: h1, owner: .owner}\n"
        )
        self.profiles = self.folder.data / "run" / "browser"
        self.seen: set[psutil.Process] = set()
        self.most_browsers = 0
        self.memory: list[tuple[float, float]] = []
        """When, and the MB of all processes."""
        self._browsers, self._measures = browsers, measures
        self._is_over = threading.Event()
        self._watch = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Stack":
        done = self.folder.crawler("up", "--workers", "1", "--browsers", str(self._browsers))
        if done.returncode:
            raise SystemExit(f"browsers: {done.stderr}")
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.folder.stop()

    def import_pages(self, urls: Sequence[str], fetcher: str) -> None:
        """Import a list as a job."""
        file = self.folder.write("pages.txt", urls)
        done = self.folder.crawler("bulk", "import", str(file), "--fetcher", fetcher)
        if done.returncode:
            raise SystemExit(f"browsers: {done.stderr}")

    def crawl(self, url: str) -> None:
        """Crawl a site, with the browsers of this stack."""
        done = self.folder.crawler("crawl", url, "--fetcher", "auto", limit_s=30 * 60)
        if done.returncode:
            raise SystemExit(f"browsers: {done.stderr}")

    def processes(self) -> set[psutil.Process]:
        """All processes that it has now."""
        stack = read_stack(self.folder.data)
        marks = (stack.supervisor, stack.redis, stack.worker, stack.browsers)
        found = set[psutil.Process]()
        for mark in filter(None, marks):
            with suppress(psutil.NoSuchProcess):
                if process := mark.find():
                    found |= {process, *process.children(recursive=True)}
        return found

    def families(self) -> list[list[psutil.Process]]:
        """The processes of each browser: its driver, its guard, and what that has started."""
        found = []
        for child in self.children():
            if family := browser.family(child, self.profiles):
                found.append([child, *family])
        return found

    def children(self) -> list[psutil.Process]:
        """The processes of the worker that have browsers."""
        stack = read_stack(self.folder.data)
        with suppress(psutil.NoSuchProcess):
            if worker := stack.browsers and stack.browsers.find():
                return worker.children()
        return []

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            now = self.processes()
            self.seen |= now
            if self._measures:
                self.memory.append((time.time(), sum(map(pss, now)) / 1e6))

    def end(self) -> list[str]:
        """Take it down; return what it has left."""
        self._is_over.set()
        self._watch.join()
        self.seen |= self.processes()
        done = self.folder.crawler("down")
        wrong = [f"down ended with {done.returncode}: {done.stderr}"] * bool(done.returncode)
        wrong += [f"left: {told(each)}" for each in self.seen if each.is_running()]
        if self.profiles.exists():
            wrong += [f"left: {path}" for path in self.profiles.iterdir()]
        return wrong


def told(process: psutil.Process) -> str:
    """A process in a line."""
    with suppress(psutil.Error):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:150]}"
    return str(process.pid)


def pss(process: psutil.Process) -> int:
    """The memory of a process, of what it shares its part only."""
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def limited_chromium(path: Path) -> Path:
    """A Chromium whose pages die when V8 has used up what it may use."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise SystemExit(f"browsers: {browser.LACKING}")
    script = path / "chromium"
    script.write_text(f'#!/bin/sh\nexec {program} --js-flags=--max-old-space-size={HEAP_MB} "$@"\n')
    script.chmod(0o755)
    return script


# What is in the ledger


class Row(NamedTuple):
    """A task with what happened to it."""

    path: str
    status: str
    reason: str | None
    attempts: int
    failures: int
    strikes: int
    deaths: int
    events: list[tuple[float, str, dict[str, Any]]]

    @property
    def kind(self) -> str:
        return self.path.split("/")[1]


def rows(folder: Folder) -> list[Row]:
    """All tasks."""
    found = []
    with closing(folder.lpm()) as lpm:
        for id_, url, *about in lpm.store.db.all(
            "SELECT id, url, status, error_type, attempts, failures, strikes, deaths FROM tasks"
        ):
            path = "/" + url.split("/", 3)[3]
            events = [(at, kind, json.loads(text)) for at, kind, text in lpm.timeline.events(id_)]
            found.append(Row(path, *about, events))
    return found


def wrong_records(folder: Folder, paths: Sequence[str]) -> list[str]:
    """Pages without a record, with another than theirs, or with several."""
    found: dict[str, list[Record]] = {}
    for result in folder.results():
        path = "/" + result["url"].split("/", 3)[3]
        if not path.startswith("/index/"):
            found.setdefault(path, []).append(result["data"])
    wrong = [f"{path} has {len(found[path])} records" for path in found if len(found[path]) > 1]
    wrong += [f"{path} has no record" for path in paths if path not in found]
    wrong += [f"{path} should have no record" for path in found if path not in paths]
    for path in paths:
        for data in found.get(path, ()):
            if data != record(path):
                wrong.append(f"{path}: {data}")
    return wrong


# Hangs, memory and kills


class Kill(NamedTuple):
    """A kill -9."""

    at: float
    kind: str
    pid: int


def faults(path: Path, given: argparse.Namespace) -> int:
    """Render 200 pages while browsers are killed; account for every page."""
    free_mb = psutil.virtual_memory().available / 1e6
    if free_mb < NEEDED_MB:
        raise SystemExit(f"browsers: {free_mb:,.0f} MB of memory are free, of {NEEDED_MB:,} needed")
    good = [f"/app/{n}" for n in range(PAGES - 2 * BAD)]
    paths = list(good)
    for kind in ("hang", "eat"):
        for number in range(BAD):
            place = (number + 0.3 + 0.4 * (kind == "eat")) * PAGES / BAD
            paths.insert(int(place), f"/{kind}/{number}")
    began = time.monotonic()
    with Site(latency_s=0.5) as site, Stack(path, given.browsers, given.timeout) as stack:
        stack.import_pages([site.url + each for each in paths], "browser")
        kills = strike(stack, given.kills, random.Random(given.seed))
        books = stack.folder.wait_until_done(PAGES, 30 * 60)
        took_s = time.monotonic() - began
        stack.folder.crawler("resume")  # a killed worker may not have written a commit's files
        verified = stack.folder.crawler("job", "verify", "pages.txt")
        wrong = wrong_records(stack.folder, good)
        if verified.returncode:
            wrong.append(f"job verify ended with {verified.returncode}: {verified.stderr}")
        found = rows(stack.folder)
        rendered = site.rendered()
        wrong += stack.end()
    print(
        f"{PAGES} pages in {took_s:.0f} s: {books.completed} completed, {books.failed} failed; "
        f"{sum(rendered.values())} times a browser asked for one; job verify ended with "
        f"{verified.returncode}"
    )
    wrong += accounted(found, kills)
    if len(kills) != given.kills:
        wrong.append(f"only {len(kills)} of {given.kills} kills hit")
    print(f"{len(stack.seen)} processes seen, of which {left(stack)} are left")
    return report(wrong)


def left(stack: Stack) -> int:
    """How many processes of a stack are there."""
    return sum(each.is_running() for each in stack.seen)


def strike(stack: Stack, count: int, chance: random.Random) -> list[Kill]:
    """Kill at moments that are spread over the job; pages must be in browsers then."""
    kills = []
    for number in range(count):
        after = int((number + chance.uniform(0.3, 0.9)) * 0.9 * PAGES / count)
        wait_for(partial(has_done, stack, after), 15 * 60, f"{after} pages", pause_s=0.1)
        kind = KINDS[number % len(KINDS)]
        victim = wait_for(partial(find_victim, stack, kind), 120, f"a {kind} to kill")
        kills.append(Kill(time.time(), kind, victim.pid))
        victim.kill()
        print(f"after {done(stack)} pages: kill -9 of {kind} {victim.pid}", file=sys.stderr)
    return kills


def has_done(stack: Stack, count: int) -> bool:
    """Whether so many pages are in a final state."""
    return done(stack) >= count


def done(stack: Stack) -> int:
    """How many pages are in a final state."""
    books = stack.folder.books()
    return books.completed + books.failed


def find_victim(stack: Stack, kind: str) -> psutil.Process | None:
    """A process to kill, with innocent pages in it; none as yet while one of these is spared the
    death of a browser before: this one would be a failure of a page that is alone in there."""
    if kind == "worker":
        mark = read_stack(stack.folder.data).browsers
        return mark.find() if mark and any(in_flight(stack).values()) else None
    pages = in_flight(stack)
    with suppress(psutil.NoSuchProcess):
        for child, driver, guard, *rest in stack.families():
            mine = pages.get(child.pid, [])
            if not mine or (kind in ("browser", "driver", "guard") and "browser_crashed" in mine):
                continue
            found = {
                "child": [child],
                "driver": [driver],
                "guard": [guard],
                "browser": [each for each in rest if is_main(each)],
                "renderer": renderers(rest),
            }
            if found[kind]:
                return found[kind][0]
    return None


def in_flight(stack: Stack) -> dict[int, list[str | None]]:
    """For the processes of workers, why each of the good pages has failed before that they have in
    hand."""
    found: dict[int, list[str | None]] = {}
    pids = {
        note.id: note.about["pid"] for note in owners.living(stack.folder.data / "run" / "owners")
    }
    with closing(stack.folder.lpm()) as lpm:
        sql = """SELECT owner, error_type FROM tasks
            WHERE status = 'processing' AND url LIKE '%/app/%'"""
        for owner_id, reason in lpm.store.db.all(sql):
            found.setdefault(pids.get(owner_id, 0), []).append(reason)
    return found


def is_main(process: psutil.Process) -> bool:
    """Whether a process is Chromium's first one, and no shell around it."""
    argv = process.cmdline()
    return "sh" not in Path(argv[0]).name.split("-") and not any(
        part.startswith("--type=") for part in argv
    )


def renderers(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The processes of pages that neither spin nor eat, the oldest first. The last one has no page
    yet."""
    found = [each for each in processes if "--type=renderer" in each.cmdline()]
    return [each for each in sorted(found, key=psutil.Process.create_time)[:-1] if is_calm(each)]


def is_calm(process: psutil.Process) -> bool:
    """Whether a process has used little."""
    cpu = process.cpu_times()
    return cpu.user + cpu.system < 1.0 and process.memory_info().rss < 300e6


def accounted(found: Sequence[Row], kills: Sequence[Kill]) -> list[str]:
    """Print what the faults have cost, and return what is not as promised."""
    crashes = [kill.at for kill in kills if kill.kind in ("browser", "driver", "guard")]
    for row in found:
        if row.kind == "eat":
            crashes += [at for at, kind, _ in row.events if kind in ENDS]
    deadly = [kill.at for kill in kills if kill.kind in ("child", "worker")]
    wrong = []
    for row in found:
        if row.kind == "app":
            wrong += wrong_innocent(row, kills, crashes, deadly)
        else:
            wrong += wrong_culprit(row, kills)
    good = [row for row in found if row.kind == "app"]
    most = sum(kill.kind == "renderer" for kill in kills)
    if sum(row.failures for row in good) > most:
        wrong.append(f"{most} killed renderers have cost more failures than that")
    print(f"{len(kills)} kills: {', '.join(f'{each.kind} ({cost(each, good)})' for each in kills)}")
    print(
        f"neighbours: {sum(spared(row) for row in good)} fetches lost with a browser (at most "
        f"{max(spared(row) for row in good)} of a page), "
        f"{sum(len(events_of(row, 'worker died')) for row in good)} with a worker; "
        f"{sum(row.failures for row in good)} failures, {sum(row.strikes for row in good)} strikes"
    )
    for row in found:
        if row.kind != "app":
            print(
                f"{row.path}: {row.status}, {row.reason}; {row.attempts} attempts, {row.failures} "
                f"failures, {row.strikes} strikes"
            )
    return wrong


def cost(kill: Kill, good: Sequence[Row]) -> str:
    """How many good pages a kill has cost something."""
    kinds = {"renderer": "retry", "child": "worker died", "worker": "worker died"}
    hit = sum(
        any(
            kind == kinds.get(kill.kind, "broken off") and follows(at, [kill.at])
            for at, kind, _ in row.events
        )
        for row in good
    )
    return f"hit {hit}"


def events_of(row: Row, kind: str) -> list[tuple[float, dict[str, Any]]]:
    """When a kind of event happened to a page, with its detail."""
    return [(at, detail) for at, what, detail in row.events if what == kind]


def spared(row: Row) -> int:
    """How often a page was in a browser that died, and was not blamed."""
    return sum(each.get("error") == "browser_crashed" for _, each in events_of(row, "broken off"))


def wrong_innocent(
    row: Row, kills: Sequence[Kill], crashes: Sequence[float], deadly: Sequence[float]
) -> list[str]:
    """A page pays only for what happened to it: a fetch for its browser's death or its worker's, a
    failure for the death of its own process."""
    wrong = []
    if row.status != "completed":
        wrong.append(f"{row.path} is {row.status}: {row.reason}")
    own = [kill.at for kill in kills if kill.kind == "renderer"]
    for at, detail in events_of(row, "retry"):
        if detail.get("error") != "page_crashed" or not follows(at, own):
            wrong.append(f"{row.path} was charged with {detail.get('error')}: {detail}")
    for at, detail in events_of(row, "broken off"):
        if not follows(at, crashes):
            wrong.append(f"{row.path} was broken off without a cause: {detail}")
    for at, detail in events_of(row, "worker died"):
        if not follows(at, deadly):
            wrong.append(f"{row.path}: its worker died by itself: {detail}")
    struck = sum(bool(detail.get("parsing")) for _, detail in events_of(row, "worker died"))
    if row.strikes != struck or row.strikes > 1:
        wrong.append(f"{row.path} has {row.strikes} strikes")
    lost = [detail for _, kind, detail in row.events if kind in (*ENDS, "worker died")]
    if row.attempts != 1 + sum(detail.get("began", True) for detail in lost):
        wrong.append(f"{row.path} has {row.attempts} attempts, {len(lost)} of which were lost")
    return wrong


def follows(at: float, causes: Iterable[float]) -> bool:
    """Whether an event may have one of these causes."""
    return any(-1 < at - cause < BLAMED_S for cause in causes)


def wrong_culprit(row: Row, kills: Sequence[Kill]) -> list[str]:
    """A bad page fails at its own cost, for its own reason: unless its last attempt was killed."""
    reasons = {"hang": "timeout", "eat": "page_crashed"}
    ended = row.events[-1][0]
    may_be_killed = follows(ended, [kill.at for kill in kills]) and row.reason == "page_crashed"
    wrong = []
    if row.status != "failed" or (row.reason != reasons[row.kind] and not may_be_killed):
        wrong.append(f"{row.path} is {row.status}: {row.reason}")
    if row.failures != 3:
        wrong.append(f"{row.path} has {row.failures} failures")
    return wrong


# Memory


def renders(path: Path, given: argparse.Namespace) -> int:
    """Render quick pages, and see whether the memory of the stack is flat."""
    paths = [f"/app/{n}" for n in range(given.renders)]
    began = time.monotonic()
    with Site() as site, Stack(path, given.browsers, 120, measures=True) as stack:
        stack.import_pages([site.url + each for each in paths], "browser")
        counts: list[tuple[float, int]] = []

        def is_done() -> bool:
            books = stack.folder.books()
            counts.append((time.time(), books.completed))
            return books.completed + books.failed >= given.renders

        wait_for(is_done, 3600, f"{given.renders} pages", pause_s=0.5)
        took_s = time.monotonic() - began
        wrong = wrong_records(stack.folder, paths)
        wrong += stack.end()
    print(
        f"{given.renders:,} pages in {took_s:.0f} s ({given.renders / took_s:.1f}/s), "
        f"{sum(site.rendered().values()):,} times rendered"
    )
    samples = [(rendered_at(counts, at), mb) for at, mb in stack.memory]
    samples = [(count, mb) for count, mb in samples if 0 < count < given.renders]
    step = max(1, given.renders // PARTS)
    for first in range(0, given.renders, step):
        part = [mb for count, mb in samples if first <= count < first + step]
        if part:
            print(
                f"renders {first:5,} to {first + step:5,}: median {median(part):6,.0f} MB, "
                f"{min(part):,.0f} to {max(part):,.0f}"
            )
    return report(wrong + growth(samples, given.renders))


def rendered_at(counts: Sequence[tuple[float, int]], at: float) -> int:
    """How many pages were done at a time."""
    return max((count for when, count in counts if when <= at), default=0)


def growth(samples: Sequence[tuple[int, float]], total: int) -> list[str]:
    """Print whether memory is flat; return what is wrong with that."""
    late = [(count, mb) for count, mb in samples if count >= total / 5]
    slope, _ = linear_regression(*zip(*late, strict=True))
    grown = slope * total * 0.8
    second = median(mb for count, mb in samples if total / 5 <= count < total * 2 / 5)
    last = median(mb for count, mb in samples if count >= total * 4 / 5)
    is_flat = grown <= MAX_GROWTH_MB and last <= MAX_RATIO * second
    print(
        f"memory is {'flat' if is_flat else 'not flat'}: it grows by {grown:+.0f} MB over the last "
        f"80 % (at most {MAX_GROWTH_MB}); median of the second fifth {second:,.0f} MB, of the last "
        f"{last:,.0f} MB: {last / second:.2f} (at most {MAX_RATIO})"
    )
    return [] if is_flat else ["memory grows"]


# Pages of which some need a browser


def mixed_site(chance: random.Random) -> tuple[list[str], list[str]]:
    """All pages of a site in the order of its list, and those that need a browser: most of these
    stand together, and some are scattered among pages that do not."""
    needing = [f"/home/{n}" for n in range(20)]
    needing += [f"/villa/bg/{n}" for n in range(15)]
    needing += [f"/offer-{n}/plan" for n in range(10)]
    plain = [f"/town/{n}" for n in range(65)]
    for kind, count, scattered in (("/parcel", 240, 10), ("/listing/sale", 150, 5)):
        paths = [f"{kind}/{n}" for n in range(count)]
        chosen = set(chance.sample(paths, scattered))
        needing += sorted(chosen)
        plain += [path for path in paths if path not in chosen]
    every = needing + plain
    chance.shuffle(every)
    return every, needing


def auto(path: Path, given: argparse.Namespace) -> int:
    """Have 500 pages fetched by whatever they need."""
    paths, needing = mixed_site(random.Random(given.seed))
    began = time.monotonic()
    with Site(needing) as site, Stack(path, given.browsers, 120) as stack:
        if given.crawl:
            site.listed = paths
            stack.crawl(f"{site.url}/index/0")
        else:
            stack.import_pages([site.url + each for each in paths], "auto")
        stack.folder.wait_until_done(AUTO_PAGES, 30 * 60)
        took_s = time.monotonic() - began
        wrong = wrong_records(stack.folder, paths)
        wrong += stack.end()
    rendered, fetched = site.rendered(), site.fetched()
    documents = sum(rendered.values())
    in_vain = sum(count for each, count in rendered.items() if each not in needing)
    first = sum(fetched[each] for each in needing)
    print(
        f"{AUTO_PAGES} pages in {took_s:.0f} s, {len(needing)} of which need a browser: "
        f"{documents} rendered (at most {MAX_RENDERED}), {in_vain} of "
        f"them in vain; {first} were first fetched by HTTP"
    )
    if documents > MAX_RENDERED:
        wrong.append(f"{documents} pages were rendered")
    return report(wrong)


def report(wrong: Sequence[str]) -> int:
    """Print what is wrong; return the exit code."""
    for what in wrong[:30]:
        print(f"  wrong: {what}")
    print(f"{len(wrong)} deviations")
    return int(bool(wrong))


def main() -> int:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browsers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--timeout", type=int, default=30, help="seconds for a page (default 30)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--renders", type=int, nargs="?", const=1000, help="quick pages, and the memory meanwhile"
    )
    parser.add_argument("--auto", action="store_true", help="500 pages, 60 of which need a browser")
    parser.add_argument("--crawl", action="store_true", help="with --auto: by links, not by a list")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run: Callable[[Path, argparse.Namespace], int] = faults
    if given.renders:
        run = renders
    elif given.auto:
        run = auto
    with tempfile.TemporaryDirectory() as path:
        return run(Path(path), given)


if __name__ == "__main__":
    sys.exit(main())
