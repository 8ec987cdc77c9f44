"""The programs that the closed loop compiles from one plan, from few optimization barriers to many.

A *tied* step has a barrier that keeps it at its place in the plan's order.

1. If the compiler's own scheduler keeps memory low (`Compiler.schedules_for_memory`), the plan is
   first compiled with only the barriers that it needs (`kiwi.emit.needed_barriers`).
2. If that program is over the budget, it is compiled with each of the compiler's other schedulers
   (`Compiler.schedulers`). A scheduler, unlike a barrier, prevents no fusion. If the heap wastes at
   least as many bytes as the program is over the budget, the program is also compiled with the
   compiler's other ways to place buffers (`Compiler.heaps`).
3. For some units the compiled program holds more bytes at its peak than the plan does at that time.
   The program computes these units early, reads their results late, or computes operands of
   backward readers beside them. One step is tied for each such unit, in order of the difference in
   bytes, the largest first, until the differences add up to the excess over the budget. If that
   does not help, all steps that could help are tied. Steps are tied at most
   `shares.MOST_TIED_TRIALS` times, and not after a program has become much larger.

If no plan fits so, the closed loop ties every step (`kiwi.campaign.closed_loop`).

In a program whose collectives overlap with computation, the barrier of a resharded copy may stand
at a matmul ahead of the copy's reader. The copy is then hidden behind that matmul, and held longer.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from kiwi.campaign import shares
from kiwi.emit.barriers import barriers
from kiwi.emit.execution import Execution
from kiwi.emit.needed_barriers import SLACK
from kiwi.interval import curve_bytes
from kiwi.plans.plan import Plan
from kiwi.xla.read.buffer_assignment import CompiledMemory
from kiwi.xla.step import Arrangement


def with_needed_barriers(plan: Plan) -> Plan | None:
    """Returns the plan with only the barriers that it needs, not yet compiled; None if its compiler
    needs a barrier at every step."""
    if not plan.execution.facts.schedules_for_memory:
        return None
    return with_tied_steps(plan, frozenset())


def other_heaps(plan: Plan) -> Iterator[Plan]:
    """Yields a compiled plan with each other way to place its buffers, not yet compiled.

    Nothing is yielded unless the plan is over the budget by no more than its heap wastes.
    """
    execution, memory = plan.execution, None if plan.compiled is None else plan.compiled.memory
    missing_bytes = plan.peak_bytes - plan.memory_budget_bytes
    if memory is not None and 0 < missing_bytes <= memory.fragmentation_bytes:
        for heap in range(1, len(execution.compiler.heaps) + 1):
            yield arranged(plan, replace(execution.arrangement, heap=heap))


def arranged(plan: Plan, how: Arrangement) -> Plan:
    """Returns the plan in another arrangement (scheduler and heap), not yet compiled."""
    return replace(plan, execution=replace(plan.execution, arrangement=how))


def with_copies_ahead(plan: Plan) -> Plan | None:
    """Returns the plan with copies that begin ahead of their readers, not yet compiled; None if no
    copy does."""
    if not plan.execution.facts.copies_ahead:
        return None
    return _with_other_barriers(plan, replace(plan.execution, copies_ahead=True))


def with_gradients_in_time(plan: Plan) -> Plan | None:
    """Returns the plan with matmuls that wait for gradients, not yet compiled; None if no matmul
    does."""
    return _with_other_barriers(plan, replace(plan.execution, gradients_in_time=True))


def with_metrics_in_time(plan: Plan) -> Plan | None:
    """Returns the plan with barriers against late reads of large values by the forward pass, not
    yet compiled; None if no barrier is needed."""
    return _with_other_barriers(plan, replace(plan.execution, metrics_in_time=True))


def _with_other_barriers(plan: Plan, execution: Execution) -> Plan | None:
    """Returns the plan with another execution; None if its barriers are the same."""
    is_same = barriers(execution) == barriers(plan.execution)
    return None if is_same else replace(plan, execution=execution)


def with_tied_steps(plan: Plan, tied_steps: frozenset[int]) -> Plan:
    """Returns the plan with these steps tied, not yet compiled.

    - `tied_steps`: positions in the schedule.
    """
    return replace(plan, execution=replace(plan.execution, tied_steps=tied_steps))


def with_more_tied_steps(
    first: Plan, over_bytes: Callable[[Plan], int], compiled: Callable[[Plan], Plan | None]
) -> Iterator[Plan]:
    """Yields a plan, each time compiled with more tied steps, until it fits or nothing helps.

    The first series of trials ties one step for each unit that the program holds too long. The
    series ends when a program is no smaller than the program before. The second series begins again
    with `first` and ties all steps that could help.

    - `first`: a compiled plan over the budget.
    - `over_bytes`: returns the bytes by which a plan is over the budget.
    - `compiled`: compiles a plan; returns None if XLA fails.
    """
    for ties in (first_tie, all_ties):
        tried, excess_before = first, over_bytes(first)
        while excess_before > 0 and (tied_steps := more_tied_steps(tried, excess_before, ties)):
            if (program := compiled(with_tied_steps(tried, tied_steps))) is None:
                break
            yield program
            if (excess := over_bytes(program)) <= 0:
                return
            if excess >= excess_before and ties is first_tie:
                break
            tried, excess_before = program, excess


def more_tied_steps(
    tried: Plan, over_bytes: int, ties: Callable[[Execution, int, int], Iterator[int]]
) -> frozenset[int] | None:
    """Returns the tied steps of a compiled plan together with further steps to tie; None if no
    further step helps.

    - `over_bytes`: the bytes by which the plan is over the budget.
    - `ties`: `first_tie` or `all_ties`.
    """
    memory = None if tried.compiled is None else tried.compiled.memory
    tied = tried.execution.tied_steps
    if memory is None or tied is None:
        return None
    tied_steps, missing_bytes, least_bytes = (
        set(tied),
        over_bytes,
        shares.LEAST_TIED_PART * over_bytes,
    )
    for size, unit, now in _unplanned(tried, memory):
        positions = set(ties(tried.execution, unit, now))
        if missing_bytes > 0 and size >= least_bytes and not positions <= tied:
            tied_steps |= positions
            missing_bytes -= size
    return frozenset(tied_steps) if tied_steps != tied else None


def _unplanned(tried: Plan, memory: CompiledMemory) -> Iterator[tuple[int, int, int]]:
    """Yields the units for which the program holds more bytes at its peak than the plan.

    Each item is the difference in bytes, the unit, and the position of the plan's step at the peak.
    The unit with the largest difference comes first.
    """
    unplanned_bytes: Counter[int] = Counter()
    for buffer in memory.at_peak:
        if buffer.scope is not None and buffer.kind == "temporary":
            unplanned_bytes[buffer.scope.unit] += buffer.bytes
    results = [held for held in tried.estimate.buffers if held.kind != "argument"]
    # The time at which the plan holds the most bytes of the units that the program holds at its
    # peak: it stands for the program's peak in the plan's order.
    curve = curve_bytes(
        [held for held in results if held.index in unplanned_bytes],
        max(held.end for held in results),
    )
    time = int(np.argmax(curve))
    for planned in (held for held in results if held.start <= time < held.end):
        unplanned_bytes[planned.index] -= planned.bytes
    now = time if tried.estimate.times else tried.execution.schedule.steps.index(time)
    for unit, size in unplanned_bytes.most_common():
        if size > 0:
            yield size, unit, now


def first_tie(execution: Execution, unit: int, now: int) -> Iterator[int]:
    """Yields the one step to tie first for a unit.

    If the plan computes the unit after `now`, the program computes the unit early: its own step is
    tied. Otherwise the step is tied that waits for the unit's latest reader until `now`, or for the
    unit itself if nothing reads it by then.

    - `now`: the position of the plan's step at the program's peak.
    """
    steps, units = execution.schedule.steps, execution.units
    last = max(k for k, scheduled in enumerate(steps) if scheduled == unit)
    awaited = {unit}.union(*(units.readers.get(v, ()) for v in units.units[unit].outputs))
    latest = max(
        (k for k, scheduled in enumerate(steps[: now + 1]) if scheduled in awaited), default=now
    )
    yield last if last > now else min(latest + 1 + SLACK, now)


def all_ties(execution: Execution, unit: int, now: int) -> Iterator[int]:
    """Yields the steps to tie so that neither a unit's result nor a value that XLA computes with
    the unit is live when the step at position `now` runs."""
    steps, units = execution.schedule.steps, execution.units
    last = max(k for k, scheduled in enumerate(steps) if scheduled == unit)
    if last > now:
        yield last
    tied_unit = units.units[unit]
    readers = {
        reader
        for value in (*tied_unit.reads, *tied_unit.outputs)
        for reader in units.readers.get(value, ())
    }
    for position, scheduled in enumerate(steps):
        if scheduled in readers - {unit}:
            yield from (position,) if position > now else (position + 1, position + 2)
