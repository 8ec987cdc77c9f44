"""A plan under another schedule than the order of its units."""

from dataclasses import replace

from kiwi.plans.estimate import estimate_schedule
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Solved
from kiwi.solver.schedule import Schedule


def with_schedule(plan: Plan, solved: Solved, schedule: Schedule, resident_bytes: int = 0) -> Plan:
    """The plan of `solved` with a schedule in place of its own order, estimated by the one memory
    account; `resident_bytes` as of `estimate_schedule`."""
    execution = replace(plan.execution, schedule=schedule)
    decisions = tuple(
        replace(d, residency="recompute") if u in execution.recomputed else d
        for u, d in enumerate(plan.decisions)
    )
    estimate = estimate_schedule(solved, schedule, resident_bytes)
    return replace(plan, execution=execution, estimate=estimate, decisions=decisions)
