"""XLA:CPU has no reduce-scatter.

It all-reduces partial sums, once for each dimension that ends up cut, and then slices the result
(rule (b) of `kiwi.kernels.partitioner`).
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.hlo.program import Value
from kiwi.mesh import DeviceMesh
from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def _scatters_nothing(mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
    return False


_MATRICES = (array(256, 256),) * 2


def _only_all_reduces(module: InspectedModule) -> bool:
    return list(module.collectives) == ["all-reduce"]


WITNESS = Witness(
    says="Sums that end up cut are all-reduced, and nothing is reduce-scattered.",
    example=Example(jnp.matmul, _MATRICES, (4,), (P(None, "x"), P("x")), P("x")),
    shows=_only_all_reduces,
    control=Example(jnp.matmul, _MATRICES, (4,), (P("x"), P()), P("x")),
)

RULE = Rule(
    name="cpu_all_reduces",
    does="Partial sums are all-reduced, once for each dimension, and cut.",
    component="collectives of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/resharding",),
    witness=WITNESS,
    states=stating(scatters_sums=_scatters_nothing),
)
