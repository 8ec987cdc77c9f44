"""XLA:TPU reduce-scatters a gradient beside only one kernel: the next one of the backward pass.

The done of the reduce-scatter stands behind the next operator of the backward pass, as a rule
another matmul. That operator must not read the gradient.
"""

from kiwi.hlo.graph import Phase
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.targets.rule import Rule, of_units, stating
from kiwi.targets.summed_gradients import fully_sharded
from kiwi.targets.witness import Witness
from kiwi.xla.read.inspected import InspectedModule


def sums_behind(units: UnitGraph, unit: Unit) -> int | None:
    """Returns the index of the next unit outside of the update, beside which the unit's gradient is
    reduce-scattered.

    The result is None if the unit is no library call of the backward pass, if the next unit reads
    the gradient or belongs to another loop, or if there is no next unit.
    """
    if unit.phase is not Phase.BACKWARD or not is_of_library(units.graph, unit):
        return None
    following = (
        later for later in units.units[unit.index + 1 :] if later.phase is not Phase.UPDATE
    )
    next_unit = next(following, None)
    if next_unit is None or next_unit.loop != unit.loop:
        return None
    return next_unit.index if set(unit.outputs).isdisjoint(next_unit.reads) else None


def _behind(units: UnitGraph) -> dict[int, int]:
    later = {unit.index: sums_behind(units, unit) for unit in units.units}
    return {index: behind for index, behind in later.items() if behind is not None}


def _moves_beside_one(module: InspectedModule) -> bool:
    """Returns whether exactly one kernel stands between each start and its done: a matmul that also
    moves the reduce-scatter."""
    places = {kernel.name: place for place, kernel in enumerate(module.kernels)}
    starts = [places[collective.name] for collective in module.with_opcodes("AsyncCollectiveStart")]
    ends = [places[collective.name] for collective in module.with_opcodes("AsyncCollectiveDone")]
    pairs = list(zip(starts, ends, strict=False))
    return bool(pairs) and all(
        end == start + 2 and module.kernels[start + 1].computes("convolution", "reduce-scatter")
        for start, end in pairs
    )


WITNESS = Witness(
    says="One matmul stands between the start of each reduce-scatter and its end.",
    example=fully_sharded(16_384, 3, 2048, way=2),
    shows=_moves_beside_one,
    control=fully_sharded(16_384, 3, 2048),
)

RULE = Rule(
    name="tpu_sums_behind",
    does="The reduce-scatter of a gradient runs beside the next operator of the backward pass "
    "alone.",
    component="LatencyHidingScheduler of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e and v5p",
    evidence=("tests/xla/tpu", "tests/targets/test_tpu_sums.py", "benchmarks/fidelity"),
    witness=WITNESS,
    states=stating(sums_beside_one_kernel=True),
    apply=of_units("sums_behind", _behind),
)
