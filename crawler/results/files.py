"""Exports the images and documents that records name: each once, by the hash of its bytes."""

import os
from collections.abc import Callable, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import msgspec

from crawler.db import guard, raw_pages
from crawler.errors import FetchError, StoreError, UsageError
from crawler.fetch.body import decode_stored
from crawler.files import replace_file
from crawler.lpm import LocalPersistenceManager
from crawler.models import FILE, RawLocation

_ENDINGS = {
    "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp",
    "image/svg+xml": "svg", "image/bmp": "bmp", "image/avif": "avif", "image/heic": "heic",
    "image/heif": "heif", "image/tiff": "tiff", "image/vnd.microsoft.icon": "ico",
    "application/pdf": "pdf", "application/zip": "zip", "application/gzip": "gz",
    "application/x-7z-compressed": "7z", "application/rtf": "rtf", "application/msword": "doc",
    "application/vnd.ms-excel": "xls", "application/vnd.ms-powerpoint": "ppt",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods", "application/json": "json",
    "application/xml": "xml", "text/xml": "xml", "text/csv": "csv", "text/plain": "txt",
    "video/mp4": "mp4", "audio/mpeg": "mp3",
}  # fmt: skip
"""By media type; a server's own file name is never used."""
_MAX_FILE_BYTES = 1 << 30


class FileWriter:
    """Writes files to a folder as <hash[:2]>/<hash>.<ending>, each whole or not at all."""

    def __init__(self, lpm: LocalPersistenceManager, folder: Path) -> None:
        self._lpm, self._folder = lpm, folder
        self._paths: dict[str, str] = {}
        """By digest and type: files that are in the folder."""
        self._written = self._missing = 0
        guard.check_output(folder / "file", lpm.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be used for files ({error.strerror})") from error

    def with_paths(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the files of a result, and return it with their paths in the folder."""
        if result["data"] is None:  # a row of input without a result
            return result
        if result.get("method") == FILE:
            kind = result["data"].get("type", "")
            place = msgspec.convert(result["raw"], RawLocation | None)
            return {**result, "path": self._write(result["raw_html_hash"], kind, place)}
        if not result.get("files"):
            return result
        own = result["task_id"]
        files = [{**file, "path": self._write_linked(file, own)} for file in result["files"]]
        return {**result, "files": files}

    def finish(self, say: Callable[[str], None]) -> int:
        """Have all files on the disk; return how many were not there before."""
        os.sync()  # once, not for each of them
        if self._missing:
            say(f"{self._missing:,} files are not stored any more")
        return self._written

    def _write_linked(self, file: Mapping[str, Any], own: str) -> str | None:
        """Write a file of a result, whose own task has brought those that a browser has made."""
        digest, kind = file["sha256"], file["type"] or ""
        if not digest:
            return None  # it has not been fetched
        known = self._paths.get(f"{digest} {kind}")
        if known:
            return known
        if file["task_id"] == own:
            place = msgspec.convert(file.get("raw"), RawLocation | None)
            return self._write(digest, kind, place, is_capture=True)
        return self._write(digest, kind, self._lpm.results.file_place(file["task_id"]))

    def _write(
        self, digest: str, kind: str, place: RawLocation | None, is_capture: bool = False
    ) -> str | None:
        """Write a file unless it is there; None if its bytes are not stored any more."""
        key = f"{digest} {kind}"
        if key in self._paths:
            return self._paths[key]
        path = f"{digest[:2]}/{digest}.{_ENDINGS.get(kind, 'bin')}"
        target = self._folder / path
        if not _is_there(target, digest):
            body = self._read(digest, place, is_capture)
            if body is None:
                self._missing += 1
                return None
            try:
                target.parent.mkdir(exist_ok=True)
                replace_file(target, body, mode=0o666)
            except OSError as error:
                raise UsageError(f"{target} cannot be written ({error.strerror})") from error
            self._written += 1
        self._paths[key] = path
        return path

    def _read(self, digest: str, place: RawLocation | None, is_capture: bool) -> bytes | None:
        if place is None or not self._lpm.results.segment_end(place.segment):
            return None
        if self._lpm.pages.is_given_up(place, None):
            return None
        body = self._body(place, is_capture)
        if sha256(body).hexdigest() != digest:
            where = f"the file at byte {place.offset} of {place.segment}"
            raise StoreError(f"{where} is not the one that its result was made of")
        return body

    def _body(self, place: RawLocation, is_capture: bool) -> bytes:
        if is_capture:
            return raw_pages.read_capture(self._lpm.raw, place)
        head, received = raw_pages.read(self._lpm.raw, place)
        try:
            return decode_stored(head, received, limit=_MAX_FILE_BYTES)
        except FetchError as error:
            raise StoreError(f"a file in {place.segment} cannot be read ({error})") from error


def _is_there(target: Path, digest: str) -> bool:
    """Return whether a file is in the folder, from an earlier export, and whole."""
    try:
        if not target.is_file() or target.is_symlink():
            return False
        with target.open("rb") as file:
            return file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False
