"""XLA:TPU computes the maps behind a convolution in the convolution's kernel, up to the first map
that several kernels read. Readers that a later map joins again are one kernel.

The result of that map is stored. An example is the gradient of an activation: the convolution adds
the gradient of a residual stream, selects by the sign of the input, and stores the result, which
the sums of a normalisation's gradient and two more convolutions read.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import is_map
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array, convolved
from kiwi.xla.read.inspected import InspectedModule


def ends_convolution(chains: Chains, index: int) -> bool:
    """Returns whether a convolution computes an equation's result as its epilogue.

    The equation's chain then has all readers of the convolution's result, which has as many bytes
    as the equation's, and no later map joins the equation's readers.
    """
    graph = chains.graph
    if _joins_again(chains, index):
        return False
    values, members = graph.program.values, chains.members(index)
    size = values[graph.program.equations[index].outputs[0]].size_bytes
    for tensor in chains.tensors(index):
        producer = values[tensor].producer
        if producer is None or "convolution" not in graph.opcodes[producer]:
            continue
        if values[tensor].size_bytes == size and chains.ends_call(members, tensor):
            return True
    return False


def _joins_again(chains: Chains, index: int) -> bool:
    """Returns whether one map reads all that depends on an equation's result, directly or through
    other maps."""
    graph = chains.graph
    open_ends = set(chains.readers(index))
    while len(open_ends) > 1:
        first = min(open_ends)
        if not is_map(graph, first) or graph.program.result_values.intersection(
            graph.program.equations[first].outputs
        ):
            return False
        open_ends.remove(first)
        open_ends.update(chains.readers(first))
    return all(is_map(graph, end) for end in open_ends)


_SHAPE, _KERNEL = (4, 32, 32, 64), (3, 3, 64, 64)
_ELEMENTS = 4 * 32 * 32 * 64
_ARGUMENTS = array(*_SHAPE), array(*_SHAPE), array(*_KERNEL)


def _read_twice(y: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    chosen = jnp.where(mask > 0, y, 0.0)
    return chosen.sum((0, 1, 2)), lax.sort(chosen)


def _selects_in_the_convolution(module: InspectedModule) -> bool:
    selecting = module.with_opcodes("select")
    writing = [k for k in selecting if k.computes("convolution") and k.writes(_ELEMENTS)]
    return len(selecting) == 1 and len(writing) == 1


WITNESS = Witness(
    says="The convolution's kernel selects and writes the result, which a sum and a sort read.",
    example=Example(lambda x, mask, w: _read_twice(convolved(x, w), mask), _ARGUMENTS),
    shows=_selects_in_the_convolution,
    control=Example(lambda x, mask, w: _read_twice(lax.sort(convolved(x, w)), mask), _ARGUMENTS),
)


RULE = Rule(
    name="maps_behind_convolutions",
    does="A convolution computes the maps of its result up to the first one that several kernels "
    "read, whose result is stored.",
    component="fusion of XLA:TPU (output fusion)",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_images.py", "benchmarks/field"),
    witness=WITNESS,
    states=fusing(stored=(ends_convolution,)),
)
