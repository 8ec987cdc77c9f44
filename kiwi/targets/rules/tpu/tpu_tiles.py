"""XLA:TPU pads buffers to whole tiles.

The two minor dimensions of a buffer are cut into tiles of 8 x 128 elements, and the dimension of a
vector into tiles of 128 to 1,024. The last tile of a dimension is padded. Layout assignment chooses
the minor dimensions with the least padding (`kiwi.mesh.tiles`).
"""

from dataclasses import replace

import jax.numpy as jnp

from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def _apply(graph: KernelGraph) -> KernelGraph:
    return replace(graph, storage=replace(graph.storage, is_tiled=True))


def _is_filled_up(module: InspectedModule) -> bool:
    (kernel,) = module.kernels
    (result,) = kernel.results
    return module.argument_bytes == result.stored_bytes > result.bytes


WITNESS = Witness(
    says="Argument and result take the bytes of whole tiles.",
    example=Example(jnp.sin, (array(30, 20),)),
    shows=_is_filled_up,
    control=Example(jnp.sin, (array(32, 128),)),
)


RULE = Rule(
    name="tpu_tiles",
    does="The two minor dimensions of a buffer are filled up to tiles of 8 x 128 elements.",
    component="layout assignment of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_buffers.py",),
    witness=WITNESS,
    apply=_apply,
)
