"""Collectives move an operand in the narrower dtype that its reader converts it to first."""

from kiwi.hlo.program import Value
from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule, stating


def _apply(graph: KernelGraph) -> KernelGraph:
    moved = {
        kernel.unit.index: tuple(_moved(graph, kernel.unit.index, value) for value in kernel.moved)
        for kernel in graph.kernels
    }
    return graph.stating("moved", moved)


def _moved(graph: KernelGraph, unit: int, value: Value) -> Value:
    narrow = graph.units.narrowed(graph.units.units[unit], value.index)
    is_narrower = graph.facts.moved_itemsize(narrow) < graph.facts.moved_itemsize(value)
    return narrow if is_narrower else value


RULE = Rule(
    name="narrow_moves",
    does="An operand that its reader converts to a narrower dtype first is converted before it is "
    "moved.",
    component="SPMD partitioner, as Kiwi emits it",
    observed="jax 0.10.2; libtpu 0.0.42.1",
    evidence=("tests/emit/test_emission.py", "benchmarks/resharding"),
    apply=_apply,
)

BFLOAT16_AS_FLOAT32 = Rule(
    name="cpu_bfloat16_as_float32",
    does="Collectives move bfloat16 as float32.",
    component="FloatNormalization of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/resharding",),
    states=stating(moved_itemsizes=(("bfloat16", 4),)),
)
