"""Why options of an operator were not offered, in sentences.

1. A mesh axis does not divide a factor of the operator's sharding rule evenly.
2. A factor may not be cut at all: the operator needs it whole on every device.
3. Recomputation is offered only for forward operators without side effects, whose results are read
   again after the forward pass and are no results of the function.
"""

from collections.abc import Iterator

from kiwi.hlo.graph import Phase
from kiwi.hlo.rule import ComposedRule
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.memory.residency import is_result
from kiwi.mesh import DeviceMesh
from kiwi.problem.build import PlanningProblem


def exclusions(planning: PlanningProblem, unit: int) -> tuple[str, ...]:
    """The sentences for one unit."""
    asked = planning.units.units[unit]
    return (*rule_exclusions(asked.rule, planning.mesh), *_residency(planning, asked))


def rule_exclusions(rule: ComposedRule, mesh: DeviceMesh) -> Iterator[str]:
    """Cases 1 and 2: the shardings that an operator's rule does not have."""
    for factor in sorted(rule.shardable):
        size = rule.factor_sizes[factor]
        axes = [a for a in mesh.nontrivial_axes if size % mesh.shape[a]]
        if axes and size > 1:
            names = " and ".join(f"{mesh.axis_names[a]} ({mesh.shape[a]})" for a in axes)
            where = _where(rule, factor)
            yield f"Not over {names}: {where}, of size {size}, cannot be cut evenly."
    for factor in sorted(rule.blocked):
        size = rule.factor_sizes[factor]
        if size > 1:
            yield f"{_where(rule, factor)}, of size {size}, must be whole on every device."


def _where(rule: ComposedRule, factor: int) -> str:
    number = "the result" if len(rule.results) == 1 else "result {}"
    tensors = [(number.format(k), dims) for k, dims in enumerate(rule.results)]
    tensors += [(f"operand {k}", dims) for k, (_, dims) in enumerate(rule.reads)]
    for tensor, dims in tensors:
        for dim, factors in enumerate(dims):
            if factor in factors:
                return f"Dimension {dim} of {tensor}"
    return f"Factor {factor}"


def _residency(planning: PlanningProblem, unit: Unit) -> Iterator[str]:
    """Case 3."""
    if any(r.recomputes for r in planning.unit_nodes[unit.index].residency.options):
        return
    why = why_not_recomputed(planning.units, unit)
    if planning.fixed.rewrite is not None:
        why = "This planner recomputes by a rule, and keeps this."
    elif not planning.fixed.recompute:
        why = "This planner recomputes nothing."
    yield f"Not recomputed: {why[0].lower()}{why[1:]}"


def why_not_recomputed(units: UnitGraph, unit: Unit) -> str:
    """Why all residencies of a unit keep its result, in a sentence."""
    if unit.phase is not Phase.FORWARD:
        return f"It belongs to the {unit.phase.value} pass."
    if not unit.may_recompute:
        return "It has side effects, calls Python, or stands at a loop's border."
    if is_result(units, unit):
        return "It is a result of the function."
    return "Nothing behind the forward pass reads it."
