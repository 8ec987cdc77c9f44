"""XLA:CPU holds the zeros that a scatter adds to from the start of the step.

Its result takes their place. A plan expands large zeros in the step itself, and a result of the
function has its place from the start anyway.
"""

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.rule import Rule, more_of_units


def _adds_to_constants(units: UnitGraph, unit: Unit) -> bool:
    """Whether a scatter outside of loops writes a temporary, and starts from a small constant."""
    program = units.graph.program
    if program.equations[unit.root].name != "scatter-add":
        return False
    start = program.equations[unit.root].inputs[0]
    producer = program.values[start].producer if isinstance(start, int) else None
    if producer is None or producer not in unit.equations or program.equations[producer].reads:
        return False
    if program.is_large_constant(producer):
        return False
    fresh = program.result_values - set(units.aliased_results)
    return unit.loop is None and unit.index > 0 and fresh.isdisjoint(unit.outputs)


def _held(units: UnitGraph) -> dict[int, tuple[HeldEarly, ...]]:
    scatters = (unit.index for unit in units.units if _adds_to_constants(units, unit))
    return {index: (HeldEarly(index),) for index in scatters}


RULE = Rule(
    name="cpu_zeros_of_scatters",
    does="The zeros that a scatter adds to exist from the start of the step.",
    component="scheduler of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/fidelity",),
    apply=more_of_units("held_early", _held),
)
