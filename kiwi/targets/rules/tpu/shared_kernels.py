"""XLA:TPU computes whatever maps or reduces a tensor in the kernel that goes over it anyway.

A matmul or a map also reduces what it yields: for the gradient of a bias, or the maximum of a
softmax.
"""

import jax

from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule
from kiwi.targets.shared_kernels import shared_kernels
from kiwi.targets.witness import Example, Witness, array

_WIDTH = 512


def _apply(graph: KernelGraph) -> KernelGraph:
    return graph.stating("shared", shared_kernels(graph.units, updates_alone=False))


def _deviations(x: jax.Array, w: jax.Array) -> jax.Array:
    y = x @ w
    return ((y - y.mean(-1, keepdims=True)) ** 2).sum(-1)


_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="One kernel multiplies, writes the product and sums its columns.",
    example=Example(lambda x, w: (x @ w, (x @ w).sum(0)), _MATRICES),
    shows=lambda module: len(module.kernels) == 1,
    # What depends on the mean goes over the product again.
    control=Example(_deviations, _MATRICES),
)

RULE = Rule(
    name="shared_kernels",
    does="A kernel that goes over a tensor also computes what else maps or reduces it.",
    component="multi-output fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/targets/test_shared_kernels.py", "benchmarks/fidelity"),
    witness=WITNESS,
    apply=_apply,
)
