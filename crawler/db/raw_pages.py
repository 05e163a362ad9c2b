"""Raw pages: stored in segments of raw/, found again by the results that name them.

A segment is a WARC 1.1 file with one gzip member a record. Pages are appended and synced once a
group; what a killed writer left behind the committed end is cut.
"""

import contextlib
import itertools
import os
import stat
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from isal import isal_zlib

from crawler import __version__
from crawler.config import program
from crawler.db import jobs, result_files
from crawler.db.connection import Database
from crawler.db.pending import later_results
from crawler.db.result_files import LinkedFile
from crawler.db.results import Results, commit_segment
from crawler.db.store import Part, Store
from crawler.errors import StoreError
from crawler.files import sync_and_rename
from crawler.locks import try_lock, wait_lock
from crawler.models import (
    FILE,
    UNCHANGED,
    Capture,
    Job,
    Outcome,
    Page,
    RawLocation,
    TaskStatus,
)

SEGMENT_LIMIT = 1 << 30
SEGMENT_AGE_S = 86400.0
"""No page goes into a segment older than a day, so that `prune` can remove whole ones."""
_QUARANTINE = "-quarantine-"
"""Part of the name of segments for walls and error pages, which are kept apart from good ones."""
SMALL = 64_000
"""Pages up to this many bytes are copied and compressed at once: in pieces it takes longer."""
GZIP = b"\x1f\x8b\x08\x00"
"""The beginning of every member, which has no flags."""
_STAMP = "%Y%m%dT%H%M%S"
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_DROPPED = frozenset({"transfer-encoding"})
"""Headers that speak of the connection, not of the body that is stored."""


