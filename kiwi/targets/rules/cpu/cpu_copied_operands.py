"""XLA:CPU copies operands before matmuls, convolutions, concatenations and windows read them.

1. A matmul reads matrices (`DotDecomposer`). The dimensions of the left operand must lie in the
   order batch, kept, summed; those of the right operand in the order batch, summed, kept. Within a
   group the operator gives the order. If both groups behind the batch have at most one dimension,
   they may be swapped (`TransposeFolding`). An operand in another order is transposed to a copy
   first, unless the map that computes it runs just before and writes the order that is needed.
   XLA:GPU's matmuls read more orders.
2. A convolution reads images in the order batch, space, features, and kernels in the order space,
   inputs, outputs (`CpuConvCanonicalization`), with the same exception. The gradient with respect
   to a kernel reads both operands in other orders. The gradient with respect to an image reads the
   kernel in another order.
3. An operand that nothing else reads is free as soon as its copy exists, before the result and
   other copies are allocated.
4. Operands of concatenations, and of windows (`reduce_window`, `select_and_scatter`), are computed
   to buffers first. XLA:GPU fuses them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import Workspace
from kiwi.kernels.matrix_operands import CONVOLUTION, MATMUL, Matrix, matrices
from kiwi.memory.live_ranges import temporaries
from kiwi.memory.residency import is_result, may_be_recomputed
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_COMPUTE_APART = frozenset({"concatenate", "reduce_window", "select_and_scatter"})
"""The opcodes of case 4 of the module's text."""


@dataclass(frozen=True)
class CopiedMatrices(Workspace):
    """The operands that the compiler may copy for a unit's operators.

    - `matrices`: the operands of matmuls and convolutions that are copied if they lie in another
      order than is needed (cases 1 and 2 of the module's text).
    - `freed`: the reads of the unit that are free once they are copied (case 3).
    - `apart`: the bytes of operands that are computed to buffers (case 4), as multiples of the
      result's bytes.
    """

    matrices: tuple[Matrix, ...] = ()
    freed: frozenset[int] = frozenset()
    apart: tuple[float, ...] = ()

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "CopiedMatrices":
        """Returns the operands that the compiler may copy for `unit`."""
        operands = matrices(units, unit, (MATMUL, CONVOLUTION))
        values = [value for value, _ in unit.rule.reads]
        copied = tuple(
            matrix for matrix in operands if not _is_written_so(units, unit, values[matrix.read])
        )
        freed = frozenset(
            matrix.read for matrix in copied if _is_freed(units, unit, values[matrix.read])
        )
        return cls(copied, freed, tuple(_computed_apart(units, unit)))

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Returns the local bytes of each buffer, see `Workspace.buffers`."""
        copied = [matrix.read for matrix in self.matrices if _is_transposed(matrix, shards)]
        apart = [int(part * result_bytes) for part in self.apart]
        sizes = [*(read_bytes[read] for read in copied if read not in self.freed), *apart]
        # A copy replaces its freed operand before the other buffers are allocated. Only its excess
        # over these buffers and the result counts.
        largest = max((read_bytes[read] for read in copied if read in self.freed), default=0)
        return tuple(size for size in (*sizes, largest - sum(sizes) - result_bytes) if size > 0)


def _is_transposed(matrix: Matrix, shards: Mapping[int, int]) -> bool:
    """Returns whether an operand is copied. A factor does not affect the order if a device holds
    only one element of it."""
    batch, rows, columns = matrix.canonical(shards)
    readable = [(*batch, *rows, *columns)]
    if len(rows) <= 1 and len(columns) <= 1:
        readable.append((*batch, *columns, *rows))
    lies = matrix.lies(matrix.dims, shards)
    return all(lies != matrix.lies(order, shards) for order in readable)


def _is_written_so(units: UnitGraph, unit: Unit, source: int) -> bool:
    """Returns whether a map in the previous unit computes a value, so that it can write the order
    that is needed."""
    previous = unit.index - 1
    return units.producer.get(source) == previous and is_map(
        units.graph, units.units[previous].root
    )


def _is_freed(units: UnitGraph, unit: Unit, value: int) -> bool:
    """Returns whether a value is free once its copy is made.

    The unit must read the value once, must be the last reader of one of its temporaries, must not
    run again, and must not compute a result of the step.
    """
    inputs = (units.graph.program.equations[index].inputs for index in unit.equations)
    may_be_freed = not is_result(units, unit) and not may_be_recomputed(units, unit)
    if not may_be_freed or sum(equation_inputs.count(value) for equation_inputs in inputs) > 1:
        return False
    sources = temporaries(units, unit, (value,))
    return any(units.uses[source.index][-1].time == unit.index for _, source in sources)


def _computed_apart(units: UnitGraph, unit: Unit) -> Iterator[float]:
    """Yields the bytes of the operands of case 4 that the unit computes, as multiples of the
    result's bytes."""
    program = units.graph.program
    root = program.equations[unit.root]
    if units.graph.opcodes[unit.root] & _COMPUTE_APART:
        size = program.values[root.outputs[0]].size_bytes
        for operand in root.inputs:
            if isinstance(operand, int) and operand not in unit.reads and size:
                yield program.values[operand].size_bytes / size


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    return graph.stating(
        "workspace", {unit.index: CopiedMatrices.of(units, unit) for unit in units.units}
    )


def _joined(rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Returns a matmul that sums over two dimensions in front of the left operand's kept
    dimension."""
    return jnp.einsum("bsd,bsh->dh", rows, columns)


def _copies(module: InspectedModule) -> bool:
    copies = [kernel for kernel in module.with_opcodes("copy") if kernel.writes(8 * 16 * 64)]
    return len(copies) == 1 and not copies[0].computes("dot")


WITNESS = Witness(
    says="A kernel copies the left operand in front of the matmul.",
    example=Example(_joined, (array(8, 16, 64), array(8, 16, 128))),
    shows=_copies,
    # A batch of matrices, one of them transposed, is read as it lies.
    control=Example(
        lambda rows, columns: jnp.einsum("bsd,bhs->bdh", rows, columns),
        (array(8, 16, 64), array(8, 128, 16)),
    ),
)


RULE = Rule(
    name="cpu_copied_operands",
    does="Operands of matmuls and convolutions that lie in another order than the library reads "
    "are transposed first; what concatenations join and windows slide over is computed first.",
    component="DotDecomposer, TransposeFolding, CpuConvCanonicalization",
    observed="jax 0.10.2",
    evidence=("tests/plans/test_memory.py", "benchmarks/fidelity", "benchmarks/remat"),
    witness=WITNESS,
    apply=_apply,
)
