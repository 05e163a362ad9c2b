"""Golden sets: stored pages as small files, each with the record that is expected of it.

A page is two files of one name: `NAME.json` with its URL, headers and record, and its body, as
`NAME.html`, `.json.txt`, `.txt` or `.bin`. The body has no content coding, so that it can be read.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from crawler.analyze.compare import compare_records
from crawler.errors import FetchError, InputError
from crawler.fetch.wire import media_type
from crawler.files import replace_file
from crawler.judge.marks import HEADER_NAMES
from crawler.models import Page, Role
from crawler.replay.parser import parse_page
from crawler.sites import Sites
from crawler.urls import split

MAX_NAME = 60
"""Characters of a page's URL in the name of its files."""
_ENDINGS = {"text/html": ".html", "application/xhtml+xml": ".html", "text/plain": ".txt"}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_KEPT = HEADER_NAMES | {
    "content-disposition",
    "content-language",
    "content-type",
    "last-modified",
    "link",
    "server",
    "x-robots-tag",
}
"""Headers that a verdict or a record can depend on. Golden sets go into repositories, and any other
header may be a secret."""
_KEPT_WITHOUT_VALUE = frozenset({"www-authenticate"})
"""Headers that only count as being there."""


class GoldenPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page and the record that is expected of it, without its body."""

    url: str
    final_url: str
    status: int
    reason: str = ""
    site: str
    platform: str | None = None
    role: Role | None = None
    body: str
    """The name of the file with the body."""
    headers: list[tuple[str, str]] = []
    verdict: str
    invalid: list[str] = []
    record: dict[str, Any] = {}


def name_of(site: str, url: str, key: bytes, role: str | None, method: str, body: str) -> str:
    """The name of a page's files: the same for the same request and role, whatever it returned."""
    request = b"\0".join([key, (role or "").encode(), method.encode(), body.encode()])
    path = _NOT_IN_NAMES.sub("-", split(url)[4].lower()).strip("-")[:MAX_NAME].strip("-")
    words = [site, path, hashlib.sha256(request).hexdigest()[:10]]
    return "-".join(word for word in words if word)


def write(folder: Path, name: str, page: Page, golden: GoldenPage) -> bool:
    """Write the files of a page, if they are not there as they are to be; returns whether one was
    written."""
    body = name + _ending(page)
    golden = msgspec.structs.replace(golden, body=body, headers=list(_kept(page.headers)))
    text = msgspec.json.format(msgspec.json.encode(golden), indent=2) + b"\n"
    # The body first: a page without it would be one that cannot be read.
    written = _write(folder / body, page.body)
    return _write(folder / f"{name}.json", text) or written


def _write(path: Path, data: bytes) -> bool:
    try:
        if not path.is_symlink() and path.read_bytes() == data:
            return False
    except OSError:
        pass
    replace_file(path, data, 0o666)
    return True


def _kept(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        if name.lower() in _KEPT:
            yield name, value
        elif name.lower() in _KEPT_WITHOUT_VALUE:
            yield name, ""


def _ending(page: Page) -> str:
    kind = media_type(page.header("content-type"))
    if kind.endswith(("/json", "+json")):
        return ".json.txt"
    return _ENDINGS.get(kind, ".bin")


def files(folder: Path) -> list[Path]:
    """The pages of a golden set."""
    return sorted(path for path in folder.glob("*.json") if path.is_file())


def read(path: Path) -> GoldenPage:
    """Read a page of a golden set; `InputError` says what is wrong with its file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GoldenPage)
    except OSError as error:
        raise InputError(str(path), f"it cannot be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"not a page of a golden set ({error})") from None


def check(path: Path, sites: Sites) -> list[str]:
    """Parse a page of a golden set with these sites; returns a line for each difference."""
    golden = read(path)
    file = path.with_name(Path(golden.body).name)
    try:
        body = file.read_bytes()
    except OSError as error:
        raise InputError(str(file), f"the page cannot be read ({error.strerror})") from None
    page = Page(
        url=golden.url,
        final_url=golden.final_url,
        status=golden.status,
        reason=golden.reason,
        headers=tuple(golden.headers),
        body=body,
        raw=body,
        fetched_at=0.0,
        fetch_s=0.0,
    )
    try:
        parsed = parse_page(page, sites.of(golden.url, golden.platform), golden.role)
    except FetchError as error:
        return [f"the page cannot be parsed: {error.message} ({error.reason})"]
    record = parsed.record if parsed.verdict.completed else {}
    return list(_differences(golden, parsed.verdict.name, list(parsed.invalid), record))


def _differences(
    golden: GoldenPage, verdict: str, invalid: list[str], record: dict[str, Any]
) -> Iterator[str]:
    if verdict != golden.verdict:
        yield f"verdict: {golden.verdict} → {verdict}"
    encode = msgspec.json.encode
    found = compare_records(encode(golden.record), encode(record))
    for change in sorted(found.changes, key=lambda change: change.path):
        yield str(change)
    if invalid != golden.invalid:
        reasons = ["; ".join(each) or "(valid)" for each in (golden.invalid, invalid)]
        yield f"invalid: {' → '.join(reasons)}"