class SegmentWriter:
    """Appends pages to a segment that no other process writes to."""

    def __init__(
        self,
        folder: Path,
        committed: Callable[[str], int],
        clock: Callable[[], float] = time.time,
        quarantine: bool = False,
        may_cut: Callable[[], bool] = lambda: True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._clock, self._quarantine = folder, clock, quarantine
        adopted = _adopt(folder, committed, clock(), quarantine, may_cut)
        self.name, self._fd, self.end = adopted or _create(folder, clock(), quarantine)
        self.committed = adopted is not None
        """Whether the ledger knows the segment; otherwise `close` removes it."""

    def append(self, members: Sequence[bytes]) -> list[RawLocation]:
        """Write members and wait until they are on the disk.

        They count once the ledger has committed `end`.
        """
        now = self._clock()
        if self.end >= SEGMENT_LIMIT or not _young(self.name, now):
            fresh = _create(self._folder, now, self._quarantine)
            self.close()
            self.name, self._fd, self.end = fresh
            self.committed = False
        places, offset = [], self.end
        for member in members:
            places.append(RawLocation(segment=self.name, offset=offset, length=len(member)))
            offset += len(member)
        _write(self._fd, b"".join(members), self.end)
        _sync(self._fd)
        self.end = offset
        return places

    def close(self) -> None:
        """Unlock the segment: another writer may continue it."""
        if not self.committed:
            (self._folder / self.name).unlink(missing_ok=True)
        os.close(self._fd)


def cut_uncommitted(
    folder: Path, committed: Callable[[str], int], may_cut: Callable[[], bool]
) -> None:
    """Cut what a killed writer left behind the last committed record, so that readers find whole
    records only.

    `may_cut` is asked before that: an older copy of the ledger does not know the last pages.
    """
    for path in _segments(folder):
        fd = _lock(path)
        if fd is not None:
            # Asked under the lock: until then its writer may commit more.
            end = committed(path.name)
            if os.fstat(fd).st_size > end and may_cut():
                if end:
                    os.ftruncate(fd, end)
                else:
                    path.unlink(missing_ok=True)
            os.close(fd)


def read(folder: Path, raw: RawLocation, url: str = "") -> tuple[str, bytes]:
    """The HTTP header block and the body (as received) of a stored page; that of this URL, if one
    is given."""
    try:
        return unpack(member(folder, raw), 1 << 30, url)
    except ValueError as error:
        raise StoreError(
            f"{folder / raw.segment}: the page at byte {raw.offset} cannot be read ({error})"
        ) from error


def read_capture(folder: Path, place: RawLocation) -> bytes:
    """A stored screenshot or PDF."""
    try:
        return unpack_capture(member(folder, place))
    except ValueError as error:
        raise StoreError(
            f"{folder / place.segment}: the file at byte {place.offset} cannot be read ({error})"
        ) from error


def member(folder: Path, raw: RawLocation) -> bytes:
    """A stored page byte for byte, as the gzip member that it is."""
    path = folder / raw.segment
    try:
        with path.open("rb") as file:
            file.seek(raw.offset)
            return file.read(raw.length)
    except OSError as error:
        raise StoreError(
            f"{path}: the page at byte {raw.offset} cannot be read ({error})"
        ) from error


def warcinfo(name: str) -> bytes:
    """The gzip member that a WARC file of this name begins with."""
    fields = (
        ("WARC-Type", "warcinfo"),
        ("WARC-Filename", name),
        ("WARC-Date", _date(datetime.now(UTC).timestamp())),
        ("WARC-Record-ID", _new_id()),
        ("Content-Type", "application/warc-fields"),
    )
    return _member(
        fields, f"software: crawler/{__version__}\r\nformat: WARC File Format 1.1\r\n".encode()
    )


def unpack(data: bytes, limit: int, url: str = "") -> tuple[str, bytes]:
    """The HTTP header block and the body of one member; ValueError where it is not one whole
    response, too large, or that of another URL."""
    fields, head, body = response(_inflated(data, limit))
    if url and f"WARC-Target-URI: {url}".encode() not in fields:
        raise ValueError(f"it is not that of {url}")
    return head, body


def unpack_capture(data: bytes, limit: int = 1 << 30) -> bytes:
    """The picture or document of one member; ValueError where it is not one whole resource."""
    return _block(_inflated(data, limit), b"resource")[1]


def _inflated(data: bytes, limit: int) -> bytes:
    inner = zlib.decompressobj(wbits=31)
    try:
        record = inner.decompress(data, limit)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inner.eof or inner.unused_data:
        if len(record) < limit:
            raise ValueError("not one whole gzip member")
        raise ValueError(f"more than {limit:,} bytes")
    return record


def _block(record: bytes, kind: bytes) -> tuple[list[bytes], bytes]:
    """The WARC fields and the block of a record; ValueError where it is not whole, or of another
    type."""
    fields, _, block = record.partition(b"\r\n\r\n")
    lines = fields.split(b"\r\n")
    if (
        lines[0] != b"WARC/1.1"
        or b"WARC-Type: " + kind not in lines
        or not block.endswith(b"\r\n\r\n")
    ):
        raise ValueError(f"not a WARC {kind.decode()}")
    if b"Content-Length: %d" % (len(block) - 4) not in lines:
        raise ValueError("not as long as it says")
    return lines, block[:-4]


def response(record: bytes) -> tuple[list[bytes], str, bytes]:
    """The WARC fields, the HTTP header block and the body of a record; ValueError where it is no
    whole response."""
    lines, http = _block(record, b"response")
    head, found, body = http.partition(b"\r\n\r\n")
    if not found:
        raise ValueError("no HTTP headers")
    return lines, head.decode("latin-1"), body


def older(folder: Path, before: float) -> list[Path]:
    """The segments that were last written before that time."""
    old = []
    for path in _segments(folder):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                old.append(path)
    return old


@contextmanager
def locked(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Those of the segments that no writer has; nobody gets them meanwhile."""
    held: dict[Path, int] = {}
    try:
        for path in paths:
            fd = _lock(path)
            if fd is not None:
                held[path] = fd
        yield list(held)
    finally:
        for fd in held.values():
            os.close(fd)


def _segments(folder: Path) -> list[Path]:
    """The segments by age; what somebody else has put into the folder is none."""
    return sorted(path for path in folder.glob("[!.]*.warc.gz") if _begun(path.name) is not None)


def _begun(name: str) -> float | None:
    """When a segment was begun, by its name."""
    try:
        return datetime.strptime(name.partition("-")[0], _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _young(name: str, now: float) -> bool:
    begun = _begun(name)
    return begun is not None and now - begun < SEGMENT_AGE_S


def _adopt(
    folder: Path,
    committed: Callable[[str], int],
    now: float,
    quarantine: bool,
    may_cut: Callable[[], bool],
) -> tuple[str, int, int] | None:
    for path in _segments(folder):
        if not _young(path.name, now) or (_QUARANTINE in path.name) != quarantine:
            continue
        fd = _lock(path)
        if fd is None:
            continue
        end, size = committed(path.name), os.fstat(fd).st_size
        if 0 < end < SEGMENT_LIMIT and size >= end and (size == end or may_cut()):
            os.ftruncate(fd, end)
            return path.name, fd, end
        # Full, or shorter than the ledger knows it: damaged, and not to be written over.
        os.close(fd)
    return None


def _create(folder: Path, now: float, quarantine: bool) -> tuple[str, int, int]:
    kind = _QUARANTINE if quarantine else "-"
    name = f"{datetime.fromtimestamp(now, UTC):{_STAMP}}{kind}{uuid.uuid4().hex[:8]}.warc.gz"
    hidden = folder / f".{name}"  # until it is locked nobody may take it for a dead writer's
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        wait_lock(fd)
        head = warcinfo(name)
        _write(fd, head, 0)
        sync_and_rename(fd, hidden, folder / name)
    except OSError:
        os.close(fd)
        hidden.unlink(missing_ok=True)
        raise
    return name, fd, len(head)


def _lock(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    if not try_lock(fd):
        os.close(fd)
        return None
    return fd


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def packed(page: Page, digest: str, id_: str = "", beside: str = "") -> bytes:
    """A page as the gzip member that a segment holds; `digest` is the sha256 of its body as
    received. `beside` is the id of the response that a rendered page came from."""
    lines = [f"HTTP/1.1 {page.status} {page.reason}".rstrip(" ")]
    lines += [f"{name}: {value}" for name, value in page.headers if name.lower() not in _DROPPED]
    # latin-1: the bytes that came.
    http = "\r\n".join(lines).encode("latin-1", "backslashreplace") + b"\r\n\r\n"
    fields = (
        ("WARC-Type", "response"),
        ("WARC-Target-URI", page.final_url),
        ("WARC-Date", _date(page.fetched_at)),
        ("WARC-Record-ID", id_ or _new_id()),
        ("WARC-Payload-Digest", f"sha256:{digest}"),
        ("Content-Type", "application/http;msgtype=response"),
        *([("WARC-Concurrent-To", beside)] * bool(beside)),
    )
    return _member(fields, http, page.raw)


def packed_capture(page: Page, capture: Capture, digest: str) -> bytes:
    """What a browser has made of a page, as the gzip member that a segment holds. It has a URI of
    its own: archives would show it in the place of the page."""
    fields = (
        ("WARC-Type", "resource"),
        ("WARC-Target-URI", f"urn:{capture.name}:{page.final_url}"),
        ("WARC-Date", _date(page.fetched_at)),
        ("WARC-Record-ID", _new_id()),
        ("WARC-Payload-Digest", f"sha256:{digest}"),
        ("Content-Type", capture.type),
    )
    return _member(fields, capture.body)


def _packed_with_response(outcome: Outcome, page: Page, digest: str) -> list[bytes]:
    """A page as gzip members; that of a browser comes behind the response that it came from."""
    if page.raw is not page.body:
        digest = sha256(page.raw).hexdigest()
    if not outcome.rendering:
        return [packed(page, digest)]
    id_, response = _new_id(), outcome.rendering.response
    before = packed(response, sha256(response.raw).hexdigest(), id_)
    return [before, packed(page, digest, beside=id_)]


def _new_id() -> str:
    return f"<urn:uuid:{uuid.uuid4()}>"


def _member(fields: Sequence[tuple[str, str]], *block: bytes) -> bytes:
    lines = [
        "WARC/1.1",
        *[f"{name}: {value}" for name, value in fields],
        f"Content-Length: {sum(map(len, block))}",
    ]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    compressor = isal_zlib.compressobj(1, wbits=31)
    if sum(map(len, block)) <= SMALL:
        return compressor.compress(b"".join([head, *block, b"\r\n\r\n"])) + compressor.flush()
    # A large page is not copied first.
    pieces = [compressor.compress(part) for part in (head, *block, b"\r\n\r\n")]
    return b"".join([*pieces, compressor.flush()])


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def is_good_file(outcome: Outcome) -> bool:
    """Whether an attempt has brought an image or a document that a record names."""
    return (
        outcome.task.method == FILE
        and outcome.status is TaskStatus.COMPLETED
        and outcome.verdict != UNCHANGED
    )


# The pages of results


class MissingSegment(NamedTuple):
    """A segment that is not on the disk up to that byte, and what to say of it."""

    name: str
    end: int
    what: str


class StoredPage(NamedTuple):
    """Where the page of an outcome is, and what a browser has made of it besides."""

    place: RawLocation | None
    captures: tuple[LinkedFile, ...] = ()


class RawPages(Part):
    """Appends pages to segments, reads them, and finds those that are gone.

    `keep` says which pages are stored: all, errors or none.
    """

    _store: Store

    def __init__(self, store: Store, keep: str) -> None:
        super().__init__(store)
        self._folder, self._keep = store.raw, keep
        self._results = Results(store)
        self._writers: dict[bool, SegmentWriter] = {}
        """Of good pages (False) and of those in quarantine (True)."""
        self._is_newest: bool | None = None
        store.on_close(self._close)

    # Writing

    def append_outcomes(
        self, outcomes: Sequence[Outcome], digests: Sequence[str]
    ) -> list[StoredPage]:
        """Store the pages of outcomes that are to be kept; says where each is. A file whose bytes
        are stored already is not stored again."""
        good: list[list[bytes]] = [[] for _ in outcomes]
        walls = [list[bytes]() for _ in outcomes]
        captures: list[list[tuple[Capture, str]]] = [[] for _ in outcomes]
        """With their digests; they are the last of their outcome's members."""
        shared: list[RawLocation | None] = [None] * len(outcomes)
        first: dict[str, int] = {}
        """By digest: the first of these files with it."""
        twins: dict[int, int] = {}
        for at, outcome in enumerate(outcomes):
            page, digest = outcome.page, digests[at]
            if page and is_good_file(outcome):
                twins[at] = first.setdefault(digest, at)
                if twins[at] == at:
                    shared[at] = self.stored_file(self._db, digest)
                if twins[at] != at or shared[at]:
                    continue
            if page and self._keeps(outcome):
                members = walls if outcome.quarantine else good
                members[at] += _packed_with_response(outcome, page, digest)
            if page and outcome.rendering and outcome.status is TaskStatus.COMPLETED:
                for capture in outcome.rendering.captures:
                    captures[at].append((capture, sha256(capture.body).hexdigest()))
                good[at] += [packed_capture(page, *each) for each in captures[at]]
        # One append for each kind: another one might begin another segment.
        found: list[StoredPage] = []
        for at, (kept, kept_walls) in enumerate(
            zip(self.append(good), self.append(walls, quarantine=True), strict=True)
        ):
            count = len(kept) - len(captures[at])
            own = [*kept[:count], *kept_walls]
            stored = [
                LinkedFile.captured(page, *capture, place)
                for capture, place in zip(captures[at], kept[count:], strict=True)
                if (page := outcomes[at].page)
            ]
            found.append(StoredPage(own[-1] if own else shared[at], tuple(stored)))
        return [found[twins.get(at, at)] for at in range(len(found))]

    def stored_file(self, db: Database, digest: str) -> RawLocation | None:
        """Where a file with these bytes is stored; None where it is not, or not any more."""
        place = result_files.stored_place(db, digest)
        if place and self.has_segment(place.segment, place.offset + place.length):
            return place
        return None

    def is_writing(self, segment: str) -> bool:
        """Whether this process appends to a segment: then nobody removes it."""
        return any(writer.name == segment for writer in self._writers.values())

    def append(
        self, groups: Sequence[Sequence[bytes]], quarantine: bool = False
    ) -> list[list[RawLocation]]:
        """Store groups of gzip members; says where each member is."""
        members = [member for group in groups for member in group]
        if not members:
            return [[] for _ in groups]
        if quarantine not in self._writers:
            self._writers[quarantine] = SegmentWriter(
                self._folder,
                self._results.segment_end,
                self._store.now,
                quarantine=quarantine,
                may_cut=self._may_cut,
            )
        places = iter(self._writers[quarantine].append(members))
        return [[next(places) for _ in group] for group in groups]

    def commit(self, now: float) -> None:
        """Note up to where the segments count. Part of the durable transaction."""
        for writer in self._writers.values():
            commit_segment(self._durable, writer.name, writer.end, now)

    def committed(self) -> None:
        """The transaction has been committed."""
        for writer in self._writers.values():
            writer.committed = True

    def cut(self) -> None:
        """Cut what killed writers left behind the committed ends of segments."""
        cut_uncommitted(self._folder, self._results.segment_end, self._may_cut)

    def _keeps(self, outcome: Outcome) -> bool:
        if outcome.verdict == UNCHANGED:
            return False
        if is_good_file(outcome):  # its bytes are what was asked for
            return True
        if self._keep == "none":
            return False
        return self._keep == "all" or outcome.status is not TaskStatus.COMPLETED

    def _may_cut(self) -> bool:
        """Whether the ledger is the newest; behind the ends that an older copy knows, pages are
        that were committed later."""
        if self._is_newest is None:
            later = later_results(self._db, self._store.pending)
            self._is_newest = next(later, None) is None
        return self._is_newest

    def _close(self) -> None:
        writers = list(self._writers.values())
        self._writers.clear()
        for writer in writers:
            writer.close()

    # Reading

    def read(self, task: int) -> tuple[str, bytes] | None:
        """The header block and body, as received, of a task's last page, unless it was pruned."""
        place = self._results.place_of(task)
        if place is None or not self._results.segment_end(place.segment):
            return None
        return read(self._folder, place, self._results.page_url_at(task, place))

    def of_result(self, task: int) -> tuple[str, bytes] | None:
        """The header block and body, as received, of the page that a result was made of."""
        place = self._results.page_of(task)
        return read(self._folder, place) if place else None

    def why_gone(self, task: int) -> str | None:
        """What became of the page of a task that is not there any more; None where none was."""
        place = self._results.place_of(task)
        if place is None or self._results.segment_end(place.segment):
            return None
        if self._results.was_pruned(place.segment):
            return "was removed by prune"
        unknown = f"was in {place.segment}, which the ledger does not know any more"
        return f"{unknown}; {program()} doctor tells more"

    def has_page(self, segment: str | None, end: int) -> bool:
        """Whether a result's page is there; where good pages are not kept, none need be."""
        if segment is None:
            return self._keep != "all"
        return self.has_segment(segment, end)

    def has_segment(self, name: str, end: int) -> bool:
        """Whether a segment is on the disk, up to that byte."""
        try:
            about = os.stat(f"{self._folder}/{name}")  # noqa: PTH116 - for every page
        except OSError:
            return False
        return stat.S_ISREG(about.st_mode) and about.st_size >= end

    def has_all(self) -> bool:
        """Whether all segments are on the disk."""
        return all(self.has_segment(name, end) for name, end in self._results.segment_ends())

    def is_given_up(self, place: RawLocation, job: Job | None) -> bool:
        """Whether a page is not on the disk, and a job, or any, does without it."""
        end = place.offset + place.length
        if self.has_segment(place.segment, end):
            return False
        return end <= jobs.given_up_end(self._db, job, place.segment)

    def missing(self) -> list[str]:
        """What of the pages that results name is not on the disk; cheap where all of it is."""
        if self.has_all():
            return []
        return [missing.what for missing in self.missing_segments(None)]

    def missing_segments(self, job: Job | None) -> list[MissingSegment]:
        """The segments that lack pages which somebody wants."""
        wanted, pages = jobs.PAGE_WANTED_BY_ANY, "pages of the results"
        if job:
            wanted, pages = jobs.wanted_pages(self._db, job), "pages of its results"
        return [
            MissingSegment(
                name,
                end,
                f"the segment {name}, with {count:,} {pages}, "
                f"is missing or shorter than {end:,} bytes",
            )
            for name, end, count in self._results.segments_used(job, wanted)
            if not self.has_segment(name, end)
        ]

    def unreadable(self, job: Job) -> Iterator[str]:
        """What to say where no page begins at the places of a job's results.

        Only `doctor` reads pages to their ends.
        """
        places = self._results.page_places(job, jobs.wanted_pages(self._db, job))
        count = 0
        for name, found in itertools.groupby(places, key=itemgetter(0)):
            path = self._folder / name
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                count += sum(os.pread(file.fileno(), 4, offset) != GZIP for _, offset in found)
        if count:
            what = f"{count:,} stored pages of its results cannot be read"
            yield f"{what}; {program()} doctor --repair tells more"
