"""cuBLAS adds a bias and one tensor to a matmul's result. Other maps behind it are another kernel.

The sum of a matmul's result with a bias and one tensor is computed by cuBLAS's epilogue, no matter
who else reads the sum. Other maps behind a matmul or a convolution read its result from memory and
write theirs. The addition is a separate kernel, too, if the matmul's result is a partial sum that
must first be reduced over devices.
"""

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp

from kiwi.hlo.equation_kinds import ADDS, LAYOUT
from kiwi.hlo.graph import HloGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.library_calls import adds_behind, maps_behind
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def adds_one_tensor(graph: HloGraph, absorbed: Sequence[int], reads: Sequence[int]) -> bool:
    """Returns whether a chain adds at most a bias and one tensor to a matmul's result.

    - `absorbed`: the equations of the chain.
    - `reads`: the values that the chain reads, including the matmul's result.
    """
    sizes = [prod(graph.program.values[value].shape) for value in reads]
    is_sum = all(graph.opcodes[index] <= ADDS | LAYOUT for index in absorbed)
    return is_sum and sizes.count(max(sizes)) <= 2


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    maps = {unit.index: True for unit in units.units if maps_behind(units, unit)}
    adds = {unit.index: unit.rule.reduction for unit in units.units if adds_behind(units, unit)}
    return graph.stating("maps_apart", maps).stating("adds_apart", adds)


_MATRIX = array(256, 256)


def _adds_inside(module: InspectedModule) -> bool:
    return len(module.kernels) == 1 and bool(module.with_opcodes("__cublas$lt$matmul"))


WITNESS = Witness(
    says="The matmul, the bias and the tensor that is added are one call of cuBLAS.",
    example=Example(lambda x, w, b, y: x @ w + b + y, (_MATRIX, _MATRIX, array(256), _MATRIX)),
    shows=_adds_inside,
    control=Example(lambda x, w, b: jnp.sin(x @ w + b), (_MATRIX, _MATRIX, array(256))),
)


RULE = Rule(
    name="cublas_epilogues",
    does="cuBLAS adds a bias and one tensor to a matmul's result. Other maps behind a matmul or a "
    "convolution are a kernel of their own.",
    component="GemmRewriter; cuBLAS, cuDNN",
    observed="jax 0.10.2, H100",
    evidence=("tests/hlo/test_fusion.py", "tests/problem/test_costs.py"),
    witness=WITNESS,
    states=fusing(epilogues=(adds_one_tensor,)),
    apply=_apply,
)
