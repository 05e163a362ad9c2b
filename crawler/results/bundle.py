"""Bundles: one file that carries results and their pages to another ledger.

A bundle is a tar file compressed with zstd. Both sides hold one part of it in memory:

    records/000001.jsonl    up to 500 results in their usual form; `raw` points into the next
                            member, and `carried` has what else the ledger knows of them
    raw/000001.warc.gz      their pages, byte for byte; missing if there are none
    records/000002.jsonl    …
    manifest.json           where the bundle comes from, its counts, and the size and SHA-256 of
                            every member

The manifest's own SHA-256 is the bundle's checksum. A reader accepts only these members, in this
order, with exactly the headers that the writer gives them. It stores nothing before it has verified
the whole file.
"""

import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple
from zlib import crc32

import msgspec

from crawler import __version__, urls
from crawler.config import failpoint
from crawler.db import raw_pages, result_files, timeline
from crawler.db.connection import Database
from crawler.db.imports import add_to_size
from crawler.db.result_files import LinkedFile
from crawler.db.results import encoded_reasons, insert_carried, iso, set_place
from crawler.errors import FetchError, InputError, StoreError, UrlError
from crawler.fetch.body import decode_stored
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import FILE, GET, NO_DEADLINE, Job, Method, RawLocation, Role, encoded_input
from crawler.results import whole_file
from crawler.results.archive import BATCH_SIZE, ZSTD_OPTIONS, maintenance_lock
from crawler.sites.crawlfile import MAX_FILE_BYTES

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdError, ZstdFile
else:
    from backports.zstd import DecompressionParameter, ZstdError, ZstdFile

