"""Results that replace arguments in the next step.

1. A result that takes over a donated argument's buffer replaces that argument.
2. An argument that is not donated is replaced by a part of the result (the whole result, or one
   element of a tuple) with the same pytree structure and types: `state` in
   `state, metrics = step(state, batch)`. The first such part counts. Each part replaces at most one
   argument.

A result that replaces an argument gets the argument's sharding, so that a training loop does
not reshard between steps.
"""

from typing import Any

import jax

from kiwi.calls.signature import Call
from kiwi.hlo.units import UnitGraph

LEAST_LEAVES = 2
"""A pytree with fewer leaves replaces no argument: a single array of equal shape may be a
coincidence."""


def replaced_arguments(call: Call, out_tree: Any, units: UnitGraph) -> dict[int, int]:
    """Returns, for the position of each result that replaces an argument, the argument's value
    index."""
    program = units.graph.program
    replaced = {}
    for position, result in enumerate(program.results):
        if isinstance(result, int) and result in units.aliased_results:
            replaced[position] = units.aliased_results[result]
    for results, leaves in _matching_parts(call, out_tree, units):
        for position, leaf in zip(results, leaves, strict=True):
            if isinstance(program.results[position], int) and position not in replaced:
                replaced[position] = program.arguments[leaf]
    return replaced


def _matching_parts(call: Call, tree: Any, units: UnitGraph) -> list[tuple[list[int], list[int]]]:
    """Returns pairs (result positions, argument leaves) of parts with equal structure and types."""
    positional, _ = jax.tree.unflatten(call.tree, list(range(len(call.shapes))))
    result = jax.tree.unflatten(tree, list(range(len(units.graph.program.results))))
    parts = [result, *(result if type(result) in (tuple, list) else ())]
    used: set[int] = set()
    pairs = []
    for argument in positional:
        leaves = jax.tree.leaves(argument)
        if len(leaves) < LEAST_LEAVES or set(leaves) & set(call.donated):
            continue
        for index, part in enumerate(parts):
            results = jax.tree.leaves(part)
            if index not in used and _match(call, units, argument, part, leaves, results):
                used.add(index)
                pairs.append((results, leaves))
                break
    return pairs


def _match(
    call: Call, units: UnitGraph, argument: Any, part: Any, leaves: list[int], results: list[int]
) -> bool:
    """Returns whether structure and types are equal. A result that is a literal fits any type."""
    program = units.graph.program
    pairs = zip(results, leaves, strict=True)
    types = ((program.results[position], call.shapes[leaf]) for position, leaf in pairs)
    return jax.tree.structure(argument) == jax.tree.structure(part) and all(
        (program.values[result].shape, program.values[result].dtype) == (shape.shape, shape.dtype)
        for result, shape in types
        if isinstance(result, int)
    )
