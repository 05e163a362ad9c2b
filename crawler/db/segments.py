"""Raw pages as WARC 1.1 segments: one gzip member a record, appended, synced once a group, cut after a crash."""

import fcntl
import os
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from isal import isal_zlib

from crawler import __version__
from crawler.db.owners import try_lock
from crawler.errors import StoreError
from crawler.models import Page, Raw

SEGMENT_LIMIT = 1 << 30
_DROPPED = frozenset({"transfer-encoding"})
"""Headers that speak of the connection, not of the body that is stored."""


class SegmentWriter:
    """Appends pages to a segment that no other process writes to."""

    def __init__(self, folder: Path, committed: Callable[[str], int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        adopted = _adopt(folder, committed)
        self.name, self._fd, self.end = adopted or _create(folder)
        self.committed = adopted is not None
        """Whether the ledger knows the segment; one that it does not know goes when it is closed."""

    def append(self, pages: Sequence[Page]) -> list[Raw]:
        """Write the pages and wait until they are on the disk; they count once the ledger has committed `end`."""
        if self.end >= SEGMENT_LIMIT:
            fresh = _create(self._folder)
            self.close()
            self.name, self._fd, self.end = fresh
            self.committed = False
        places, members, offset = [], [], self.end
        for page in pages:
            member = _member(_response(page))
            places.append(Raw(segment=self.name, offset=offset, length=len(member)))
            members.append(member)
            offset += len(member)
        _write(self._fd, b"".join(members), self.end)
        os.fdatasync(self._fd) if hasattr(os, "fdatasync") else os.fsync(self._fd)
        self.end = offset
        return places

    def close(self) -> None:
        """Leave the segment to whoever comes next."""
        if not self.committed:
            (self._folder / self.name).unlink(missing_ok=True)
        os.close(self._fd)


def mend(folder: Path, committed: Callable[[str], int]) -> None:
    """Cut whatever a killed writer left behind the last committed record, so that every reader finds whole ones."""
    for path in folder.glob("[!.]*.warc.gz"):
        fd = _lock(path)
        if fd is not None:
            end = committed(path.name)  # asked under the lock: until then its writer may commit more
            if end == 0:
                path.unlink()
            elif os.fstat(fd).st_size > end:
                os.ftruncate(fd, end)
            os.close(fd)


def read(folder: Path, raw: Raw) -> tuple[str, bytes]:
    """The HTTP header block and the body (as received) of a stored page."""
    try:
        _, http = _stored(folder, raw)[1].split(b"\r\n\r\n", 1)
        head, body = http.split(b"\r\n\r\n", 1)
    except ValueError as error:
        raise _unreadable(folder, raw, error) from error
    return head.decode("latin-1"), body[:-4]


def member(folder: Path, raw: Raw) -> bytes:
    """The gzip member of a stored page, as it lies there, once it is sure to be whole."""
    return _stored(folder, raw)[0]


def warcinfo(name: str) -> bytes:
    """The gzip member that a WARC file of this name begins with."""
    return _member(_info(name))


def _stored(folder: Path, raw: Raw) -> tuple[bytes, bytes]:
    try:
        with (folder / raw.segment).open("rb") as file:
            file.seek(raw.offset)
            packed = file.read(raw.length)
        return packed, zlib.decompress(packed, wbits=31)
    except (OSError, zlib.error) as error:
        raise _unreadable(folder, raw, error) from error


def _unreadable(folder: Path, raw: Raw, error: Exception) -> StoreError:
    return StoreError(f"{folder / raw.segment}: the page at byte {raw.offset} cannot be read ({error})")


def _adopt(folder: Path, committed: Callable[[str], int]) -> tuple[str, int, int] | None:
    for path in sorted(folder.glob("[!.]*.warc.gz")):
        fd = _lock(path)
        if fd is None:
            continue
        end = committed(path.name)
        if 0 < end < SEGMENT_LIMIT and os.fstat(fd).st_size >= end:
            os.ftruncate(fd, end)
            return path.name, fd, end
        os.close(fd)  # full, or shorter than the ledger knows it: damaged, and not to be written over
    return None


def _create(folder: Path) -> tuple[str, int, int]:
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}.warc.gz"
    hidden = folder / f".{name}"  # until it is locked nobody may take it for a dead writer's
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        head = _member(_info(name))
        _write(fd, head, 0)
        os.fsync(fd)
        hidden.rename(folder / name)
        _sync_folder(folder)
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


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _member(record: bytes) -> bytes:
    compressor = isal_zlib.compressobj(1, wbits=31)
    return compressor.compress(record) + compressor.flush()


def _response(page: Page) -> bytes:
    lines = [f"HTTP/1.1 {page.status} {page.reason}".rstrip()]
    lines += [f"{name}: {value}" for name, value in page.headers if name.lower() not in _DROPPED]
    http = "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + page.raw
    fields = {
        "WARC-Type": "response",
        "WARC-Target-URI": page.final_url,
        "WARC-Date": _date(page.fetched_at),
        "WARC-Record-ID": f"<urn:uuid:{uuid.uuid4()}>",
        "WARC-Payload-Digest": f"sha256:{sha256(page.raw).hexdigest()}",
        "Content-Type": "application/http;msgtype=response",
    }
    return _record(fields, http)


def _info(name: str) -> bytes:
    fields = {
        "WARC-Type": "warcinfo",
        "WARC-Filename": name,
        "WARC-Date": _date(datetime.now(UTC).timestamp()),
        "WARC-Record-ID": f"<urn:uuid:{uuid.uuid4()}>",
        "Content-Type": "application/warc-fields",
    }
    return _record(fields, f"software: crawler/{__version__}\r\nformat: WARC File Format 1.1\r\n".encode())


def _record(fields: Mapping[str, str], block: bytes) -> bytes:
    lines = ["WARC/1.1", *(f"{name}: {value}" for name, value in fields.items()), f"Content-Length: {len(block)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
