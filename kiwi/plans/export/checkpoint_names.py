"""The residencies of the values that `checkpoint_name` names, as a plan has them."""

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
"""The residency of a name whose values a plan treats differently, one layer from another."""

_SAME = frozenset({NAME, STACK, "reduce_precision"})
"""Primitives whose result is the same value, saved or about to be. `jax.checkpoint` marks what it
saves by a `reduce_precision`."""


def checkpoint_names(plan: PlanRecord) -> dict[str, str]:
    """The residency of each name that `checkpoint_name` gives values of the planned step.

    - "device": the values are kept for the backward pass.
    - "offload": they are copied to the host's memory.
    - "remat": they are not kept. A value that the backward pass does not read is among these.
    - "mixed": the plan treats the values of one name differently.

    A plan with `granularity="names"` has no mixed ones.
    """
    program = plan.execution.units.graph.program
    if program.residencies is not None:
        return {n: program.residencies.get(n, REMAT) for n in program.checkpointed_names}
    residencies: dict[str, set[str]] = defaultdict(set)
    kept, offloaded = kept_for_backward(plan.execution), _offloaded(plan)
    for equation in program.equations:
        if equation.name == NAME and _is_forward(plan.execution, equation):
            values = set(_same_values(plan.execution, equation))
            residency = OFFLOAD if values & offloaded else DEVICE if values & kept else REMAT
            residencies[equation.jaxpr_eqn.params["name"]].add(residency)
    return {name: r.pop() if len(r) == 1 else MIXED for name, r in residencies.items()}


def _offloaded(plan: PlanRecord) -> frozenset[int]:
    """The values that the plan offloads."""
    units = plan.execution.units
    chosen = (u for u, d in enumerate(plan.decisions) if d.residency == OFFLOAD)
    return frozenset(v for u in chosen for v in units.units[u].outputs)


def _is_forward(execution: Execution, equation: Equation) -> bool:
    """Whether an equation is of the forward pass, and not of a recomputation that was traced."""
    return execution.units.graph.phase_of(equation.index) is Phase.FORWARD


def _same_values(execution: Execution, equation: Equation) -> Iterator[int]:
    """A named value, as it was before it had the name, under its other names, and as it is
    saved."""
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
