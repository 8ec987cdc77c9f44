"""`python -m benchmarks.starts`: no plan is slower than what anyone would try first.

Random steps on random meshes under random budgets are planned, each in a search that does little
work, and compared with data parallelism, FSDP, Megatron's sharding and their mixtures, with nothing
and with everything recomputed (`kiwi.campaign.obvious_starts`): a plan is at most as slow as every
one of them that fits, in the time of `kiwi.solver.evaluate` and the memory of the predicted heap.
Some of the small steps are planned by the other planners, too. Writes `results.json` and
`results.md` into this folder; what is there is not run again.
"""
