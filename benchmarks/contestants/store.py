"""Where all peers store a page: compressed to a file, as a JSON file of its own, as a row in
SQLite.

It is cheaper than the corridor's store: nothing is synced (`synchronous=NORMAL`), and nothing else
is written.
"""

import gzip
import hashlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

EVERY = 100
"""So many rows are committed together."""


class Store:
    """One process's; several may share a folder."""

    def __init__(self, folder: Path, every: int = EVERY) -> None:
        self._files = folder / "pages"
        self._files.mkdir(exist_ok=True)
        self._raw = (folder / f"raw-{os.getpid()}.gz").open("ab")
        self._every, self.stored = every, 0
        self._db = sqlite3.connect(folder / "pages.db", isolation_level=None, timeout=60)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS pages "
            "(url TEXT PRIMARY KEY, page TEXT, raw TEXT, start INTEGER)"
        )

    def add(self, url: str, body: bytes, record: dict[str, str | None]) -> None:
        """Keep a page and what was found in it."""
        start = self._raw.tell()
        self._raw.write(gzip.compress(body, 1))
        text = json.dumps({"url": url, "data": record, "sha256": hashlib.sha256(body).hexdigest()})
        (
            self._files / (hashlib.md5(url.encode(), usedforsecurity=False).hexdigest() + ".json")
        ).write_text(text)
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?)", (url, text, self._raw.name, start)
        )
        self.stored += 1
        if self.stored % self._every == 0:
            self.commit()

    def commit(self) -> None:
        """Nothing stays behind in this process."""
        self._raw.flush()
        if self._db.in_transaction:
            self._db.execute("COMMIT")


def rows(folder: Path, what: str = "url") -> list[Any]:
    """This column of all committed rows."""
    db = sqlite3.connect(folder / "pages.db", timeout=60)
    try:
        return [value for (value,) in db.execute(f"SELECT {what} FROM pages")]
    finally:
        db.close()
