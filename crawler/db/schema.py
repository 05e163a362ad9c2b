"""Brings lpm.db to the schema of this program; the migrations are in schema.sql."""

import os
import re
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apsw

from crawler import urls
from crawler.db.connection import Database, writing
from crawler.errors import StoreError, UrlError

APPLICATION_ID = 0x4C504D31

MIGRATIONS = tuple(
    re.split(r"^-- Schema \d+\n", Path(__file__).with_suffix(".sql").read_text(), flags=re.M)[1:]
)
"""The statements that bring a database from one schema to the next."""


def new_url_key(*columns: Any) -> Any:
    """The key of a URL since schema 7, where the given one is that of before."""
    url, key = columns
    try:
        address = urls.parse(url)
    except UrlError:
        return key
    page, _, query = address.url.partition("?")
    kept = sorted(pair for pair in query.split("&") if pair and not _TRACKED.match(pair))
    before = blake2b(f"{page}?{'&'.join(kept)}".encode(), digest_size=16).digest()
    return address.key if key == before else key


_TRACKED = re.compile(
    "utm_|(?:fbclid|gclid|dclid|gbraid|wbraid|msclkid|yclid|igshid|mc_cid|mc_eid|twclid)(?:=|$)",
    re.IGNORECASE,
)

WITH_IMPORTS = 5
"""The first schema that has the files of each job."""
WITH_NUMBERS = 11
"""The first schema that has results in the order of their commits."""


def migrate(connection: Database, path: Path) -> None:
    """Bring a database to this program's schema; a foreign or newer one is refused."""
    version = _version(connection, path)
    if version == len(MIGRATIONS):
        return
    with writing(connection):
        version = _version(connection, path)  # another process may have been faster
        if 0 < version < len(MIGRATIONS):
            _back_up(path, path.with_name(f"{path.name}.v{version}.bak"))
        build(connection, version)


def build(connection: Database, first: int = 0, last: int = len(MIGRATIONS)) -> None:
    """Bring a database from one version to another. Part of a transaction."""
    connection.create_scalar_function("new_url_key", new_url_key, 2, deterministic=True)
    for number in range(first, last):
        connection.execute(MIGRATIONS[number])
    if first == 0:
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        ledger_id = secrets.token_hex(8)
        connection.execute("INSERT INTO meta (key, value) VALUES ('ledger_id', ?)", (ledger_id,))
    connection.execute(f"PRAGMA user_version={last}")


def is_older(connection: Database, path: Path, can_write: bool) -> bool:
    """Whether an older program has made this database; that is refused where it cannot be
    migrated."""
    older = 0 < _version(connection, path) < len(MIGRATIONS)
    if older and not can_write:
        raise StoreError(
            f"{path.parent} was made by an older version and cannot be written: its ledger must "
            "be brought up to date before it can be read; copy the folder to where you may write"
        )
    return older


def _version(connection: Database, path: Path) -> int:
    # In one statement, and so of one moment: another process may be building it.
    [(version, application, tables)] = connection.all(
        """SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)
           FROM pragma_user_version, pragma_application_id"""
    )
    if application != APPLICATION_ID and (version or tables):
        raise StoreError(f"{path} is a database of another program; it was left as it is")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer version (schema {version}, this program knows "
            f"{len(MIGRATIONS)}); it was left as it is; use the newer program"
        )
    return int(version)


def _back_up(path: Path, target: Path) -> None:
    """Copy the database as it was committed last, by a connection that does not write."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    source, copy = apsw.Connection(str(path)), apsw.Connection(str(part))
    try:
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(1000)
    finally:
        source.close()
        copy.close()
    part.replace(target)
