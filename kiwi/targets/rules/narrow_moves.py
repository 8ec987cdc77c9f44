"""A collective moves an operand in the narrower dtype to which the operand's reader first converts
it."""

from jax.sharding import PartitionSpec as P

from kiwi.hlo.program import Value
from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH = 512


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


def _gathered(dtype: str) -> Example:
    """Returns a matmul of rows that are cut over four devices. Its weight is gathered in
    `dtype`."""
    return Example(
        lambda x, w: x @ w.astype(dtype),
        (array(64, _WIDTH, dtype=dtype), array(_WIDTH, _WIDTH)),
        (4,),
        (P("x"), P("x")),
        P("x"),
    )


def _moves_one_byte(module: InspectedModule) -> bool:
    return module.collectives["all-gather"].bytes == _WIDTH**2


WITNESS = Witness(
    says="One byte is gathered for each element of an array that is read as int8.",
    example=_gathered("int8"),
    shows=_moves_one_byte,
    control=_gathered("float32"),
)

RULE = Rule(
    name="narrow_moves",
    does="An operand that its reader converts to a narrower dtype first is converted before it is "
    "moved.",
    component="SPMD partitioner, as Kiwi emits it",
    observed="jax 0.10.2; libtpu 0.0.42.1",
    evidence=("tests/emit/test_emission.py", "benchmarks/resharding"),
    witness=WITNESS,
    apply=_apply,
)
