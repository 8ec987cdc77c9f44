"""Predicted memory and collectives against what XLA compiles, over models, meshes and budgets.

    python -m benchmarks.fidelity --out benchmarks/fidelity/results/fidelity.json

Each row is one training step on one mesh, compiled for one target. The step is planned by Kiwi
without a budget, planned under a share of that plan's compiled peak, or written by hand with
argument shardings and `jax.checkpoint`. Nothing is executed. An interrupted run continues where it
stopped.
"""
