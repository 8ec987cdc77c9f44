"""From few barriers to one at every step: the programs that the closed loop compiles of one plan.

1. A plan begins with only the barriers that it needs (`kiwi.emit.needed_barriers`), if the
   compiler's own scheduler keeps memory low (`Compiler.schedules_for_memory`).
2. If it is over the budget, the compiler's other schedulers order it, if there are any
   (`Compiler.schedulers`). That forbids no fusion. If the heap wastes as much as the excess,
   buffers are placed otherwise (`Compiler.heaps`).
3. For some units the compiled program holds more at its peak than the plan does at that time: it
   computes them early, reads them late, or computes beside them what backward readers need of their
   operands. One step is tied for each such unit, those with the largest difference first, until the
   excess is covered. If that does not help, all steps that could help are tied. This is done
   `shares.MOST_TIED_TRIALS` times at most, or until it makes the program larger.

If no plan fits so, the loop ties every step (`kiwi.campaign.closed_loop`).

A program whose collectives overlap with computation may have its barriers earlier. Copies that
begin ahead of their readers are hidden, and held longer.
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
    """The plan with only the barriers that it needs; None if its compiler needs one at
    every step."""
    if not plan.execution.facts.schedules_for_memory:
        return None
    return with_tied_steps(plan, frozenset())


def other_heaps(plan: Plan) -> Iterator[Plan]:
    """A compiled plan with other placements of its buffers, if the heap wastes as much as the plan
    is over the budget."""
    execution, memory = plan.execution, None if plan.compiled is None else plan.compiled.memory
    missing_bytes = plan.peak_bytes - plan.memory_budget_bytes
    if memory is not None and 0 < missing_bytes <= memory.fragmentation_bytes:
        for heap in range(1, len(execution.compiler.heaps) + 1):
            yield arranged(plan, replace(execution.arrangement, heap=heap))


def arranged(plan: Plan, how: Arrangement) -> Plan:
    """The plan in another arrangement, not yet compiled."""
    return replace(plan, execution=replace(plan.execution, arrangement=how))


def with_copies_ahead(plan: Plan) -> Plan | None:
    """The plan with copies that begin ahead of their readers, not yet compiled; None if no copy
    does."""
    if not plan.execution.facts.copies_ahead:
        return None
    return _with_other_barriers(plan, replace(plan.execution, copies_ahead=True))


def with_gradients_in_time(plan: Plan) -> Plan | None:
    """The plan with gradients that matmuls wait for, not yet compiled; None if none does."""
    return _with_other_barriers(plan, replace(plan.execution, gradients_in_time=True))


def with_metrics_in_time(plan: Plan) -> Plan | None:
    """The plan with large values that the forward pass does not read late, not yet compiled; None
    if that needs no barrier."""
    return _with_other_barriers(plan, replace(plan.execution, metrics_in_time=True))


def _with_other_barriers(plan: Plan, execution: Execution) -> Plan | None:
    is_same = barriers(execution) == barriers(plan.execution)
    return None if is_same else replace(plan, execution=execution)


def with_tied_steps(plan: Plan, tied_steps: frozenset[int]) -> Plan:
    """The plan with other barriers, not yet compiled."""
    return replace(plan, execution=replace(plan.execution, tied_steps=tied_steps))


def with_more_tied_steps(
    first: Plan, over_bytes: Callable[[Plan], int], compiled: Callable[[Plan], Plan | None]
) -> Iterator[Plan]:
    """A compiled plan with more and more tied steps, until it fits or nothing helps. At first one
    step is tied for each unit that the program holds too long, as long as that makes it smaller.
    From the trial `first` on, all steps that could help are tied.

    - `over_bytes`: by how much a plan is over the budget.
    - `compiled`: compiles a plan; None if XLA cannot.
    """
    for ties in (first_tie, all_ties):
        tried, before = first, over_bytes(first)
        while before > 0 and (tied_steps := more_tied_steps(tried, before, ties)):
            if (found := compiled(with_tied_steps(tried, tied_steps))) is None:
                break
            yield found
            if (over := over_bytes(found)) <= 0:
                return
            if over >= before and ties is first_tie:
                break
            tried, before = found, over


def more_tied_steps(
    tried: Plan, over_bytes: int, ties: Callable[[Execution, int, int], Iterator[int]]
) -> frozenset[int] | None:
    """The tied steps of a compiled plan that is over the budget by so much, with further ones; None
    if none helps."""
    memory = None if tried.compiled is None else tried.compiled.memory
    tied = tried.execution.tied_steps
    if memory is None or tied is None:
        return None
    found, missing_bytes, least_bytes = set(tied), over_bytes, shares.LEAST_TIED_PART * over_bytes
    for size, unit, now in _unplanned(tried, memory):
        positions = set(ties(tried.execution, unit, now))
        if missing_bytes > 0 and size >= least_bytes and not positions <= tied:
            found |= positions
            missing_bytes -= size
    return frozenset(found) if found != tied else None


def _unplanned(tried: Plan, memory: CompiledMemory) -> Iterator[tuple[int, int, int]]:
    """The units of which the program holds more at its peak than the plan, by bytes, the largest
    first, with the unit and the step at that time."""
    more: Counter[int] = Counter()
    for buffer in memory.at_peak:
        if buffer.scope is not None and buffer.kind == "temporary":
            more[buffer.scope.unit] += buffer.bytes
    results = [b for b in tried.estimate.buffers if b.kind != "argument"]
    # The point of time at which the plan holds most of what the program holds at its peak.
    curve = curve_bytes([b for b in results if b.index in more], max(b.end for b in results))
    time = int(np.argmax(curve))
    for planned in (b for b in results if b.start <= time < b.end):
        more[planned.index] -= planned.bytes
    now = time if tried.estimate.times else tried.execution.schedule.steps.index(time)
    for unit, size in more.most_common():
        if size > 0:
            yield size, unit, now


def first_tie(execution: Execution, unit: int, now: int) -> Iterator[int]:
    """The step to tie first: that of a unit that the program computes early. For other units it is
    the step that waits for the latest reader until `now`, or for the unit's own result."""
    steps, units = execution.schedule.steps, execution.units
    last = max(k for k, each in enumerate(steps) if each == unit)
    awaited = {unit}.union(*(units.readers.get(v, ()) for v in units.units[unit].outputs))
    latest = max((k for k, each in enumerate(steps[: now + 1]) if each in awaited), default=now)
    yield last if last > now else min(latest + 1 + SLACK, now)


def all_ties(execution: Execution, unit: int, now: int) -> Iterator[int]:
    """The steps to tie so that a unit's result, or a value that XLA computes with it, is not live
    when the step at `now` runs."""
    steps, units = execution.schedule.steps, execution.units
    last = max(k for k, each in enumerate(steps) if each == unit)
    if last > now:
        yield last
    own = units.units[unit]
    readers = {r for value in (*own.reads, *own.outputs) for r in units.readers.get(value, ())}
    for position, each in enumerate(steps):
        if each in readers - {unit}:
            yield from (position,) if position > now else (position + 1, position + 2)
