"""XLA:TPU computes a scatter that sets one element per row as a map that compares positions."""

import jax
import jax.numpy as jnp

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import sets_one_per_row
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def is_comparison(chains: Chains, index: int) -> bool:
    """Returns whether an equation is a scatter that sets one element of each row, such as the
    gradient of `take_along_axis`."""
    return sets_one_per_row(chains.graph.program.equations[index])


def _loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -chosen.sum()


def _compares(module: InspectedModule) -> bool:
    return not module.with_opcodes("scatter") and bool(module.with_opcodes("iota", "compare"))


WITNESS = Witness(
    says="No kernel scatters, and one compares positions with the labels.",
    example=Example(jax.grad(_loss), (array(512, 1024), array(512, dtype="int32"))),
    shows=_compares,
    # The gradient of an embedding adds to rows, and several indices may name the same row.
    control=Example(
        jax.grad(lambda table, ids: jnp.sin(table[ids]).sum()),
        (array(512, 1024), array(256, dtype="int32")),
    ),
)


RULE = Rule(
    name="scatters_as_maps",
    does="A scatter that sets one element of each row compares positions, and is fused as a map "
    "is.",
    component="ScatterExpander and fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/hlo/test_fusion.py",),
    witness=WITNESS,
    states=fusing(maps=(is_comparison,)),
)
