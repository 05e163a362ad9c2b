"""Resilience: limits on what is asked of a domain."""
