"""Training steps whose time others have measured and published, rebuilt and predicted.

    python -m benchmarks.published [--data FILE.csv] [--out FILE.json] [--rows PART,PART]

For each row of the file (`benchmarks.published.rows` has the columns) the step is rebuilt
(`benchmarks.published.models`), priced as it was run, on its mesh, with its shardings and with what
its layers keep, and planned freely: the same step without any `jax.checkpoint`, on the same mesh,
within the memory of the same chips.
"""
