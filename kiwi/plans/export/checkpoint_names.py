"""A plan's residencies of the values that `checkpoint_name` names."""

from collections import defaultdict
from collections.abc import Iterator

from kiwi.emit.execution import Execution
from kiwi.hlo.checkpoint_names import DEVICE, NAME, OFFLOAD, REMAT
from kiwi.hlo.graph import Phase
from kiwi.hlo.loops import STACK
from kiwi.hlo.program import Equation
from kiwi.plans.export.checkpoint_policy import kept_for_backward
from kiwi.plans.record import PlanRecord

MIXED = "mixed"
"""The residency of a name whose values a plan treats differently, for example by layer."""

_SAME = frozenset({NAME, STACK, "reduce_precision"})
"""Primitives whose result is the same value as their operand. `jax.checkpoint` marks the values
that it saves by a `reduce_precision`."""


def checkpoint_names(plan: PlanRecord) -> dict[str, str]:
    """Returns the residency of each name that `checkpoint_name` gives to values of the planned
    step.

    - "device": the values are kept for the backward pass.
    - "offload": the values are copied to the host's memory.
    - "remat": the values are not kept, or the backward pass does not read them.
    - "mixed": the plan treats the values of the name differently.

    A plan with `granularity="names"` has no mixed names.
    """
    program = plan.execution.units.graph.program
    if program.residencies is not None:
        return {
            checkpointed: program.residencies.get(checkpointed, REMAT)
            for checkpointed in program.checkpointed_names
        }
    residencies: dict[str, set[str]] = defaultdict(set)
    kept_values, offloaded = kept_for_backward(plan.execution), _offloaded(plan)
    for equation in program.equations:
        if equation.name == NAME and _is_forward(plan.execution, equation):
            values = set(_same_values(plan.execution, equation))
            residency = OFFLOAD if values & offloaded else DEVICE if values & kept_values else REMAT
            residencies[equation.jaxpr_eqn.params["name"]].add(residency)
    return {
        name: choices.pop() if len(choices) == 1 else MIXED for name, choices in residencies.items()
    }


def _offloaded(plan: PlanRecord) -> frozenset[int]:
    """Returns the values that the plan offloads."""
    units = plan.execution.units
    chosen = (unit for unit, decision in enumerate(plan.decisions) if decision.residency == OFFLOAD)
    return frozenset(output for unit in chosen for output in units.units[unit].outputs)


def _is_forward(execution: Execution, equation: Equation) -> bool:
    """Returns whether an equation belongs to the forward pass, and not to a recomputation that the
    function traces itself."""
    return execution.units.graph.phase_of(equation.index) is Phase.FORWARD


def _same_values(execution: Execution, equation: Equation) -> Iterator[int]:
    """Yields all values that are the same as a named value: before it has the name, under its other
    names, and as it is saved."""
    program = execution.units.graph.program
    (root,) = equation.reads or equation.outputs
    while (producer := program.values[root].producer) is not None:
        above = program.equations[producer]
        if above.name not in _SAME or not above.reads:
            break
        (root,) = above.reads
    waiting = [root]
    while waiting:
        value = waiting.pop()
        yield value
        for reader in program.equations:
            if reader.name in _SAME and value in reader.reads:
                waiting += reader.outputs
