"""The store: its database, the files beside it, and who uses them."""
