"""Stores as an older program would have left them."""

from contextlib import closing

from crawler.db import schema
from crawler.db.connection import connect
from crawler.lpm import LocalPersistenceManager


def as_of_schema(lpm: LocalPersistenceManager, version: int) -> None:
    """Close a store and bring its ledger back to an older schema, with what that has room for."""
    path = lpm.store.path
    lpm.close()
    newer = path.rename(path.with_suffix(".newer"))
    with closing(connect(path)) as ledger:
        schema.build(ledger, 0, version)
        ledger.execute("PRAGMA foreign_keys = OFF; DELETE FROM meta")
        triggers = ledger.all("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        for name, _ in triggers:
            ledger.execute(f"DROP TRIGGER {name}")
        ledger.execute("ATTACH ? AS newer", (str(newer),))
        columns = """SELECT name FROM pragma_table_info(?, 'main')
                     INTERSECT SELECT name FROM pragma_table_info(?, 'newer')"""
        for table in ledger.column("SELECT name FROM main.sqlite_schema WHERE type = 'table'"):
            if names := ", ".join(ledger.column(columns, (table, table))):
                rows = f"SELECT {names} FROM newer.{table}"
                ledger.execute(f"INSERT INTO main.{table} ({names}) {rows}")
        ledger.execute("DETACH newer")
        for _, definition in triggers:
            ledger.execute(definition)
    newer.unlink()
