"""Memory that compilers take for the gradient of max pooling, beyond operands and result.

XLA expands `select_and_scatter` into a window reduction that finds the selected elements, value and
index per dimension, and a scatter of the gradient to these, onto zeros (jax 0.10.2; convnets of
`benchmarks/fidelity`):

- XLA:CPU holds the indices of all elements, which the reduction reads, from the start of the step:
  they depend on nothing. XLA:GPU computes them as it reduces.
- The selected values and indices, each as large as the gradient that comes in, are held until they
  are scattered.
- The zeros are the result's memory in a plan, which ties them to the step
  (`kiwi.emit.interpreter`). Without barriers they are there from the start.

`tests/plans/test_memory.py` and `tests/emit/test_max_pooling.py` hold it against compiled programs.
"""

from kiwi.hlo.program import MAX_POOLING_GRADIENT
from kiwi.hlo.units import Unit, UnitGraph

_INDEX_BYTES = 4


def index_bytes(units: UnitGraph, unit: Unit, result_bytes: int) -> int:
    """Local bytes of an index for each dimension and element of a unit's result.

    `result_bytes`: local bytes of the result of the unit, whose root is the gradient.
    """
    value = units.graph.program.values[unit.outputs[0]]
    return len(value.shape) * _INDEX_BYTES * result_bytes // value.itemsize


def found_bytes(units: UnitGraph, unit: Unit, result_bytes: int) -> int:
    """Local bytes of values and indices of the selected elements; 0 for other units."""
    program = units.graph.program
    equation = program.equations[unit.root]
    source = equation.inputs[0] if equation.name == MAX_POOLING_GRADIENT else None
    if not isinstance(source, int):
        return 0
    ratio = program.values[source].size_bytes / program.values[unit.outputs[0]].size_bytes
    return int(ratio * (result_bytes + index_bytes(units, unit, result_bytes)))