VERSION = 1
PART_BYTES = 8_000_000
"""Size of records or pages at which a part is full."""
_MAX_PAGE_BYTES = 1 << 30
_MAX_HEADER_BYTES = 1_000_000
_MAX_MEMBER_OVERHEAD = 32_000_000
"""Maximum size of a member beyond one page of the largest size."""
_MAX_WINDOW_LOG = 23
"""The writer's zstd frames need a window of 2 MB. A frame that asks for more than 8 MB is not
ours."""
_MAX_REASON_LENGTH = 500
_MAX_JOB_NAME_LENGTH = 100
RECORDS, PAGES, MANIFEST = "records/{:06}.jsonl", "raw/{:06}.warc.gz", "manifest.json"

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Timestamp = Annotated[float, msgspec.Meta(ge=0, le=253402300799)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Member(msgspec.Struct, frozen=True):
    """A file in the bundle."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last member, which describes the others."""

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
    """What was bundled; `file` is None if there was nothing to bundle."""

    results: int
    pages: int
    unreadable: int
    file: str | None
    bytes: int
    checksum: str | None


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a result beyond its usual form."""

    content_type: str
    bytes: Count
    fetch_ms: Duration
    imported_at: Timestamp
    completed_at: Timestamp
    external_id: str | None


class Maker(msgspec.Struct, frozen=True):
    """The parser or the site's configuration that made a record."""

    name: str
    version: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a line of `records/` that the ledger stores."""

    task_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    parcel_id: str | None
    data: dict[str, Any]
    scraped_at: Annotated[datetime, msgspec.Meta(tz=True)]
    parse_duration_ms: Duration
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
    raw: RawLocation | None
    carried: Carried
    invalid: list[str] = []
    role: Role | None = None
    depth: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    parent: str | None = None
    method: Method = GET
    body: str = ""
    files: list[LinkedFile] = []

    @property
    def captures(self) -> list[LinkedFile]:
        """The files that a browser has made: they have no task of their own."""
        return result_files.split(self.task_id, self.files)[1]


class Packed(NamedTuple):
    """A result of a bundle with its gzip members: its page, and what a browser has made of it."""

    record: Record
    page: bytes | None
    captures: list[bytes]


def bundle(
    lpm: LocalPersistenceManager, output: Path, *, job: Job | None, since: float | None, raw: bool
) -> Bundled:
    """Write results and their pages to one file, whole or not at all. Pages that cannot be read are
    left out."""
    with maintenance_lock(lpm, shared=True):
        last_event = lpm.timeline.last_event()
        found = lpm.results.read_numbered(job, since)
        first = next(found, None)
        if first is None:
            return Bundled(0, 0, 0, None, 0, None)
        with (
            whole_file(output, lpm.folder) as file,
            ZstdFile(file, "w", options=ZSTD_OPTIONS) as out,
        ):
            writer = _Writer(lpm, job, out, raw)
            for task, result in chain([first], found):
                writer.add(task, result)
            writer.flush()
            manifest = msgspec.json.encode(writer.manifest(since))
            writer.write(MANIFEST, manifest)
            out.write(bytes(2 * tarfile.BLOCKSIZE))
        file_name = printable(str(output.absolute()))
        lpm.timeline.note_export(file_name, "bundle", job, since, writer.results, last_event)
    return Bundled(
        results=writer.results,
        pages=writer.pages,
        unreadable=writer.unreadable,
        file=printable(str(output)),
        bytes=output.stat().st_size,
        checksum=sha256(manifest).hexdigest(),
    )


class _Writer:
    """Collects results into parts, and writes each part when it is full."""

    def __init__(
        self, lpm: LocalPersistenceManager, job: Job | None, out: ZstdFile, with_pages: bool
    ) -> None:
        self._lpm, self._job, self._out, self._with_pages = lpm, job, out, with_pages
        self._records: list[bytes] = []
        self._pages: list[bytes] = []
        self._record_bytes = self._page_bytes = 0
        self._number = 1
        self.results = self.pages = self.unreadable = 0
        self.members: list[Member] = []

    def add(self, task: int, result: dict[str, Any]) -> None:
        """Add a result and its page."""
        page, place = self._read_page(result), None
        if page:
            place = self._add_member(page)
        added: dict[str, Any] = {"raw": place, "carried": self._carried(task)}
        if result.get("files"):
            added["files"] = [self._with_capture(file) for file in result["files"]]
        line = msgspec.json.encode(result | added) + b"\n"
        self._records.append(line)
        self._record_bytes += len(line)
        self.results += 1
        self.pages += bool(page)
        is_full = max(self._record_bytes, self._page_bytes) >= PART_BYTES
        if is_full or len(self._records) == BATCH_SIZE:
            self.flush()

    def _add_member(self, member: bytes) -> RawLocation:
        segment = PAGES.format(self._number)
        place = RawLocation(segment=segment, offset=self._page_bytes, length=len(member))
        self._pages.append(member)
        self._page_bytes += len(member)
        return place

    def _with_capture(self, file: dict[str, Any]) -> dict[str, Any]:
        """Add what a browser has made of a page, and return where it is now."""
        place = msgspec.convert(file.get("raw"), RawLocation | None)
        if place is None:
            return file
        if not self._with_pages:
            return {**file, "raw": None}
        try:
            member = raw_pages.member(self._lpm.raw, place)
            check_capture(member, file["sha256"], _MAX_PAGE_BYTES)
        except (StoreError, ValueError):
            self.unreadable += 1
            return {**file, "raw": None}
        return {**file, "raw": self._add_member(member)}

    def manifest(self, since: float | None) -> Manifest:
        """Return the manifest of all that was written."""
        return Manifest(
            format="crawler bundle",
            version=VERSION,
            crawler=__version__,
            ledger=self._lpm.store.id,
            created_at=iso(self._lpm.now()),
            job=self._job.name if self._job else None,
            since=None if since is None else iso(since),
            results=self.results,
            pages=self.pages,
            members=tuple(self.members),
        )

    def _read_page(self, result: dict[str, Any]) -> bytes:
        """Return a result's page, empty if there is none to bundle."""
        place = msgspec.convert(result["raw"], RawLocation | None)
        if not self._with_pages or place is None:
            return b""
        if self._lpm.pages.is_given_up(place, self._job):
            return b""
        try:
            page = raw_pages.member(self._lpm.raw, place)
            check_page(page, result["raw_html_hash"], limit=_MAX_PAGE_BYTES)
        except (StoreError, ValueError):
            self.unreadable += 1
            return b""
        return page

    def _carried(self, task: int) -> Carried:
        row = self._lpm.results.carried(task)
        return Carried(**dict(zip(Carried.__struct_fields__, row, strict=True)))

    def flush(self) -> None:
        """Write the current part."""
        if self._records:
            self.write(RECORDS.format(self._number), b"".join(self._records))
        if self._page_bytes:
            self.write(PAGES.format(self._number), b"".join(self._pages))
        self._records, self._pages = [], []
        self._record_bytes = self._page_bytes = 0
        self._number += 1

    def write(self, name: str, data: bytes) -> None:
        """Write a member."""
        self._out.write(tar_header(name, len(data)))
        self._out.write(data)
        self._out.write(bytes(-len(data) % tarfile.BLOCKSIZE))
        self.members.append(member_of(name, data))


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a member, which depends on its name and size only."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def member_of(name: str, data: bytes) -> Member:
    """Return the manifest's entry for a member."""
    return Member(name, len(data), sha256(data).hexdigest())


def check_page(page: bytes, digest: str, limit: int) -> None:
    """Raise ValueError unless this is one whole stored page whose decoded body has that digest."""
    try:
        body = decode_stored(*raw_pages.unpack(page, limit + _MAX_HEADER_BYTES), limit)
    except FetchError as error:
        raise ValueError(str(error)) from None
    if sha256(body).hexdigest() != digest:
        raise ValueError("its body does not have the SHA-256 that its record says")


def check_capture(member: bytes, digest: str, limit: int) -> None:
    """Raise ValueError unless this is one whole stored screenshot or PDF with that digest."""
    if sha256(raw_pages.unpack_capture(member, limit + _MAX_HEADER_BYTES)).hexdigest() != digest:
        raise ValueError("it does not have the SHA-256 that its record says")


class Unbundled(msgspec.Struct, frozen=True):
    """What became of a bundle's results."""

    results: int
    new: int
    known: int
    open: int
    """Known tasks that have no result in this ledger."""
    pages: int
    added_pages: int
    """Pages that known results lacked here."""
    job: str | None
    checksum: str


def unbundle(
    lpm: LocalPersistenceManager,
    path: Path,
    max_body: int,
    stored: Callable[[list[str]], None] = lambda task_ids: None,
) -> Unbundled:
    """Verify a bundle, then store the results and pages that this ledger does not have yet.

    `stored` is called with the tasks of each part once they are stored, new or known.
    """
    try:
        if not path.exists():
            raise InputError(str(path), "there is no such file")
        if not path.is_file():
            raise InputError(str(path), "is not a file")
        with path.open("rb") as file:
            reader = _Reader(str(path), file, max_body)
            reader.verify()
            with maintenance_lock(lpm):
                return _store(lpm, path, reader, stored)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror or error})") from None


