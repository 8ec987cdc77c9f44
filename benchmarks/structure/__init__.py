"""The structure of `kiwi/`, read from its sources. `python -m benchmarks.structure` draws it."""
