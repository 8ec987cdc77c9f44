"""Plans with and without the host's memory, as XLA:TPU compiles them.

    python -m benchmarks.host_memory --models mlp-scanned,mlp-unrolled

Perceptrons and transformers, of scanned layers and of layers that are written out, on 2x4 v5e, v5p
or H100s, under 70, 50 and 35 % of the compiled peak of the plan without a limit; where values on
the host do not do, with arguments there, too. `host_memory.json` has a row for each plan, and a
table lies beside; a run that was interrupted goes on where it stopped.
"""
