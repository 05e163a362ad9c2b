"""Fetching: HTTP, and limits on what a server may do."""
