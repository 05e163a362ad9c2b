"""Benchmarks: `sh benchmarks/run`."""
