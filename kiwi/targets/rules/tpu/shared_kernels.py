"""XLA:TPU computes maps and reductions of a tensor in a kernel that iterates over it already.

For example, a matmul or a map also reduces its own result: for the gradient of a bias, or for the
maximum of a softmax.
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
    # The sum depends on the mean, and so needs a second pass over the product.
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
