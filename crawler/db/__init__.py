"""The database: connection, schema, the ledger's statements, raw segments and owners."""
