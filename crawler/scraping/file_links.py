"""From the fields of a record to the files that a crawl fetches: images and documents."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from crawler.errors import UrlError
from crawler.models import FILE, CrawlOptions, LeftOut, Link, NamedFile, Page, Role
from crawler.scraping.follow import LinkFinder
from crawler.scraping.scope import MAX_URL_LENGTH, Scope
from crawler.sites import structured
from crawler.sites.crawlfile import Files
from crawler.urls import parse, split

_VALUES_PER_LOOK = 500


class FoundFiles(NamedTuple):
    """The files that a record names, and what guards left out."""

    files: tuple[NamedFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def find_files(record: dict[str, Any], page: Page, rules: Files, finder: LinkFinder) -> FoundFiles:
    """Return the files that the fields of a page's record name, each once."""
    task, budget = finder.task, finder.budget
    hosts = file_hosts(page.final_url, rules.hosts)
    files: dict[bytes, NamedFile] = {}
    guards: dict[str, LeftOut] = {}

    def leave_out(guard: str, url: str) -> None:
        before = guards.get(guard) or LeftOut(guard, 0, url[:MAX_URL_LENGTH])
        guards[guard] = before.and_more()

    for number, (field, text) in enumerate(_values(record, rules.fields)):
        if number % _VALUES_PER_LOOK == _VALUES_PER_LOOK - 1:
            budget.look()
        url = structured.absolute(page.final_url, text)
        if not url:
            continue  # no address, or an image within the page (`data:`)
        if len(url) > MAX_URL_LENGTH:
            leave_out("url_length", url)
            continue
        try:
            address = parse(url)
        except UrlError:
            continue
        if address.key in files:
            continue
        if not hosts.has_host(address.url):
            leave_out("files_host", address.url)
        elif len(files) >= rules.max_count:
            leave_out("files_count", address.url)
        else:
            link = Link(
                address=address,
                role=Role.FILE,
                depth=task.depth + 1,
                loopback=finder.filter.may_reach_loopback(task, address.url),
                method=FILE,
                body=finder.site.name,
            )
            files[address.key] = NamedFile(field, link)
    return FoundFiles(tuple(files.values()), tuple(guards.values()))


@lru_cache(maxsize=256)
def _hosts_of(authority: str, host: str, others: tuple[str, ...]) -> Scope:
    own = (authority, f"*.{host.removeprefix('www.')}")
    # Other hosts are named without a port: any is meant.
    named = [name if name.startswith("*.") else f"{name}:*" for name in others]
    return Scope(CrawlOptions(starts=(), hosts=(*own, *named)))


def file_hosts(url: str, others: tuple[str, ...]) -> Scope:
    """Return the hosts that files may come from: that of a URL, those below it, and others."""
    _, authority, host, _, _ = split(url)
    return _hosts_of(authority, host, others)


def _values(record: dict[str, Any], paths: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the texts of some fields, each with the field's path."""
    records = record["records"] if list(record) == ["records"] else [record]
    for path in paths:
        for text in _texts(records, path):
            yield path, text


def _texts(value: Any, path: str) -> Iterator[str]:
    """Yield the texts at a path; lists on the way are passed item by item."""
    if isinstance(value, list):
        for item in value:
            yield from _texts(item, path)
    elif not path:
        if isinstance(value, str):
            yield value
    elif isinstance(value, dict):
        if path in value:  # its own name may have a dot
            yield from _texts(value[path], "")
            return
        name, _, rest = path.partition(".")
        if rest:
            yield from _texts(value.get(name), rest)
