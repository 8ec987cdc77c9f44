"""The gradient of max pooling holds the values and the indices of the selected elements.

A window reduction finds the value of each selected element, and an index per dimension. Each of
these arrays has as many elements as the incoming gradient. They are held until the gradient is
scattered. XLA:TPU has a kernel that needs none of them.
"""

from kiwi.hlo.units import UnitGraph
from kiwi.targets.max_pooling import (
    FORWARD,
    GRADIENT,
    IMAGES,
    Indices,
    SelectedElements,
    gradients,
)
from kiwi.targets.rule import Rule, of_units
from kiwi.targets.witness import Witness
from kiwi.xla.read.inspected import InspectedModule


def _selected(units: UnitGraph) -> dict[int, SelectedElements]:
    program = units.graph.program
    selected = {}
    for unit in gradients(units):
        source = program.equations[unit.root].inputs[0]
        if isinstance(source, int):
            result = program.values[unit.outputs[0]]
            ratio = program.values[source].size_bytes / result.size_bytes
            selected[unit.index] = SelectedElements(ratio, Indices.of(units, unit))
    return selected


def _writes_selected(module: InspectedModule) -> bool:
    reductions = module.with_opcodes("reduce-window")
    indices = [[array for array in kernel.results if array.dtype == "s32"] for kernel in reductions]
    return any(
        len(arrays) == 4 and all(4 * array.elements == IMAGES.size for array in arrays)
        for arrays in indices
    )


WITNESS = Witness(
    says="A window reduction writes an index per dimension beside the selected values.",
    example=GRADIENT,
    shows=_writes_selected,
    control=FORWARD,
)

RULE = Rule(
    name="max_pooling_selected",
    does="Values and indices of the selected elements are held until they are scattered.",
    component="SelectAndScatterExpander",
    observed="jax 0.10.2",
    evidence=(
        "tests/plans/test_memory.py",
        "tests/emit/test_max_pooling.py",
        "benchmarks/fidelity",
    ),
    witness=WITNESS,
    apply=of_units("workspace_of_result", _selected),
)