class _Reader:
    """Reads a bundle, which may be damaged or malicious."""

    manifest: Manifest
    checksum: str

    def __init__(self, name: str, file: BinaryIO, max_body: int) -> None:
        self._name, self._file, self._max_body = name, file, max_body

    def verify(self) -> None:
        """Read the whole bundle, and compare it with its manifest."""
        results = pages = 0
        for number, data, raw in self._parts():
            records = self._records(number, data)
            results += len(records)
            pages += self._check_pages(number, records, raw)
        manifest = self.manifest
        if (results, pages) != (manifest.results, manifest.pages):
            raise self._bad(
                f"has {results:,} results and {pages:,} pages, "
                f"but its manifest says {manifest.results:,} and {manifest.pages:,}"
            )

    def batches(self) -> Iterator[list[Packed]]:
        """Yield the results of each part with their pages; the bundle must be verified."""
        for number, data, raw in self._parts(self.manifest.members):
            yield [_unpacked(record, raw) for record in self._records(number, data)]

    def _bad(self, reason: str) -> InputError:
        return InputError(self._name, printable(reason)[:_MAX_REASON_LENGTH])

    def _parts(self, expected: Sequence[Member] = ()) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the number, records and pages of each part, then check the manifest against all
        members before it."""
        self._file.seek(0)
        seen: list[Member] = []
        number, records, manifest = 0, None, None
        for name, data in self._members():
            if manifest is not None:
                raise self._bad(f"has {name} after its manifest")
            if name != MANIFEST:
                member = member_of(name, data)
                if expected and [member] != list(expected[len(seen) : len(seen) + 1]):
                    raise self._bad(
                        "was changed while it was read; what was stored of it is sound; try again"
                    )
                seen.append(member)
            if records is not None and name != PAGES.format(number):
                yield number, records, b""
                records = None
            if records is not None:
                yield number, records, data
                records = None
            elif name == RECORDS.format(number + 1):
                number, records = number + 1, data
            elif name == MANIFEST:
                manifest = data
            else:
                raise self._bad(
                    f"has {name} where {RECORDS.format(number + 1)} or {MANIFEST} was expected"
                )
        if manifest is None:
            raise self._bad("has no manifest: it is truncated")
        self._read_manifest(manifest, tuple(seen))

    def _read_manifest(self, data: bytes, seen: tuple[Member, ...]) -> None:
        try:
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            version = msgspec.json.decode(fields.get("version", b"0"), type=int)
            if version > VERSION:
                raise self._bad(f"was written by a newer version of crawler (format {version})")
            self.manifest = msgspec.json.decode(data, type=Manifest)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self._bad(f"its manifest cannot be read ({error})") from None
        for member, listed in zip(seen, self.manifest.members, strict=False):
            if member != listed:
                raise self._bad(f"{member.name} is not what the manifest says: the file is damaged")
        if len(seen) != len(self.manifest.members):
            raise self._bad(
                f"has {len(seen)} members, but its manifest says {len(self.manifest.members)}"
            )
        self.checksum = sha256(data).hexdigest()

    def _members(self) -> Iterator[tuple[str, bytes]]:
        options: dict[int, int] = {DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
        try:
            with ZstdFile(self._file, options=options) as tar:
                while (header := _exactly(tar, tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
                    name, size = self._read_header(header)
                    data = _exactly(tar, size)
                    if any(_exactly(tar, -size % tarfile.BLOCKSIZE)):
                        raise self._bad(f"has something hidden after {name}")
                    yield name, data
                if any(_exactly(tar, tarfile.BLOCKSIZE)) or tar.read(1):
                    raise self._bad("has something after its end")
        except ZstdError as error:
            raise self._bad(f"is not a bundle, or is damaged ({error})") from None
        except EOFError:
            raise self._bad("is truncated") from None

    def _read_header(self, header: bytes) -> tuple[str, int]:
        """Return the name and size of a member; its header must be exactly the writer's."""
        try:
            info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
            if info.size > _MAX_MEMBER_OVERHEAD + self._max_body + 2 * MAX_FILE_BYTES:
                raise self._bad(
                    f"{info.name} has {info.size:,} bytes, more than a bundle's members have; "
                    "if its pages are that large, raise CRAWLER_MAX_BODY"
                )
            if header == tar_header(info.name, info.size):
                return info.name, info.size
        except (tarfile.TarError, ValueError):
            pass
        raise self._bad(
            "is not a bundle, or is damaged (a member that `results bundle` does not write)"
        )

    def _records(self, number: int, data: bytes) -> list[Record]:
        lines, name = data.split(b"\n"), RECORDS.format(number)
        if lines.pop() or not 0 < len(lines) <= BATCH_SIZE:
            raise self._bad(f"{name} has not between 1 and {BATCH_SIZE} whole lines")
        return [self._record(line, name, place) for place, line in enumerate(lines, 1)]

    def _record(self, line: bytes, name: str, place: int) -> Record:
        try:
            record = msgspec.json.decode(line, type=Record)
            urls.parse(record.url)
            for file in record.files:
                urls.parse(file.url)
        except (msgspec.DecodeError, ValueError, UrlError, RecursionError) as error:
            raise self._bad(f"{name}, line {place}: {error}") from None
        return record

    def _check_pages(self, number: int, records: Sequence[Record], raw: bytes) -> int:
        """Check the pages of a part, which must follow each other. Returns how many there are."""
        end = pages = 0
        for line, record in enumerate(records, 1):
            of_files = max(self._max_body, MAX_FILE_BYTES)
            members = [
                (
                    file.raw,
                    f"the {file.field}",
                    partial(check_capture, digest=file.sha256 or "", limit=of_files),
                )
                for file in record.captures
                if file.raw
            ]
            if record.raw:
                limit = of_files if record.method == FILE else self._max_body
                check = partial(check_page, digest=record.raw_html_hash, limit=limit)
                members.insert(0, (record.raw, "the page", check))
                pages += 1
            for place, what, check in members:
                where = f"{what} of {RECORDS.format(number)}, line {line},"
                begin, end = end, end + place.length
                is_next = (place.segment, place.offset) == (PAGES.format(number), begin)
                if not is_next or not begin < end <= len(raw):
                    raise self._bad(f"{where} is not where its record says")
                try:
                    check(raw[begin:end])
                except ValueError as error:
                    raise self._bad(f"{where} cannot be used: {error}") from None
        if end != len(raw):
            raise self._bad(f"{PAGES.format(number)} holds more than the pages of its records")
        return pages


