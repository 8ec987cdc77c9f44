"""`python -m benchmarks.starts`: no plan is slower than the shardings that anyone would try first.

Random steps on random meshes are planned under random budgets, each by a search that does little
work. The plans are compared with data parallelism, FSDP, Megatron's sharding and their mixtures,
without recomputation and with everything recomputed (`kiwi.campaign.obvious_starts`). A plan must
be at most as slow as each of these that fits, by the time of `kiwi.solver.evaluate` and the memory
of the predicted heap. Some of the small steps are also planned by the other planners. Writes
`results.json` and `results.md` into this folder. Recorded cases are not run again.
"""
