"""`python -m benchmarks.anywhere`: whether a plan depends on the speed or the load of a machine.

The benchmark plans four steps under three budgets each: 80, 60 and 45 % of the peak of a plan
without a budget. It plans them in four ways:

- *alone*;
- *beside* two processes that do nothing but count;
- *slowed*: pinned to one core, and stopped half of the time;
- *thorough*: alone, with that effort.

The decisions of the first three must be identical, and the step planned alone at most 1 % slower
than the thorough one. Each run is a process of its own (`benchmarks.anywhere.planned`). Writes
`results.json` and `results.md` into this folder. Runs that are recorded there are not repeated.
"""
