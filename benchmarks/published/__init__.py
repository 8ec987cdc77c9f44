"""Training steps whose times others have measured and published, rebuilt and predicted.

    python -m benchmarks.published [--data FILE.csv] [--out FILE.json] [--rows PART,PART]

The benchmark rebuilds the step of each row of the file (`benchmarks.published.rows` describes the
columns, `benchmarks.published.models` builds the steps). It prices the step as it was run: on its
mesh, with its shardings, and with the values that its layers keep. It then plans the step freely:
without any `jax.checkpoint`, on the same mesh, within the memory of the same chips.
"""
