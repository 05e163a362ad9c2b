"""The corpus of judged pages: one file a page, with its label and the answer it came with."""

from pathlib import Path

import msgspec

from crawler.fetch import charset
from crawler.judge import Verdict
from crawler.judge.rules import judge
from crawler.models import Page
from crawler.scraping.examine import is_html
from crawler.sites.parser import parse

FOLDER = Path(__file__).parents[1] / "corpus"


class Sample(msgspec.Struct, frozen=True):
    """A page and what a person says that it is."""

    path: str
    name: str
    vendor: str
    page: Page


def samples(part: str = "") -> list[Sample]:
    """The samples of the corpus, or of one part of it."""
    return [read(path) for path in sorted((FOLDER / part).rglob("*.page"))]


def read(path: Path) -> Sample:
    """The sample in a file."""
    head, _, body = path.read_text("utf-8").partition("\n\n")
    label, facts, headers = "", {"status": "200", "url": "https://county.example/page"}, []
    for line in head.splitlines():
        name, _, value = line.partition(": ")
        if name == "label":
            label = value
        elif name == "header":
            key, _, content = value.partition(": ")
            headers.append((key, content))
        elif name in ("status", "url", "final"):
            facts[name] = value
        else:
            raise ValueError(f"{path}: {line!r} is not understood")
    if not any(key == "content-type" for key, _ in headers):
        headers.append(("content-type", "text/html; charset=utf-8"))
    verdict, _, vendor = label.partition(" ")
    return Sample(
        path=str(path.relative_to(FOLDER)),
        name=verdict,
        vendor=vendor,
        page=answer(body.encode(), facts, headers),
    )


def answer(body: bytes, facts: dict[str, str], headers: list[tuple[str, str]]) -> Page:
    """The page that a server's answer makes."""
    return Page(
        url=facts["url"],
        final_url=facts.get("final", facts["url"]),
        status=int(facts["status"]),
        reason="",
        headers=tuple(headers),
        body=body,
        raw=body,
        fetched_at=0.0,
        fetch_s=0.0,
    )


def judged(page: Page) -> Verdict:
    """The verdict on a page, decoded and parsed as the pipeline does it."""
    if not is_html(page.header("content-type"), page.body):
        return judge(page, b"", None)
    html = charset.utf8(page.body, page.header("content-type"))
    return judge(page, html, parse(html))
