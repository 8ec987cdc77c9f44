"""Benchmarks of planners that recompute on one device."""
