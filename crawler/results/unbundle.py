"""A bundle's results into this ledger, once all of it was found to be sound."""

import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import msgspec

from crawler import urls
from crawler.config import failpoint
from crawler.db import timeline
from crawler.db.connection import Database
from crawler.db.imports import add_to_size
from crawler.db.results import insert_carried, set_place
from crawler.errors import InputError, UrlError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import NO_DEADLINE, Job, Raw, encoded_input
from crawler.results.archive import BATCH, keeping
from crawler.results.bundle import (
    MANIFEST,
    PAGES,
    RECORDS,
    VERSION,
    Manifest,
    Member,
    Record,
    check_page,
    entry,
    tar_header,
)

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdError, ZstdFile
else:
    from backports.zstd import DecompressionParameter, ZstdError, ZstdFile

_ROOM = 32_000_000
"""What a member may have beyond one page of the largest size."""
_WINDOW_LOG = 23
"""The writer's zstd frames need 2 MB of history; one that asks for more than 8 MB is none of
ours."""


class Unbundled(msgspec.Struct, frozen=True):
    """What became of a bundle's results: new, known, or (of the known) without a result in this
    ledger."""

    results: int
    new: int
    known: int
    open: int
    pages: int
    added_pages: int
    """Pages of known results that were lacking here."""
    job: str | None
    checksum: str


def unbundle(
    lpm: LocalPersistenceManager,
    path: Path,
    max_body: int,
    stored: Callable[[list[str]], None] = lambda task_ids: None,
) -> Unbundled:
    """Store the results and pages of a bundle that this ledger does not have yet, once all of it
    was found to be sound.

    `stored` is told of each part's tasks once they are here, whether they were new or known.
    """
    try:
        if not path.is_file():
            raise InputError(
                str(path), "is not a file" if path.exists() else "there is no such file"
            )
        with path.open("rb") as file:
            reader = _Reader(str(path), file, max_body)
            reader.verify()
            with keeping(lpm):
                return _store(lpm, path, reader, stored)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror or error})") from None


