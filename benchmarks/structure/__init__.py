"""The structure of `kiwi/`, computed from its sources; `python -m benchmarks.structure` draws it."""
