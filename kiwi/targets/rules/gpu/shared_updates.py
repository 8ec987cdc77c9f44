"""XLA:GPU updates a parameter and its moments in one kernel.

Outside of updates XLA:GPU shares kernels in this way too rarely for a prediction.
"""

import jax
import jax.numpy as jnp

from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule
from kiwi.targets.shared_kernels import shared_kernels
from kiwi.targets.witness import Example, Witness, array

_WIDTH = 512


def _apply(graph: KernelGraph) -> KernelGraph:
    return graph.stating("shared", shared_kernels(graph.units, updates_alone=True))


def _updated(
    p: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g**2
    return p - m / (jnp.sqrt(v) + 1e-8), m, v


def _clipped(
    p: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the update for a gradient divided by its norm. The norm is computed by a separate
    kernel."""
    return _updated(p, m, v, g / jnp.sqrt((g**2).sum()))


_STATE = (array(_WIDTH, _WIDTH),) * 4

WITNESS = Witness(
    says="One kernel writes the parameter and both moments of Adam.",
    example=Example(_updated, _STATE),
    shows=lambda module: len(module.kernels) == 1 and len(module.kernels[0].results) == 3,
    control=Example(_clipped, _STATE),
)

RULE = Rule(
    name="shared_updates",
    does="One kernel updates a parameter and its moments.",
    component="MultiOutputFusion",
    observed="jax 0.10.2, H100",
    evidence=("tests/targets/test_shared_kernels.py", "benchmarks/fidelity"),
    witness=WITNESS,
    apply=_apply,
)
