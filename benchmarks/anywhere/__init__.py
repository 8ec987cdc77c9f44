"""`python -m benchmarks.anywhere`: whether a plan depends on how fast or how busy a machine is.

Four steps at three budgets each, 80, 60 and 45 % of the peak of a plan without one, are planned

- *alone*;
- *beside* two processes that do nothing but count;
- *slowed*: pinned to one core, and stopped half of the time;
- *thorough*: alone, with that effort.

The decisions of the first three must be identical, and the first one's step at most 1 % slower
than the thorough one's. Each run is a process of its own (`benchmarks.anywhere.planned`). Writes
`results.json` and `results.md` into this folder; what is there is not run again.
"""