def _unpacked(record: Record, raw: bytes) -> Packed:
    captures = [_cut(raw, file.raw) for file in record.captures if file.raw]
    page = _cut(raw, record.raw) if record.raw else None
    return Packed(record, page, captures)


def _cut(raw: bytes, place: RawLocation) -> bytes:
    return raw[place.offset : place.offset + place.length]


def _exactly(tar: ZstdFile, size: int) -> bytes:
    data = tar.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _store(
    lpm: LocalPersistenceManager, path: Path, reader: _Reader, stored: Callable[[list[str]], None]
) -> Unbundled:
    source, manifest = printable(str(path.absolute())), reader.manifest
    key = f"bundle:{reader.checksum}"
    was_broken_off = lpm.imports.is_open(key)
    job = None
    new = added_pages = without_result = 0
    with ExitStack() as importing:
        for batch in reader.batches():
            known = lpm.results.known([each.record.task_id for each in batch])
            without_result += sum(not has_result for has_result in known.values())
            fresh = {
                each.record.task_id: each for each in batch if each.record.task_id not in known
            }
            if job is None and (fresh or was_broken_off):
                job = lpm.imports.open_job(
                    key=key,
                    name=printable(manifest.job or path.name)[:_MAX_JOB_NAME_LENGTH],
                    queue="default",
                    source="bundle",
                    source_file=source,
                    batch_size=100,
                    now=lpm.now(),
                    checksum=reader.checksum,
                )
                importing.enter_context(lpm.importing(job))
            if fresh and job:
                packed = _each_file_once(lpm, list(fresh.values()))
                insert = _Insert(packed, job, source, reader, lpm.now())
                lpm.save_carried([_members(each) for each in packed], insert)
                failpoint("unbundled")
            others = [each for each in batch if each.record.task_id in known]
            added_pages += _add_pages(lpm, others, reader, source)
            stored([each.record.task_id for each in batch])
            new += len(fresh)
        if job:
            lpm.imports.close(job, lpm.now(), reader.checksum, manifest.results)
            lpm.jobs.finalise(lpm.now())
    lpm.files.secure()
    return Unbundled(
        results=manifest.results,
        new=new,
        known=manifest.results - new,
        open=without_result,
        pages=manifest.pages,
        added_pages=added_pages,
        job=job.name if job else None,
        checksum=reader.checksum,
    )


