"""A scan that a plan leaves whole holds its stacked results from the start of the step.

It writes the results behind its carry slice by slice over zeros, whose place they take. The zeros
depend on nothing, so that XLA's scheduler makes them first, and no barrier reaches them.
"""

from itertools import compress

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.rule import Rule, more_of_units


def _held(units: UnitGraph, unit: Unit) -> tuple[HeldEarly, ...]:
    program = units.graph.program
    scan = program.equations[unit.root]
    if scan.name != "scan" or unit.index == 0:
        return ()
    sizes = [program.values[output].size_bytes for output in unit.outputs]
    stacked_bytes = sum(compress(sizes, scan.stacked_outputs))
    return (HeldEarly(unit.index, stacked_bytes, max(1, sum(sizes))),)


RULE = Rule(
    name="whole_scans",
    does="The stacked results of a scan that is left whole exist from the start of the step.",
    component="WhileLoop lowering of `jax.lax.scan`, HeapSimulator",
    observed="jax 0.10.2",
    evidence=("benchmarks/fidelity",),
    apply=more_of_units(
        "held_early", lambda units: {u.index: _held(units, u) for u in units.units}
    ),
)
