"""Predicted against measured seconds of whole steps, from tables recorded in the same run.

    python -m benchmarks.replay

For each model of `benchmarks.replay.models`, on virtual CPU devices:

1. The step is recorded and planned: without a budget, under budgets, and with everything
   recomputed.
2. In several rounds the step is recorded again, and each planned step is run. Recordings and runs
   alternate, because the speed of a shared machine changes over time.
3. Each plan is priced by the median of the tables, and compared with the median of its runs.

Results are JSON, a table and a plot. `--models=gpt` measures one model anew; rows of other models
stay.
"""
