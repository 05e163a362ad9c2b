"""Limits on the requests to each domain, and waits before a page is tried again."""