def _members(packed: Packed) -> list[bytes]:
    return [*filter(None, [packed.page]), *packed.captures]


def _each_file_once(lpm: LocalPersistenceManager, fresh: Sequence[Packed]) -> list[Packed]:
    """Return results without the bytes of files that this ledger has, or that come twice."""
    found: list[Packed] = []
    seen: set[str] = set()
    for each in fresh:
        digest, is_new = each.record.raw_html_hash, True
        if each.record.method == FILE and each.page:
            stored = lpm.pages.stored_file(lpm.store.durable, digest)
            is_new = stored is None and digest not in seen
            seen.add(digest)
        found.append(each if is_new else each._replace(page=None))
    return found


def _add_pages(
    lpm: LocalPersistenceManager,
    known: Sequence[Packed],
    reader: _Reader,
    source: str,
) -> int:
    """Store the pages that known results lack, as after a bundle without pages. Returns how
    many."""
    pages = {
        (each.record.task_id, each.record.raw_html_hash): each
        for each in known
        if each.page is not None
    }
    tasks = dict(pages.keys())
    lacking = [
        (task, pages[task_id, digest])
        for task, task_id, digest, segment, end in lpm.results.digests(list(tasks))
        if tasks[task_id] == digest  # otherwise it is another page of that URL
        and not (segment and lpm.pages.has_segment(segment, end))
    ]

    def update(db: Database, places: Sequence[Sequence[RawLocation]]) -> list[int]:
        for (task, packed), (place, *others) in zip(lacking, places, strict=True):
            set_place(db, task, place)
            _link_captures(db, task, packed.record, others)
            detail = {"file": source, "checksum": reader.checksum, "raw": place}
            timeline.note(db, task, "page unbundled", detail, lpm.now())
        return [task for task, _ in lacking]

    if lacking:
        lpm.save_carried([_members(packed) for _, packed in lacking], update)
        failpoint("page-unbundled")
    return len(lacking)


