"""Searches for the best configuration of large steps on many devices.

    python -m benchmarks.search                          # all searches, with their seconds
    python -m benchmarks.search gpt-8 llama-32 ...       # some
    python -m benchmarks.search exhaustive               # two small spaces, planned in full as well
    python -m benchmarks.search.published                # on the chips of published steps
    python -m benchmarks.search.largest                  # largest batches, compiled

The results are in `results/`. The first and third command give estimates that are not compiled.
"""
