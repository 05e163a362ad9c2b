"""The contents of raw files: each once, under its SHA-256, whole or not at all."""

import hashlib
import os
import secrets
import shutil
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO

from crawler.db.connection import store_errors
from crawler.files import sync_folder

SPOOL = 1 << 20
"""Bytes of a content on its way that are held in memory."""


class Contents:
    """A folder of contents in raw/<first two digits>/<sha256>."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "raw"
        with store_errors(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in self.folder.glob(".*.part"):  # of a server that was killed
                part.unlink(missing_ok=True)

    def place(self, sha256: str) -> Path:
        """Where a content lies, or would."""
        return self.folder / sha256[:2] / sha256

    def spool(self) -> "SpooledTemporaryFile[bytes]":
        """A file for a content on its way, on the disk that it is going to; it goes when it is
        closed."""
        return SpooledTemporaryFile(SPOOL, dir=str(self.folder), prefix=".", suffix=".part")

    def store(self, content: BinaryIO, sha256: str, size: int) -> Path:
        """Put a content in its place; when this returns, it and its name are on the disk."""
        target = self.place(sha256)
        with store_errors(self.folder):
            if not _whole(target, size):
                self._write(content, target)
            sync_folder(target.parent)  # also where another upload has just put it there
        return target

    def _write(self, content: BinaryIO, target: Path) -> None:
        if not target.parent.is_dir():
            target.parent.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.folder)
        part = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            with part.open("wb") as out:
                shutil.copyfileobj(content, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _whole(target: Path, size: int) -> bool:
    """Whether a content lies there, as far as its size tells."""
    try:
        return target.stat().st_size == size
    except FileNotFoundError:
        return False


def checksum(content: BinaryIO) -> str:
    """The SHA-256 of a content, which is then at its beginning again."""
    content.seek(0)
    digest = hashlib.sha256()
    while piece := content.read(1 << 20):
        digest.update(piece)
    content.seek(0)
    return digest.hexdigest()
