"""The structure of `kiwi/`, from its sources; `python -m benchmarks.structure` draws it."""
