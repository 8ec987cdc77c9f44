"""XLA:CPU copies operands before matmuls, convolutions, concatenations and windows read them.

1. A matmul reads matrices (`DotDecomposer`): the left operand's dimensions in the order batch,
   kept, summed, the right one's in the order batch, summed, kept, each group as the operator names
   it. Where both groups behind the batch are one dimension at most, they may be swapped
   (`TransposeFolding`). An operand that lies otherwise is transposed first, unless the map that
   computes it runs just before and writes it so. XLA:GPU's matmuls read more orders.
2. A convolution reads images in the order batch, space, features and kernels in the order space,
   inputs, outputs (`CpuConvCanonicalization`), with the same exception. The gradient of a kernel
   reads both of its operands otherwise, that of an image the kernel.
3. What nothing else reads is free once its copy is made, before result and other copies are.
4. A concatenation copies what it joins, and a window slides over its operand (`reduce_window`,
   `select_and_scatter`), each computed first. XLA:GPU fuses them.
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
"""The opcodes of rule 4, see above."""


@dataclass(frozen=True)
class CopiedMatrices(Workspace):
    """The operands that the compiler may copy for a unit's operators.

    - `matrices`: the operands of matmuls and convolutions. `freed`: the reads of rule 3.
    - `apart`: the results computed separately, as multiples of the result.
    """

    matrices: tuple[Matrix, ...] = ()
    freed: frozenset[int] = frozenset()
    apart: tuple[float, ...] = ()

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "CopiedMatrices":
        """The copied operands of `unit`."""
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
        """The buffers, see `Workspace.buffers`."""
        copied = [matrix.read for matrix in self.matrices if _is_transposed(matrix, shards)]
        apart = [int(part * result_bytes) for part in self.apart]
        sizes = [*(read_bytes[read] for read in copied if read not in self.freed), *apart]
        # A freed operand makes room for all that follows.
        largest = max((read_bytes[read] for read in copied if read in self.freed), default=0)
        return tuple(size for size in (*sizes, largest - sum(sizes) - result_bytes) if size > 0)


def _is_transposed(matrix: Matrix, shards: Mapping[int, int]) -> bool:
    """Whether it is copied. Factors of which a device has one element lie in any order."""
    batch, rows, columns = matrix.canonical(shards)
    readable = [(*batch, *rows, *columns)]
    if len(rows) <= 1 and len(columns) <= 1:
        readable.append((*batch, *columns, *rows))
    lies = matrix.lies(matrix.dims, shards)
    return all(lies != matrix.lies(order, shards) for order in readable)


def _is_written_so(units: UnitGraph, unit: Unit, source: int) -> bool:
    """Whether the map that computes a value runs just before, behind no barrier."""
    before = unit.index - 1
    return units.producer.get(source) == before and is_map(units.graph, units.units[before].root)


def _is_freed(units: UnitGraph, unit: Unit, value: int) -> bool:
    """Whether the unit reads a temporary once, as the last one, does not run again, and does not
    write where there is a place already."""
    inputs = (units.graph.program.equations[index].inputs for index in unit.equations)
    may_be_freed = not is_result(units, unit) and not may_be_recomputed(units, unit)
    if not may_be_freed or sum(equation_inputs.count(value) for equation_inputs in inputs) > 1:
        return False
    sources = temporaries(units, unit, (value,))
    return any(units.uses[source.index][-1].time == unit.index for _, source in sources)


def _computed_apart(units: UnitGraph, unit: Unit) -> Iterator[float]:
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
    """Sums over two dimensions, behind which the left operand has one of its own."""
    return jnp.einsum("bsd,bsh->dh", rows, columns)


def _copies(module: InspectedModule) -> bool:
    copies = [k for k in module.with_opcodes("copy") if k.writes(8 * 16 * 64)]
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
