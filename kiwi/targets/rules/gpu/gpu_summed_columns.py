"""XLA:GPU sums the columns of a map's result in the kernel that writes the result.

Such a kernel writes over none of its operands. The gradient of a bias is such a sum. The columns of
a tensor with few rows are summed by a separate kernel.
"""

import jax

from kiwi.hlo.graph import HloGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.reductions import REDUCTIONS
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_ROWS, _WIDTH = 65_536, 512


def _has_summed_columns(graph: HloGraph, value: int) -> bool:
    """Returns whether a reduction reads a value and keeps its last dimension."""
    last = len(graph.program.values[value].shape) - 1
    readers = (graph.program.equations[index] for index in graph.program.readers[value])
    reduced = (
        equation.jaxpr_eqn.params["axes"] for equation in readers if equation.name in REDUCTIONS
    )
    return any(last not in axes for axes in reduced)


def _apply(graph: KernelGraph) -> KernelGraph:
    hlo = graph.units.graph
    kept = {
        kernel.unit.index: ()
        for kernel in graph.kernels
        if kernel.overwritable and _has_summed_columns(hlo, kernel.unit.outputs[0])
    }
    return graph.stating("overwritable", kept)


def _gradients(
    h: jax.Array, w: jax.Array, g: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradient with respect to a bias behind a GELU, and a sum over the gradient that
    the preceding matmul passes on."""
    before = jax.vjp(jax.nn.gelu, h)[1](g @ v)[0]
    return before.sum(0), (before @ w).sum(0)


def _sums_while_it_writes(module: InspectedModule) -> bool:
    writing = [kernel for kernel in module.with_opcodes("tanh") if kernel.writes(_ROWS * _WIDTH)]
    return [kernel.computes("reduce") and not module.is_in_place(kernel) for kernel in writing] == [
        True
    ]


_TENSOR, _SQUARE = array(_ROWS, _WIDTH), array(_WIDTH, _WIDTH)
_ARGUMENTS = _TENSOR, _SQUARE, _TENSOR, _SQUARE

WITNESS = Witness(
    says="The kernel of the GELU's gradient also sums columns, and writes beside what it reads.",
    example=Example(_gradients, _ARGUMENTS),
    shows=_sums_while_it_writes,
    control=Example(lambda *arguments: _gradients(*arguments)[1], _ARGUMENTS),
)

RULE = Rule(
    name="gpu_summed_columns",
    does="A map whose result's columns are summed up, as for the gradient of a bias, is one kernel "
    "with the sum, and writes over nothing that it reads.",
    component="MultiOutputFusion",
    observed="jax 0.10.2, H100: the gradient of a GELU",
    evidence=("tests/xla/gpu/test_compiler.py",),
    witness=WITNESS,
    apply=_apply,
    limits="Up to some thousand rows are summed up by a kernel of their own.",
)
