"""Plans random small steps, and checks what Kiwi claims about them.

    python -m benchmarks.small_steps --steps=100 --first=0

A seed draws a training step with loops of every kind, a mesh, and hardware (`drawn`). The step is
planned by "joint" without a budget and within 90, 70 and 50 % of the free plan's compiled peak. The
step of every fourth seed is also planned by the other planners, within 70 %. Each program is
compiled for its hardware. Three claims are checked (`claims`):

- No budget is refused that a compiled program of the same step meets, whoever planned it.
- No other planner's plan within the budget is faster as compiled.
- No plan is slower than the plan for a smaller budget.

Rows are stored in `results.json`, and not measured again. `results.md` counts the broken claims.
"""