def _link_captures(db: Database, task: int, record: Record, places: Sequence[RawLocation]) -> None:
    """Link what browsers have made, and where that is in this ledger."""
    at = iter(places)
    result_files.link_captures(
        db, task, [file.moved(next(at) if file.raw else None) for file in record.captures]
    )


class _Insert:
    """Inserts results into the ledger, held until a command sends them to a Gateway."""

    def __init__(
        self, packed: Sequence[Packed], job: Job, source: str, reader: _Reader, now: float
    ) -> None:
        self._packed, self._job, self._source = packed, job, source
        self._reader, self._now = reader, now
        self._files: dict[str, RawLocation] = {}
        """By digest: files of this transaction."""

    def __call__(self, db: Database, places: Sequence[Sequence[RawLocation]]) -> list[int]:
        tasks = []
        for packed, found in zip(self._packed, places, strict=True):
            own = found[0] if packed.page else None
            tasks.append(self._insert(db, packed.record, own))
            others = found[1 if packed.page else 0 :]
            _link_captures(db, tasks[-1], packed.record, others)
        add_to_size(db, self._job, len(tasks))
        return tasks

    def _place_of_file(
        self, db: Database, record: Record, place: RawLocation | None
    ) -> RawLocation | None:
        """Return where a file is: here, or where the same bytes were stored before."""
        digest = record.raw_html_hash
        if place:
            self._files[digest] = place
        elif record.raw:
            place = self._files.get(digest) or result_files.stored_place(db, digest)
        return place

    def _insert(self, db: Database, record: Record, place: RawLocation | None) -> int:
        address, carried = urls.parse(record.url), record.carried
        if record.method == FILE:
            place = self._place_of_file(db, record, place)
        data = msgspec.json.encode(record.data)
        task = {
            "task_id": record.task_id,
            "external_id": carried.external_id,
            "job_id": self._job.id,
            "url": address.url,
            "url_key": address.key,
            "domain": address.domain,
            "parcel_id": urls.without_secrets(record.parcel_id or ""),
            "status": "completed",
            "queue": record.queue,
            "priority": record.priority,
            "deadline": NO_DEADLINE,
            "attempts": record.attempts,
            "source": "bundle",
            "source_file": self._source,
            "input": encoded_input(record.input),
            "imported_at": carried.imported_at,
            "completed_at": carried.completed_at,
            "role": record.role,
            "depth": record.depth,
            "parent": record.parent,
            "method": record.method,
            "body": record.body,
        }
        result = {
            "record": data.decode(),
            "final_url": urls.without_secrets(record.final_url),
            "status_code": record.status_code,
            "content_type": carried.content_type,
            "verdict": record.verdict,
            "bytes": carried.bytes,
            "body_sha256": record.raw_html_hash,
            "fetch_ms": carried.fetch_ms,
            "parse_ms": record.parse_duration_ms,
            "parser": record.parser.name,
            "parser_version": record.parser.version,
            "raw_segment": place and place.segment,
            "raw_offset": place and place.offset,
            "raw_length": place and place.length,
            "scraped_at": record.scraped_at.timestamp(),
            "site": record.site.name,
            "site_version": record.site.version,
            "invalid": encoded_reasons(record.invalid),
        }
        detail: dict[str, Any] = {
            "file": self._source,
            "checksum": self._reader.checksum,
            "ledger": self._reader.manifest.ledger,
            "job": record.job,
            "record_crc32": crc32(data),
        }
        if carried.external_id is not None:
            detail["external_id"] = carried.external_id
        if place:
            detail["raw"] = place
        number = insert_carried(db, task, result, detail, self._now)
        if record.files:
            named, _ = result_files.split(record.task_id, record.files)
            result_files.link(db, number, [(file.field, urls.parse(file.url)) for file in named])
        return number
