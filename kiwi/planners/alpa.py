"""Sharding alone, and the baselines of the paper that recompute by a rule before they shard.

- "alpa": sharding without recomputation (Zheng et al. 2022).
- "alpa+dots": matrix products (and convolutions) are kept, everything else of the forward pass
  is recomputed: the policy `jax.checkpoint_policies.dots_saveable` over the whole step.
- "alpa+megatron": the attention core is recomputed (Korthikanti et al. 2022, section 5): what
  lies on a way from a batched matrix product (the scores) through an exponential (the softmax)
  to another batched one, without the latter, whose result is kept.

A rule says which units run again; each runs as late as it can (`kiwi.memory.residency`).
Sharding is then chosen under the memory limit by the same solver as for "alpa".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from kiwi.errors import InvalidFunctionError
from kiwi.hlo.graph import Phase
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.memory.residency import may_run_again
from kiwi.messages import topics
from kiwi.options import Settings
from kiwi.planners.problem_planner import ProblemPlanner
from kiwi.problem.build import Fixed
from kiwi.problem.step import StepToPlan

Rule = Callable[[UnitGraph, int, Settings], frozenset[int]]
"""Takes the units of a step and a budget in bytes, returns the indices of the units to
recompute."""

_MATMULS = frozenset({"dot_general", "conv_general_dilated"})


def all_but_matmuls(units: UnitGraph, _: int, __: Settings) -> frozenset[int]:
    """Units of the forward pass without a matrix product."""
    return frozenset(
        unit.index
        for unit in units.units
        if may_run_again(units, unit) and not _primitives(units, unit) & _MATMULS
    )


def attention_core(units: UnitGraph, _: int, __: Settings) -> frozenset[int]:
    """Units on a way from scores through a softmax to the mixed values, without the latter; raises
    `InvalidFunctionError` if there is none."""
    batched = frozenset(u.index for u in units.units if _has_batched_matmul(units, u))
    before, behind = _neighbours(units)
    found: set[int] = set()
    for unit in units.units:
        is_softmax = "exp" in _primitives(units, unit) and unit.index not in batched
        if unit.phase is Phase.FORWARD and is_softmax:
            above, below = _walk(unit.index, before, batched), _walk(unit.index, behind, batched)
            if above & batched and below & batched:
                scores = set().union(*(_walk(s, behind, batched) for s in above & batched))
                found |= (above & (batched | scores)) | (below - batched) | {unit.index}
    found = {u for u in found if may_run_again(units, units.units[u])}
    if not found:
        raise InvalidFunctionError(
            "The step has no attention core: no softmax between two batched matrix products.",
            topic=topics.NO_ATTENTION,
        )
    return frozenset(found)


def _primitives(units: UnitGraph, unit: Unit) -> set[str]:
    return {units.graph.program.equations[e].name for e in unit.equations}


def _has_batched_matmul(units: UnitGraph, unit: Unit) -> bool:
    equations = [units.graph.program.equations[e].jaxpr_eqn for e in unit.equations]
    dots = [e for e in equations if e.primitive.name == "dot_general"]
    return any(e.params["dimension_numbers"][1][0] for e in dots)


def _neighbours(units: UnitGraph) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For each unit of the forward pass the producers of its operands, and its readers there."""
    forward = [u for u in units.units if u.phase is Phase.FORWARD]
    before = {u.index: {units.producer[v] for v in u.reads if v in units.producer} for u in forward}
    behind: dict[int, set[int]] = {u.index: set() for u in forward}
    for reader, read in before.items():
        for unit in read:
            behind[unit].add(reader)
    return before, behind


def _walk(start: int, neighbours: dict[int, set[int]], stops: frozenset[int]) -> set[int]:
    """All units reached from `start`, without `start` itself, not going past `stops`."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        new = neighbours[waiting.pop()] - found
        found |= new
        waiting += new - stops
    return found


@dataclass(frozen=True)
class Alpa(ProblemPlanner):
    """Sharding alone."""

    heeds_hints: ClassVar[bool] = True
    opens_loops: ClassVar[bool] = True
    is_start: ClassVar[bool] = True


@dataclass(frozen=True)
class RuleBased(ProblemPlanner):
    """Sharding of a step whose recomputation is determined by `rule`."""

    rule: Rule

    opens_loops: ClassVar[bool] = True
    is_start: ClassVar[bool] = True

    def fix(self, fixed: Fixed, step: StepToPlan, budget_bytes: int, settings: Settings) -> Fixed:
        """Fixes what is recomputed."""
        return replace(fixed, rewrite=self.rule(step.units, budget_bytes, settings))


ALPA = Alpa("alpa", "sharding alone (Zheng et al., 2022)")
RULE_BASED = (
    RuleBased("alpa+dots", "sharding, with all but matrix products recomputed", all_but_matmuls),
    RuleBased("alpa+megatron", "sharding, with the attention core recomputed", attention_core),
)
