"""The choice of resharded operands that are kept for later readers, made after the rest of the
plan.

In a plan, every reader that expects a value in another layout reshards the value for itself: fully
sharded parameters are gathered for the forward pass and again for the backward pass. If memory is
left, the first copy can be held instead (*kept* in `kiwi.problem.copies`). The search for kept
copies uses the plan's problem with shardings and recomputation fixed: only the choice between
making and keeping each copy is open. The search of the whole problem does not offer these options:
with them it would find worse plans in equal time.
"""

from collections.abc import Sequence
from dataclasses import replace

from kiwi.problem.build import NONE_KEPT, KeptCopies, PlanningProblem
from kiwi.solver import evaluate, solve
from kiwi.solver.effort import Allowance
from kiwi.solver.settle import settled

KEPT_SHARE = 0.1
"""The search for kept copies stops when it has used this fraction of the whole search's work."""


def kept_copies(
    planning: PlanningProblem,
    corrected: PlanningProblem,
    solution: Sequence[int],
    allowed: Allowance,
) -> tuple[KeptCopies, Allowance]:
    """Returns the copies to keep, which save the most time within the limit, and the work of
    finding them.

    - `corrected`: `planning` under the valid limit, with further nodes at the end that hold the
      memory that compiled programs used beyond the plan.
    - `solution`: a solution of `planning`.
    - `allowed`: the work that the search may spend.
    """
    opened = planning.restricted(solution, kept=None)
    plan_nodes = opened.problem.nodes
    if all(len(node.costs) == 1 for node in plan_nodes):
        return NONE_KEPT, Allowance(0.0, 0.0)
    learnt = corrected.problem.nodes[len(planning.problem.nodes) :]
    limit_bytes = corrected.problem.limit_bytes
    problem = replace(opened.problem, nodes=(*plan_nodes, *learnt), limit_bytes=limit_bytes)
    start = [0] * len(problem.nodes)
    if not evaluate(problem, start).feasible:
        return NONE_KEPT, Allowance(0.0, 0.0)
    limits = {"time_limit_seconds": allowed.seconds, "work_limit": int(allowed.work)}
    result = solve(problem, warm_start=start, **limits)
    kept_reads = opened.kept_copies(settled(problem, result.solution or start))
    return kept_reads, Allowance(result.work, result.seconds)
