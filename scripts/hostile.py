"""A crawl with one hostile page in twenty beside one without any: see scripts/hostile."""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crawler.errors import FetchError
from crawler.fetch.http import Client, Request
from tests.support.site import HOSTILE, Site
from tests.support.stack import Folder, assert_balanced

TIMEOUT_S = 20


def main() -> int:
    """Run both, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pages",
        type=int,
        default=10_000,
        help="all pages, hostile ones included (default 10,000)",
    )
    parser.add_argument(
        "--share", type=float, default=0.05, help="of these that misbehave (default 0.05)"
    )
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default 4)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    hostile = round(given.pages * given.share)
    with Site() as site, Site() as other:
        calm = crawl(site, [site.page(n) for n in range(given.pages - hostile)], given, "calm")
        kinds = list(itertools.islice(itertools.cycle(sorted(HOSTILE)), hostile))
        bad = [
            f"{other.url}{path}{'&' if '?' in path else '?'}mixed={n}"
            for n, path in enumerate(kinds)
        ]
        pages = [*(site.page(n) for n in range(given.pages - hostile)), *bad]
        random.Random(given.seed).shuffle(pages)
        asyncio.run(warm_up(other))
        mixed = crawl(site, pages, given, "mixed")
        wrong = check(mixed["tasks"], dict(zip(bad, kinds, strict=True)))
    ratio = mixed["rate"] / calm["rate"]
    print(
        f"normal pages: {calm['rate']:.0f}/s alone, "
        f"{mixed['rate']:.0f}/s with {hostile:,} hostile ones: {ratio:.2f}"
    )
    print(
        f"the largest child: {calm['peak'] / 1e6:.0f} MB alone, "
        f"{mixed['peak'] / 1e6:.0f} MB with them"
    )
    print(
        f"lost normal pages: {calm['lost']} and {mixed['lost']}; "
        f"all ended after {mixed['seconds']:.0f} s"
    )
    print(f"{len(HOSTILE)} kinds, {hostile - sum(wrong.values())} of {hostile} as expected")
    for what, count in wrong.most_common(20):
        print(f"  {count} × {what}")
    return int(bool(calm["lost"] or mixed["lost"] or wrong))


async def warm_up(site: Site) -> None:
    """Have the hostile site make its bombs before the clock runs: that is its work, not ours."""
    async with Client(10_000_000) as client:
        for path in HOSTILE:
            if HOSTILE[path] != "timeout":
                with contextlib.suppress(FetchError):
                    await client.fetch(Request(url=site.url + path, loopback=True, timeout_s=5))


def crawl(site: Site, pages: list[str], given: argparse.Namespace, name: str) -> dict[str, float]:
    """Crawl these pages in a folder of their own; how fast the normal ones came, and at what
    size."""
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path), CRAWLER_PAGES="32")
        (folder.path / "config").mkdir()
        (folder.path / "config" / "scraping_defaults.yaml").write_text(f"timeout_s: {TIMEOUT_S}\n")
        folder.write("pages.txt", pages)
        try:
            folder.crawler("bulk", "import", "pages.txt")
            lpm = folder.lpm()
            count = sum(url.startswith(site.url + "/page/") for url in pages)
            began, peak = time.monotonic(), 0
            folder.crawler("up", "--workers", str(given.workers))
            like = f"{site.url}/page/%"
            while True:
                for pid in folder.children():
                    try:
                        peak = max(peak, psutil.Process(pid).memory_info().rss)
                    except psutil.NoSuchProcess:
                        continue
                if not lpm.counts.totals().open or time.monotonic() - began > 900:
                    break
                time.sleep(0.2)
            seconds = time.monotonic() - began
            assert_balanced(folder.status())
            sql = (
                "SELECT min(completed_at), max(completed_at) FROM tasks "
                "WHERE status = 'completed' AND url LIKE ?"
            )
            [(first, last)] = lpm.store.db.all(sql, (like,))
            rate = count / (last - first)
            rows = lpm.store.db.all("SELECT url, status, error_type, attempts FROM tasks")
            lpm.close()
            print(
                f"{name}: {json.dumps(Counter(row[1] for row in rows))} in {seconds:.0f} s",
                file=sys.stderr,
            )
            lost = count - sum(
                1 for url, status, *_ in rows if status == "completed" and url.startswith(like[:-1])
            )
            return {"rate": rate, "peak": peak, "lost": lost, "seconds": seconds, "tasks": rows}
        finally:
            folder.stop()


def check(tasks: list[tuple[str, str, str | None, int]], kinds: dict[str, str]) -> Counter[str]:
    """The hostile pages that ended otherwise than their table says, by kind."""
    wrong: Counter[str] = Counter()
    troubles = set(HOSTILE.values()) - {"ok"}
    for url, status, reason, _ in tasks:
        if url in kinds:
            expected, got = HOSTILE[kinds[url]], "ok" if status == "completed" else reason or status
            if expected == "ok" and got not in troubles:
                continue  # the client delivers it, and what it is worth is another question
            if expected == "timeout" and got == "bad_response":
                continue  # a drip of interim answers ends by itself before the time-out of this run
            if expected != got:
                wrong[f"{kinds[url]}: {got} instead of {expected}"] += 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
