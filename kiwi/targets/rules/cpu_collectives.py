"""XLA:CPU has no reduce-scatter, and sums over devices to another place than the summands.

It all-reduces, once for each dimension, and cuts (rule (b) of `kiwi.kernels.partitioner`).
"""

from collections.abc import Collection, Mapping, Sequence

from kiwi.hlo.program import Equation, Value
from kiwi.mesh import DeviceMesh
from kiwi.targets.rule import Rule, stating


def _scatters_nothing(mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
    return False


def _sums_elsewhere(root: Equation, cuts: Sequence[int], scattered: Collection[int]) -> bool:
    return True


ALL_REDUCES = Rule(
    name="cpu_all_reduces",
    does="Partial sums are all-reduced, once for each dimension, and cut.",
    component="collectives of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/resharding",),
    states=stating(scatters_sums=_scatters_nothing),
)

SUMS_ELSEWHERE = Rule(
    name="cpu_sums_elsewhere",
    does="A sum over devices has another buffer than its summands.",
    component="buffer assignment of XLA:CPU",
    observed="jax 0.10.2: a product whose operands are cut along what is summed over",
    evidence=("tests/plans/test_memory.py",),
    states=stating(sums_elsewhere=_sums_elsewhere),
)
