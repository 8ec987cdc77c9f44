"""Which rules of XLA the installed compilers follow: `python -m benchmarks.witnesses`."""
