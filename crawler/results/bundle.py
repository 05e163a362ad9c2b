"""A bundle: one file that carries results and their pages to another ledger.

It is a tar compressed with zstd, written and read some results at a time:

    records/000001.jsonl    up to 500 results in the one shape they have everywhere, `raw` pointing into the next
                            member, and under `carried` what the ledger knows of them besides
    raw/000001.warc.gz      their pages, byte for byte; missing where there are none
    records/000002.jsonl    …
    manifest.json           where the bundle comes from, its counts, and the size and SHA-256 of every member

The manifest's own SHA-256 is the bundle's checksum. A reader takes nothing but these members in
this order, with the very headers that the writer gives them, and stores nothing before it has seen
all of it.
"""

import sys
import tarfile
from datetime import datetime
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from crawler import __version__
from crawler.db import raw_pages
from crawler.db.results import iso
from crawler.errors import FetchError, StoreError
from crawler.fetch.body import decoded
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, Raw
from crawler.results import whole_file
from crawler.results.archive import BATCH, CHECKED, keeping

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdFile
else:
    from backports.zstd import ZstdFile

VERSION = 1
PART_BYTES = 8_000_000
"""A part is full when its records or its pages have so many bytes: this is what both sides hold in
memory."""
RECORDS, PAGES, MANIFEST = "records/{:06}.jsonl", "raw/{:06}.warc.gz", "manifest.json"

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Span = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=253402300799)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Member(msgspec.Struct, frozen=True):
    """A file in the bundle."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last member: what the others have to be."""

    format: Literal["crawler bundle"]
    version: int
    crawler: str
    ledger: str
    created_at: str
    job: str | None
    since: str | None
    results: int
    pages: int
    members: tuple[Member, ...]


class Bundled(msgspec.Struct, frozen=True):
    """What was bundled; no file where there was nothing."""

    results: int
    pages: int
    unreadable: int
    file: str | None
    bytes: int
    checksum: str | None


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a result beyond the shape it has everywhere."""

    content_type: str
    bytes: Count
    fetch_ms: Span
    imported_at: Moment
    completed_at: Moment
    external_id: str | None


class Maker(msgspec.Struct, frozen=True):
    """What made the record: a parser, or a site's configuration."""

    name: str
    version: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `records/`, as far as the ledger keeps it."""

    task_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    parcel_id: str | None
    data: dict[str, Any]
    scraped_at: Annotated[datetime, msgspec.Meta(tz=True)]
    parse_duration_ms: Span
    raw_html_hash: Digest
    url: str
    final_url: str
    status_code: Annotated[int, msgspec.Meta(ge=0, le=999)]
    verdict: str
    job: str | None
    queue: Literal["urgent", "default"]
    priority: Annotated[int, msgspec.Meta(ge=1, le=9)]
    attempts: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    input: dict[str, Any]
    site: Maker
    parser: Maker
    raw: Raw | None
    carried: Carried


def bundle(
    lpm: LocalPersistenceManager, output: Path, *, job: Job | None, since: float | None, raw: bool
) -> Bundled:
    """Write results and their pages to one file, whole or not at all; a page that cannot be read is
    left out."""
    with keeping(lpm, shared=True):
        horizon = lpm.timeline.last_event()
        found = lpm.results.read_numbered(job, since)
        first = next(found, None)
        if first is None:
            return Bundled(0, 0, 0, None, 0, None)
        with whole_file(output, lpm.folder) as file, ZstdFile(file, "w", options=CHECKED) as out:
            writer = _Writer(lpm, job, out, raw)
            for task, result in chain([first], found):
                writer.add(task, result)
            writer.flush()
            manifest = msgspec.json.encode(
                Manifest(
                    format="crawler bundle",
                    version=VERSION,
                    crawler=__version__,
                    ledger=lpm.store.id,
                    created_at=iso(lpm.now()),
                    job=job.name if job else None,
                    since=None if since is None else iso(since),
                    results=writer.results,
                    pages=writer.pages,
                    members=tuple(writer.members),
                )
            )
            writer.write(MANIFEST, manifest)
            out.write(bytes(2 * tarfile.BLOCKSIZE))
        file_name = printable(str(output.absolute()))
        lpm.timeline.note_export(file_name, "bundle", job, since, writer.results, horizon)
    size = output.stat().st_size
    checksum = sha256(manifest).hexdigest()
    return Bundled(
        writer.results, writer.pages, writer.unreadable, printable(str(output)), size, checksum
    )


class _Writer:
    def __init__(
        self, lpm: LocalPersistenceManager, job: Job | None, out: ZstdFile, raw: bool
    ) -> None:
        self._lpm, self._job, self._out, self._raw = lpm, job, out, raw
        self._records: list[bytes] = []
        self._stored: list[bytes] = []
        self._sizes = [0, 0]
        self._number = 1
        self.results = self.pages = self.unreadable = 0
        self.members: list[Member] = []

    def add(self, task: int, result: dict[str, Any]) -> None:
        page = self._page(result)
        place = {
            "segment": PAGES.format(self._number),
            "offset": self._sizes[1],
            "length": len(page),
        }
        line = (
            msgspec.json.encode(
                result | {"raw": place if page else None, "carried": self._carried(task)}
            )
            + b"\n"
        )
        self._records.append(line)
        self._stored.append(page)
        self._sizes = [self._sizes[0] + len(line), self._sizes[1] + len(page)]
        self.results, self.pages = self.results + 1, self.pages + bool(page)
        if len(self._records) == BATCH or max(self._sizes) >= PART_BYTES:
            self.flush()

    def _page(self, result: dict[str, Any]) -> bytes:
        place = msgspec.convert(result["raw"], Raw | None)
        if not self._raw or place is None or self._lpm.pages.is_given_up(place, self._job):
            return b""
        try:
            page = raw_pages.member(self._lpm.raw, place)
            check_page(page, result["raw_html_hash"], limit=1 << 30)
        except (StoreError, ValueError):
            self.unreadable += 1
            return b""
        return page

    def _carried(self, task: int) -> Carried:
        row = self._lpm.results.carried(task)
        return Carried(**dict(zip(Carried.__struct_fields__, row, strict=True)))

    def flush(self) -> None:
        if self._records:
            self.write(RECORDS.format(self._number), b"".join(self._records))
        if any(self._stored):
            self.write(PAGES.format(self._number), b"".join(self._stored))
        self._records, self._stored, self._sizes = [], [], [0, 0]
        self._number += 1

    def write(self, name: str, data: bytes) -> None:
        self._out.write(tar_header(name, len(data)))
        self._out.write(data)
        self._out.write(bytes(-len(data) % tarfile.BLOCKSIZE))
        self.members.append(entry(name, data))


def tar_header(name: str, size: int) -> bytes:
    """The header of a member: the same for the same name and size, always."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def entry(name: str, data: bytes) -> Member:
    """What the manifest says of a member."""
    return Member(name, len(data), sha256(data).hexdigest())


def check_page(page: bytes, digest: str, limit: int) -> None:
    """ValueError unless this is one whole stored page whose decoded body has that digest."""
    try:
        body = decoded(*raw_pages.unpack(page, limit + 1_000_000), limit)
    except FetchError as error:
        raise ValueError(str(error)) from None
    if sha256(body).hexdigest() != digest:
        raise ValueError("its body has not the SHA-256 that its record says")
