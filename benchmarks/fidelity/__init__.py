"""Predicted memory and collectives against what XLA compiles, over models, meshes and budgets.

    python -m benchmarks.fidelity --out benchmarks/fidelity/results/fidelity.json

Each row is one training step on one mesh, compiled for one target: planned by Kiwi without a
budget or under a share of that plan's compiled peak, or written by hand, which means argument
shardings and `jax.checkpoint`. Nothing is run. A run that was interrupted goes on where it
stopped.
"""
