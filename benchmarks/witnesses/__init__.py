"""The rules of XLA that the installed compilers follow: `python -m benchmarks.witnesses`."""
