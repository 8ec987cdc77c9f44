"""Plans with and without host memory, as XLA:TPU compiles them.

    python -m benchmarks.host_memory --models mlp-scanned,mlp-unrolled

The models are perceptrons and transformers, with scanned and with unrolled layers, on 2x4 v5e, v5p
or H100s. Their budgets are 70, 50 and 35 % of the compiled peak of the plan without a limit. If
offloaded values do not suffice, arguments are offloaded too. `host_memory.json` has a row for each
plan, and a table is written beside it. An interrupted run continues where it stopped.
"""