class _Reader:
    """A bundle that may be damaged, or made to do damage."""

    manifest: Manifest
    checksum: str

    def __init__(self, name: str, file: BinaryIO, max_body: int) -> None:
        self._name, self._file, self._max_body = name, file, max_body

    def verify(self) -> None:
        """Read all of it and compare it with its manifest."""
        results = pages = 0
        for number, data, raw in self._parts():
            records = self._records(number, data)
            results += len(records)
            pages += self._check_pages(number, records, raw)
        manifest = self.manifest
        if (results, pages) != (manifest.results, manifest.pages):
            raise self._bad(
                f"has {results:,} results and {pages:,} pages, but its manifest says {manifest.results:,} and "
                f"{manifest.pages:,}"
            )

    def batches(self) -> Iterator[list[tuple[Record, bytes | None]]]:
        """The results with their pages, once they are verified."""
        for number, data, raw in self._parts(self.manifest.members):
            yield [
                (
                    record,
                    raw[record.raw.offset : record.raw.offset + record.raw.length]
                    if record.raw
                    else None,
                )
                for record in self._records(number, data)
            ]

    def _bad(self, reason: str) -> InputError:
        return InputError(self._name, printable(reason)[:500])

    def _parts(self, expected: Sequence[Member] = ()) -> Iterator[tuple[int, bytes, bytes]]:
        """The records and pages of each part; then the manifest must be that of all members before
        it."""
        self._file.seek(0)
        seen: list[Member] = []
        number, records, manifest = 0, None, None
        for name, data in self._members():
            if manifest is not None:
                raise self._bad(f"has {name} behind its manifest")
            if name != MANIFEST:
                seen.append(entry(name, data))
                if expected and [seen[-1]] != list(expected[len(seen) - 1 : len(seen)]):
                    raise self._bad(
                        "was changed while it was read; what was stored of it is sound; try again"
                    )
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
            raise self._bad("has no manifest: it is cut off")
        self._read_manifest(manifest, tuple(seen))

    def _read_manifest(self, data: bytes, seen: tuple[Member, ...]) -> None:
        try:
            version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get(
                "version", msgspec.Raw(b"0")
            )
            if msgspec.json.decode(version, type=int) > VERSION:
                raise self._bad(
                    f"was written by a newer version of crawler (format {bytes(version).decode()})"
                )
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
        try:
            with ZstdFile(
                self._file, options={DecompressionParameter.window_log_max: _WINDOW_LOG}
            ) as tar:
                while (header := _exactly(tar, tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
                    name, size = self._read_header(header)
                    data = _exactly(tar, size)
                    if any(_exactly(tar, -size % tarfile.BLOCKSIZE)):
                        raise self._bad(f"has something hidden behind {name}")
                    yield name, data
                if any(_exactly(tar, tarfile.BLOCKSIZE)) or tar.read(1):
                    raise self._bad("has something behind its end")
        except ZstdError as error:
            raise self._bad(f"is no bundle, or is damaged ({error})") from None
        except EOFError:
            raise self._bad("is cut off") from None

    def _read_header(self, header: bytes) -> tuple[str, int]:
        """The name and size of a member whose header is, to the last bit, the one that the writer
        gives it."""
        try:
            info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
            if info.size > _ROOM + self._max_body:
                raise self._bad(
                    f"{info.name} has {info.size:,} bytes, more than a bundle's members have; where its pages are "
                    "that large, raise CRAWLER_MAX_BODY"
                )
            if header == tar_header(info.name, info.size):
                return info.name, info.size
        except (tarfile.TarError, ValueError):
            pass
        raise self._bad(
            "is no bundle, or is damaged (a member that `results bundle` does not write)"
        )

    def _records(self, number: int, data: bytes) -> list[Record]:
        lines = data.split(b"\n")
        if lines.pop() or not 0 < len(lines) <= BATCH:
            raise self._bad(f"{RECORDS.format(number)} has not between 1 and {BATCH} whole lines")
        return [
            self._record(line, RECORDS.format(number), place) for place, line in enumerate(lines, 1)
        ]

    def _record(self, line: bytes, name: str, place: int) -> Record:
        try:
            record = msgspec.json.decode(line, type=Record)
            urls.parse(record.url)
        except (msgspec.DecodeError, ValueError, UrlError, RecursionError) as error:
            raise self._bad(f"{name}, line {place}: {error}") from None
        return record

    def _check_pages(self, number: int, records: Sequence[Record], raw: bytes) -> int:
        end = pages = 0
        for place, record in enumerate(records, 1):
            if record.raw is None:
                continue
            where = f"the page of {RECORDS.format(number)}, line {place},"
            begin, end = end, end + record.raw.length
            if (record.raw.segment, record.raw.offset) != (
                PAGES.format(number),
                begin,
            ) or not begin < end <= len(raw):
                raise self._bad(f"{where} is not where its record says")
            try:
                check_page(raw[begin:end], record.raw_html_hash, self._max_body)
            except ValueError as error:
                raise self._bad(f"{where} cannot be used: {error}") from None
            pages += 1
        if end != len(raw):
            raise self._bad(f"{PAGES.format(number)} holds more than the pages of its records")
        return pages


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
    begun = lpm.imports.is_open(key)
    job, new, added, open_ = None, 0, 0, 0
    with ExitStack() as importing:
        for batch in reader.batches():
            known = lpm.results.known([record.task_id for record, _ in batch])
            open_ += sum(not has_result for has_result in known.values())
            fresh = {
                record.task_id: (record, page)
                for record, page in batch
                if record.task_id not in known
            }
            if job is None and (fresh or begun):
                job = lpm.imports.open_job(
                    key=key,
                    name=printable(manifest.job or path.name)[:100],
                    queue="default",
                    source="bundle",
                    source_file=source,
                    batch_size=100,
                    now=lpm.now(),
                    checksum=reader.checksum,
                )
                importing.enter_context(lpm.importing(job))
            if fresh and job:
                insert = _Insert(
                    [record for record, _ in fresh.values()], job, source, reader, lpm.now()
                )
                lpm.save_carried([page for _, page in fresh.values()], insert)
                failpoint("unbundled")
            added += _add_pages(
                lpm,
                [(record, page) for record, page in batch if record.task_id in known],
                reader,
                source,
            )
            stored([record.task_id for record, _ in batch])
            new += len(fresh)
        if job:
            lpm.imports.close(job, lpm.now(), reader.checksum, manifest.results)
            lpm.jobs.finalise(lpm.now())
    lpm.files.secure()
    known_count = manifest.results - new
    name = job.name if job else None
    return Unbundled(
        manifest.results, new, known_count, open_, manifest.pages, added, name, reader.checksum
    )


def _add_pages(
    lpm: LocalPersistenceManager,
    known: Sequence[tuple[Record, bytes | None]],
    reader: _Reader,
    source: str,
) -> int:
    """Take in the pages that known results lack, as after a bundle without pages; returns how
    many."""
    pages = {
        (record.task_id, record.raw_html_hash): page for record, page in known if page is not None
    }
    tasks = dict(pages.keys())
    lacking = [
        (task, pages[task_id, digest])
        for task, task_id, digest, segment, end in lpm.results.digests(list(tasks))
        if tasks[task_id] == digest  # else it is another page of that URL
        and not (segment and lpm.pages.has_segment(segment, end))
    ]

    def update(db: Database, places: Sequence[Raw | None]) -> list[int]:
        for (task, _), place in zip(lacking, places, strict=True):
            assert place
            set_place(db, task, place)
            detail = {"file": source, "checksum": reader.checksum, "raw": place}
            timeline.note(db, task, "page unbundled", detail, lpm.now())
        return [task for task, _ in lacking]

    if lacking:
        lpm.save_carried([page for _, page in lacking], update)
        failpoint("page-unbundled")
    return len(lacking)


class _Insert:
    """Puts results into the ledger as its own, held until a command sends them to a Gateway."""

    def __init__(
        self, records: Sequence[Record], job: Job, source: str, reader: _Reader, now: float
    ) -> None:
        self._records, self._job, self._source, self._reader, self._now = (
            records,
            job,
            source,
            reader,
            now,
        )

    def __call__(self, db: Database, places: Sequence[Raw | None]) -> list[int]:
        tasks = [
            self._insert(db, record, place)
            for record, place in zip(self._records, places, strict=True)
        ]
        add_to_size(db, self._job, len(tasks))
        return tasks

    def _insert(self, db: Database, record: Record, place: Raw | None) -> int:
        address, carried = urls.parse(record.url), record.carried
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
        return insert_carried(db, task, result, detail, self._now)
