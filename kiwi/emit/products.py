"""What a matmul yields stays in the order in which the library writes it.

XLA:GPU assigns layouts before it fuses. Where a gradient sums over batch and positions it may make
the batch the minor dimension of all states between the layers: norms then reduce columns, and each
matmul's operand and result are transposed. With its own order as a constraint on what matmuls yield
a vision transformer's step takes 6 % less, an encoder-decoder's 8 % (`benchmarks/device`, compiled
schedules). Products of batches are left alone: attention has to transpose some of them anyway, and
XLA chooses which.
"""

from typing import Any

from kiwi.emit.context import Context
from kiwi.emit.host_buffers import row_major
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.xla.rules.matrix_operands import MATMUL


def in_written_order(context: Context, unit: Unit, output: int, array: Any) -> Any:
    """A result of a unit; the layout of what a matmul yields is constrained to its own order where
    the compiler may choose another one."""
    execution = context.execution
    if not execution.compiler.transposes_products or not is_product(execution.units, unit):
        return array
    # XLA's partitioner knows no rule for a constraint of layouts, and would gather its operand.
    spec = execution.mesh.partition_spec(execution.layouts[output])
    return context.on_each_device(row_major, spec, spec)(array)


def is_product(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit yields what a matmul of one matrix writes: rows of two dimensions or more, as
    the positions of a batch, and columns of one."""
    root = units.graph.program.equations[unit.root]
    if root.name != MATMUL:
        return False
    (summed, _), (batch, _) = root.jaxpr_eqn.params["dimension_numbers"]
    rows, columns = (len(v.aval.shape) - len(summed) - len(batch) for v in root.jaxpr_eqn.invars)
    return not batch and rows > 1 and columns == 1
