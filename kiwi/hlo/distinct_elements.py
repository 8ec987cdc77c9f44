"""The number of elements of a value that may differ from each other.

A broadcast repeats elements. An elementwise operator whose operands are repeated alike repeats its
results. XLA moves such an operator before the broadcast, so that it costs next to nothing.
"""

import functools
from collections.abc import Sequence
from math import prod

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation


@functools.lru_cache(maxsize=4)
def distinct_bytes(graph: HloGraph) -> tuple[int, ...]:
    """Returns, for each value, the bytes of its distinct elements: elements that may differ from
    each other."""
    program = graph.program
    varying: list[frozenset[int]] = [_wide_dimensions(value.shape) for value in program.values]
    for equation in program.equations:
        if len(equation.outputs) == 1:
            (output,) = equation.outputs
            varying[output] = _varying(graph, equation, varying) & varying[output]
    return tuple(
        value.itemsize * prod(value.shape[dimension] for dimension in varying[value.index])
        for value in program.values
    )


def _varying(
    graph: HloGraph, equation: Equation, known: Sequence[frozenset[int]]
) -> frozenset[int]:
    """Returns the dimensions of an equation's result along which elements may differ.

    `known`: by value, the dimensions along which its elements may differ.
    """
    values = graph.program.values
    shape = values[equation.outputs[0]].shape
    params, name = equation.jaxpr_eqn.params, equation.name
    operands = [value for value in equation.inputs if isinstance(value, int)]
    union = frozenset[int]().union(*(known[value] for value in operands))
    if name == "broadcast_in_dim" and len(operands) == 1:
        return frozenset(params["broadcast_dimensions"][dimension] for dimension in union)
    if name == "transpose":
        return frozenset(params["permutation"].index(dimension) for dimension in union)
    if name == "slice":
        return union
    if name == "concatenate":
        return union | {params["dimension"]}
    if name == "pad":
        padded = enumerate(params["padding_config"])
        return union | {dimension for dimension, amounts in padded if any(amounts)}
    keeps_shape = all(values[value].shape in ((), shape) for value in operands)
    if operands and keeps_shape and is_map(graph, equation.index):
        return union
    return _wide_dimensions(shape)


def _wide_dimensions(shape: Sequence[int]) -> frozenset[int]:
    return frozenset(dimension for dimension, size in enumerate(shape) if size > 1)
