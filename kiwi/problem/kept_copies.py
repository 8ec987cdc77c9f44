"""Which resharded operands are kept for later readers, decided for a plan that is otherwise made.

In a plan every reader that expects a value in another layout reshards it for itself: parameters
that are sharded fully are gathered for the forward and once more for the backward pass. Where
memory is left, the first copy can be held instead (*kept* in `kiwi.problem.copies`). What is kept
is chosen once shardings and recomputation are: the problem is the plan's own, with the choice
between making and keeping a copy for all that is left open. With these options beside all others,
the search of the whole problem ended far worse in equal time.
"""

from collections.abc import Sequence
from dataclasses import replace

from kiwi.problem.build import NONE_KEPT, KeptCopies, PlanningProblem
from kiwi.solver import evaluate, solve
from kiwi.solver.effort import Allowance
from kiwi.solver.settle import settled

KEPT_SHARE = 0.1
"""Of what the search for the plan may take, at most."""


def kept_copies(
    planning: PlanningProblem,
    corrected: PlanningProblem,
    solution: Sequence[int],
    allowed: Allowance,
) -> tuple[KeptCopies, Allowance]:
    """The copies to keep: those that save most time within the limit; and what it took to find
    them.

    - `corrected`: `planning` under the limit that holds, with nodes for what was learnt of compiled
      programs behind its own.
    - `solution`: of `planning`. `allowed`: what the search may take.
    """
    opened = planning.restricted(solution, kept=None)
    own = opened.problem.nodes
    if all(len(node.costs) == 1 for node in own):
        return NONE_KEPT, Allowance(0.0, 0.0)
    learnt = corrected.problem.nodes[len(planning.problem.nodes) :]
    limit_bytes = corrected.problem.limit_bytes
    problem = replace(opened.problem, nodes=(*own, *learnt), limit_bytes=limit_bytes)
    start = [0] * len(problem.nodes)
    if not evaluate(problem, start).feasible:
        return NONE_KEPT, Allowance(0.0, 0.0)
    limits = {"time_limit_seconds": allowed.seconds, "work_limit": int(allowed.work)}
    result = solve(problem, warm_start=start, **limits)
    kept = opened.kept_copies(settled(problem, result.solution or start))
    return kept, Allowance(result.work, result.seconds)
