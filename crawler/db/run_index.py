"""The pages of two runs, A and B, in a temporary database, to be matched by URL and parcel."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Literal

from crawler.db.connection import Database

Run = Literal["a", "b"]


class RunIndex:
    """Keeps the newest result of each page and run. Memory does not grow with their number."""

    def __init__(self) -> None:
        # An empty name is a private database that SQLite spills to a temporary file.
        self._db = Database("", path=Path(gettempdir()) / "comparison")
        self._db.execute("PRAGMA journal_mode=OFF; PRAGMA cache_size=-64000; BEGIN")
        for run in ("a", "b"):
            self._db.execute(
                f"""CREATE TABLE {run} (
                        id INTEGER PRIMARY KEY, key BLOB, parcel TEXT, at REAL, url TEXT,
                        verdict TEXT, data BLOB, UNIQUE (key, parcel))"""
            )

    def close(self) -> None:
        """Drop the database."""
        self._db.close()

    def add(
        self,
        run: Run,
        key: bytes,
        parcel: str,
        at: float,
        url: str,
        verdict: str,
        data: bytes | None = None,
    ) -> None:
        """Keep a page, unless a newer one is there; without `data` it has no result."""
        self._db.execute(
            f"""INSERT INTO {run} (key, parcel, at, url, verdict, data)
                VALUES (?, ?, ?, ?, ?, ?)
                ON CONFLICT DO UPDATE SET at = excluded.at, url = excluded.url,
                    verdict = excluded.verdict, data = excluded.data WHERE excluded.at >= at""",
            (key, parcel, at, url, verdict, data),
        )

    def find(self, run: Run, key: bytes, parcel: str) -> tuple[str, bytes | None] | None:
        """Return the verdict and the record of a page, under its parcel or under none."""
        row = self._db.one(
            f"""SELECT verdict, data FROM {run} WHERE key = ?1 AND parcel IN (?2, '')
                ORDER BY parcel = ?2 DESC LIMIT 1""",
            (key, parcel),
        )
        return row and (row[0], row[1])

    def in_both(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield URL, record in A and record in B of each page with results in both."""
        yield from self._db.execute(
            """SELECT b.url, a.data, b.data FROM a JOIN b USING (key, parcel)
               WHERE a.data NOTNULL AND b.data NOTNULL"""
        )

    def only_in(self, run: Run, examples: int) -> tuple[int, list[str]]:
        """Count the pages with a result in this run only, and return some URLs."""
        other = {"a": "b", "b": "a"}[run]
        rest = f"""FROM {run} WHERE data NOTNULL AND NOT EXISTS
                   (SELECT 1 FROM {other} o
                    WHERE o.key = {run}.key AND o.parcel = {run}.parcel AND o.data NOTNULL)"""
        [(count,)] = self._db.all(f"SELECT count(*) {rest}")
        found = self._db.all(f"SELECT url {rest} ORDER BY url LIMIT ?", (examples,))
        return count, [url for (url,) in found]

    def changed_verdicts(self) -> list[tuple[str, str, int, str]]:
        """Return verdict in A, in B, number of pages and one URL; the most frequent first."""
        return self._db.all(
            """SELECT a.verdict, b.verdict, count(*), min(b.url) FROM a JOIN b USING (key, parcel)
               WHERE a.verdict <> b.verdict GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 100"""
        )
