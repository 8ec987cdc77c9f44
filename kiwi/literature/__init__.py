"""Planners of the literature, on top of all rooms: nothing imports them, and Kiwi works without.

- `remat`: recomputation, and copies to the host, of a plain graph; knows nothing of JAX.
- `formulations`: the paper's models of sharding with recomputation; know nothing of JAX.
- `planners`: both on a step of JAX, found by `kiwi.plan(planner=name)`.
"""
