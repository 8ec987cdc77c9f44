"""Planners of the literature. No other package imports this one, and Kiwi works without it.

- `remat`: recomputation and copies to the host, on a plain graph without JAX.
- `formulations`: the paper's models of sharding with recomputation, without JAX.
- `planners`: both, applied to a training step of JAX; `kiwi.plan(planner=name)` finds them.
"""
