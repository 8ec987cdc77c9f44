"""XLA writes the result of a map over an operand of the same size that nothing reads any more.

The operator must read the operand directly, behind no barrier: `HeapSimulator` looks for a user of
the instruction that defines the buffer (`kiwi.hlo.in_place`).
"""

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.in_place import overwritable, overwritable_by_operand
from kiwi.hlo.reductions import REDUCTIONS
from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    return graph.stating(
        "overwritable", {unit.index: overwritable(units.graph, unit) for unit in units.units}
    )


RULE = Rule(
    name="overwritten_operands",
    does="The result of a map takes the buffer of an operand of the same size.",
    component="HeapSimulator",
    observed="jax 0.10.2; libtpu 0.0.42.1",
    evidence=("tests/plans/test_memory.py", "benchmarks/fidelity"),
    apply=_apply,
)


def _apply_to_windows(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    return graph.adding(
        "overwritable",
        {unit.index: overwritable_by_operand(units.graph, unit) for unit in units.units},
    )


OF_WINDOWS = Rule(
    name="cpu_windowed_operands",
    does="The operand of a window is computed apart, and may be written over what it maps.",
    component="ReduceWindowRewriter and IR emission of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("tests/plans/test_memory.py",),
    apply=_apply_to_windows,
)


def _has_summed_columns(graph: HloGraph, value: int) -> bool:
    """Whether something reads a value and reduces it, and not along its last dimension."""
    last = len(graph.program.values[value].shape) - 1
    readers = (graph.program.equations[k] for k in graph.program.readers[value])
    reduced = (e.jaxpr_eqn.params["axes"] for e in readers if e.name in REDUCTIONS)
    return any(last not in axes for axes in reduced)


def _apply_to_columns(graph: KernelGraph) -> KernelGraph:
    hlo = graph.units.graph
    kept = {
        kernel.unit.index: ()
        for kernel in graph.kernels
        if kernel.overwritable and _has_summed_columns(hlo, kernel.unit.outputs[0])
    }
    return graph.stating("overwritable", kept)


NOT_OF_SUMMED_COLUMNS = Rule(
    name="gpu_summed_columns",
    does="A map whose result's columns are summed up, as for the gradient of a bias, is one kernel "
    "with the sum, and writes over nothing that it reads.",
    component="MultiOutputFusion",
    observed="jax 0.10.2, H100: the gradient of a GELU",
    evidence=("tests/xla/gpu/test_compiler.py",),
    apply=_apply_to_columns,
)
