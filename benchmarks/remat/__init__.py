"""Benchmarks of the planners that recompute on one device."""
