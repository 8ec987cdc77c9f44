"""Kinds of equations, by how they fuse."""

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.opcodes import MATMULS
from kiwi.hlo.program import Equation, Program

LIBRARY_OPCODES = MATMULS | {"convolution"}
"""The opcodes of operators that libraries or matrix units compute."""

_NOT_ELEMENTWISE = LIBRARY_OPCODES | {
    "all_gather",
    "all_reduce",
    "all_to_all",
    "case",
    "cholesky",
    "chlo.top_k",
    "collective_permute",
    "custom_call",
    "dynamic_update_slice",
    "fft",
    "gather",
    "if",
    "infeed",
    "reduce",
    "reduce_scatter",
    "reduce_window",
    "rng",
    "rng_bit_generator",
    "scatter",
    "select_and_scatter",
    "sort",
    "triangular_solve",
    "while",
}

WINDOWED = frozenset({"reduce_window", "select_and_scatter"})
"""The opcodes of pooling and its gradient."""

TAKES_EPILOGUE = LIBRARY_OPCODES | {"reduce"}
"""The opcodes of operators with which a following map is fused."""

WORTH_KEEPING = frozenset(
    {
        "atan2",
        "cbrt",
        "chlo.erf",
        "chlo.erf_inv",
        "cosine",
        "exponential",
        "exponential_minus_one",
        "log",
        "log_plus_one",
        "logistic",
        "power",
        "rsqrt",
        "sine",
        "sqrt",
        "tan",
        "tanh",
    }
)
"""The opcodes of costly maps: storing the result is cheaper than computing it twice."""

BARRIER = "optimization_barrier"

LAYOUT = frozenset(
    {"transpose", "reshape", "slice", "broadcast_in_dim", "bitcast_convert", "constant"}
)
"""The opcodes of operators that only rearrange, repeat or cut their operand."""

ADDS = frozenset({"add", "convert"})
"""The opcodes of a sum with conversions."""

REARRANGES = frozenset({"transpose", "reshape"})
"""The opcodes of operators that rearrange all elements of their operand."""


def is_map(graph: HloGraph, index: int) -> bool:
    """Whether an equation is elementwise and has one result."""
    equation = graph.program.equations[index]
    if graph.equations[index].is_region or equation.has_effects or len(equation.outputs) != 1:
        return False
    if equation.is_border or equation.is_transfer:
        return False
    return not graph.opcodes[index] & _NOT_ELEMENTWISE


def is_opaque(graph: HloGraph, equation: int) -> bool:
    """Whether an equation is a custom call without a sharding rule."""
    traced = graph.program.equations[equation]
    has_rule = traced.is_kernel or traced.batches is not None
    return "custom_call" in graph.opcodes[equation] and not has_rule


def is_layout_change(graph: HloGraph, equation: int) -> bool:
    """Whether an equation only rearranges, repeats or cuts its operand (`LAYOUT`)."""
    return graph.opcodes[equation] <= LAYOUT


def interleaves(equation: Equation) -> bool:
    """Whether an equation pads between elements (interior padding)."""
    if equation.name != "pad":
        return False
    return any(interior for _, _, interior in equation.jaxpr_eqn.params["padding_config"])


def is_strided(equation: Equation) -> bool:
    """Whether an equation is a slice with a stride, or a pad that puts elements between others."""
    if equation.name == "slice":
        return any(stride > 1 for stride in equation.jaxpr_eqn.params["strides"] or ())
    return interleaves(equation)


def repeats(program: Program, index: int) -> bool:
    """Whether an equation repeats each element of an image along inner dimensions that a reshape
    then merges with others: the gradient of a mean or a sum over windows."""
    equation = program.equations[index]
    if equation.name != "broadcast_in_dim":
        return False
    params, (output,) = equation.jaxpr_eqn.params, equation.outputs
    shape, mapped = params["shape"], params["broadcast_dimensions"]
    sizes = dict(zip(mapped, equation.jaxpr_eqn.invars[0].aval.shape, strict=True))
    grown = [dim for dim, size in enumerate(shape) if sizes.get(dim, 1) < size]
    if len(grown) < 2 or grown[0] == 0 or grown[-1] == len(shape) - 1:
        return False
    readers = [program.equations[reader] for reader in program.readers[output]]
    return bool(readers) and all(reader.name == "reshape" for reader in readers)


def sets_one_per_row(equation: Equation) -> bool:
    """Whether an equation adds a single element to each row by a scatter, as the gradient of
    `take_along_axis` does. XLA compares each position with the row's index."""
    if equation.name != "scatter-add":
        return False
    numbers = equation.jaxpr_eqn.params["dimension_numbers"]
    rank = len(equation.jaxpr_eqn.outvars[0].aval.shape)
    return not numbers.update_window_dims and len(numbers.operand_batching_dims) == rank - 1


def is_of_matrices(graph: HloGraph, index: int | None) -> bool:
    """Whether an equation multiplies two matrices, possibly for every element of a batch.

    In other matmuls an operand has several dimensions of rows or columns, such as grouped heads of
    queries. For these XLA:TPU chooses orders in which the last dimension is not the minor one.
    """
    if index is None or graph.program.equations[index].name != "dot_general":
        return False
    equation = graph.program.equations[index].jaxpr_eqn
    _, batch = equation.params["dimension_numbers"]
    ranks = [len(operand.aval.shape) for operand in equation.invars]
    return ranks == [len(dimensions) + 2 for dimensions in batch]
