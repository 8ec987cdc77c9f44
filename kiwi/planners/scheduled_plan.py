"""A plan under another schedule than the order of its units."""

from collections.abc import Sequence
from dataclasses import replace

from kiwi.plans.plan import Plan
from kiwi.solver.schedule import Schedule


def with_schedule(
    plan: Plan,
    schedule: Schedule,
    step_seconds: float,
    peak_bytes: int,
    memory_bytes: Sequence[int],
) -> Plan:
    """The plan with a schedule in place of its own order, and what its simulation says.

    **Arguments:**

    - `plan`: runs every unit once, so that its time is all but the recomputation.
    - `schedule`: of units; `memory_bytes` is what is held at each of its steps.
    """
    execution = replace(plan.execution, schedule=schedule)
    memory = _bytes_by_unit(schedule.steps, memory_bytes)
    estimate = replace(
        plan.estimate,
        step_seconds=step_seconds,
        recompute_seconds=max(0.0, step_seconds - plan.estimate.step_seconds),
        peak_bytes=peak_bytes,
        peak_unit=memory.index(max(memory)) if memory else 0,
        memory_bytes=memory,
        buffers=(),  # the simulation follows sums alone
    )
    decisions = tuple(
        replace(d, residency="recompute") if u in execution.recomputed else d
        for u, d in enumerate(plan.decisions)
    )
    return replace(plan, execution=execution, estimate=estimate, decisions=decisions)


def _bytes_by_unit(steps: Sequence[int], memory: Sequence[int]) -> tuple[int, ...]:
    """The most that is held in any run of each unit."""
    found: dict[int, int] = {}
    for unit, held in zip(steps, memory, strict=True):
        found[unit] = max(held, found.get(unit, 0))
    return tuple(found[unit] for unit in sorted(found))
