"""Sharding alone, and the paper's baselines, which fix recomputation by a rule before they shard.

- "alpa": sharding without recomputation (Zheng et al. 2022).
- "alpa+dots": matmuls and convolutions are kept, and all other units of the forward pass are
  recomputed. This is the policy `jax.checkpoint_policies.dots_saveable` over the whole step.
- "alpa+megatron": the attention core is recomputed (Korthikanti et al. 2022, section 5). The core
  is every unit on a path from a batched matmul (the scores) through an exponential (the softmax)
  to another batched matmul. The result of the second matmul is kept.

A rule determines the recomputed units. Each runs as late as it can (`kiwi.memory.residency`).
Shardings are then chosen under the memory limit by the same solver as for "alpa".
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
"""Returns the indices of the units to recompute. The arguments are the units of a step, a budget in
bytes, and the settings."""

_MATMULS = frozenset({"dot_general", "conv_general_dilated"})
"""The primitives of matmuls and convolutions."""


def all_but_matmuls(units: UnitGraph, _: int, __: Settings) -> frozenset[int]:
    """Returns the units that may be recomputed and contain no matmul or convolution."""
    return frozenset(
        unit.index
        for unit in units.units
        if may_run_again(units, unit) and not _primitives(units, unit) & _MATMULS
    )


def attention_core(units: UnitGraph, _: int, __: Settings) -> frozenset[int]:
    """Returns the units of attention cores that may be recomputed: the units on a path from the
    scores through a softmax to the second batched matmul, without that matmul.

    **Raises:** `InvalidFunctionError` if there is none.
    """
    batched = frozenset(unit.index for unit in units.units if _has_batched_matmul(units, unit))
    before, behind = _neighbours(units)
    core: set[int] = set()
    for unit in units.units:
        is_softmax = "exp" in _primitives(units, unit) and unit.index not in batched
        if unit.phase is Phase.FORWARD and is_softmax:
            above, below = _walk(unit.index, before, batched), _walk(unit.index, behind, batched)
            if above & batched and below & batched:
                scores = set().union(*(_walk(score, behind, batched) for score in above & batched))
                core |= (above & (batched | scores)) | (below - batched) | {unit.index}
    core = {index for index in core if may_run_again(units, units.units[index])}
    if not core:
        raise InvalidFunctionError(
            "The step has no attention core: no softmax between two batched matrix products.",
            topic=topics.NO_ATTENTION,
        )
    return frozenset(core)


def _primitives(units: UnitGraph, unit: Unit) -> set[str]:
    """Returns the names of the primitives in a unit."""
    return {units.graph.program.equations[index].name for index in unit.equations}


def _has_batched_matmul(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit contains a matmul with batch dimensions."""
    equations = [units.graph.program.equations[index].jaxpr_eqn for index in unit.equations]
    dots = [eqn for eqn in equations if eqn.primitive.name == "dot_general"]
    return any(dot.params["dimension_numbers"][1][0] for dot in dots)


def _neighbours(units: UnitGraph) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Returns, for each unit of the forward pass, the producers of its operands, and its readers in
    the forward pass."""
    forward = [unit for unit in units.units if unit.phase is Phase.FORWARD]
    before = {
        unit.index: {units.producer[read] for read in unit.reads if read in units.producer}
        for unit in forward
    }
    behind: dict[int, set[int]] = {unit.index: set() for unit in forward}
    for reader, read in before.items():
        for unit in read:
            behind[unit].add(reader)
    return before, behind


def _walk(start: int, neighbours: dict[int, set[int]], stops: frozenset[int]) -> set[int]:
    """Returns all units reached from `start`, without `start` itself. Units in `stops` are reached,
    and the walk does not continue from them."""
    reached: set[int] = set()
    waiting = [start]
    while waiting:
        new = neighbours[waiting.pop()] - reached
        reached |= new
        waiting += new - stops
    return reached


@dataclass(frozen=True)
class Alpa(ProblemPlanner):
    """Chooses shardings, without recomputation."""

    heeds_hints: ClassVar[bool] = True
    opens_loops: ClassVar[bool] = True


@dataclass(frozen=True)
class RuleBased(ProblemPlanner):
    """Chooses the shardings of a step whose recomputation `rule` determines."""

    rule: Rule

    opens_loops: ClassVar[bool] = True

    def fix(self, fixed: Fixed, step: StepToPlan, budget_bytes: int, settings: Settings) -> Fixed:
        """Returns the restrictions with the units that the rule recomputes."""
        return replace(fixed, rewrite=self.rule(step.units, budget_bytes, settings))


ALPA = Alpa("alpa", "sharding alone (Zheng et al., 2022)")
RULE_BASED = (
    RuleBased("alpa+dots", "sharding, with all but matrix products recomputed", all_but_matmuls),
    RuleBased("alpa+megatron", "sharding, with the attention core recomputed", attention_core),
)
"""The baselines that recompute by a rule."""
