"""Sentences that say why options of an operator were not offered.

1. A mesh axis does not divide a factor of the operator's sharding rule evenly.
2. The operator needs a factor whole on every device, so that no mesh axis may cut the factor.
3. Recomputation is offered only for forward operators without side effects, if their results are
   read again after the forward pass and are not results of the function.
"""

from collections.abc import Iterator

from kiwi.hlo.graph import Phase
from kiwi.hlo.rule import ComposedRule
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.memory.residency import is_result
from kiwi.mesh import DeviceMesh
from kiwi.problem.build import PlanningProblem


def exclusions(planning: PlanningProblem, unit: int) -> tuple[str, ...]:
    """Returns the sentences that say which choices a unit does not have, and why."""
    asked = planning.units.units[unit]
    return (*rule_exclusions(asked.rule, planning.mesh), *_residency(planning, asked))


def rule_exclusions(rule: ComposedRule, mesh: DeviceMesh) -> Iterator[str]:
    """Yields the sentences of cases 1 and 2: shardings that the operator's rule does not have."""
    for factor in sorted(rule.shardable):
        size = rule.factor_sizes[factor]
        axes = [axis for axis in mesh.nontrivial_axes if size % mesh.shape[axis]]
        if axes and size > 1:
            names = " and ".join(f"{mesh.axis_names[axis]} ({mesh.shape[axis]})" for axis in axes)
            place = _where(rule, factor)
            yield f"Not over {names}: {place}, of size {size}, cannot be cut evenly."
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
    """Yields the sentence of case 3."""
    if any(option.recomputes for option in planning.unit_nodes[unit.index].residency.options):
        return
    why = why_not_recomputed(planning.units, unit)
    if planning.fixed.rewrite is not None:
        why = "This planner recomputes by a rule, and keeps this."
    elif not planning.fixed.recompute:
        why = "This planner recomputes nothing."
    yield f"Not recomputed: {why[0].lower()}{why[1:]}"


def why_not_recomputed(units: UnitGraph, unit: Unit) -> str:
    """Returns a sentence that says why no residency of a unit recomputes its result."""
    if unit.phase is not Phase.FORWARD:
        return f"It belongs to the {unit.phase.value} pass."
    if not unit.may_recompute:
        return "It has side effects, calls Python, or stands at a loop's border."
    if is_result(units, unit):
        return "It is a result of the function."
    return "Nothing behind the forward pass reads it."
