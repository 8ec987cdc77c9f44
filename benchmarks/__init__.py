"""Benchmarks: timed comparisons, kept apart from the tests."""
