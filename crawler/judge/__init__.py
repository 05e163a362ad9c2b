"""Verdicts: what a page really is (pure functions)."""
