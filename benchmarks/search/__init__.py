"""Searches for the best configuration of large steps on many devices.

    python -m benchmarks.search                          # all searches; the seconds that they take
    python -m benchmarks.search gpt-8 llama-32 ...       # some
    python -m benchmarks.search exhaustive               # two small spaces, planned in full as well
    python -m benchmarks.search.published                # on the chips of published steps
    python -m benchmarks.search.largest                  # largest batches, compiled

What was found is in `results/`. The first and third are estimates, not compiled.
"""
