"""Pieces with smaller dimensions.

All dimensions of one size shrink together, in the types of arguments and in the parameters of
equations. If a dimension is split or joined (`reshape`), the sizes of its parts shrink as well. A
smaller piece is discarded if its shapes do not fit together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import jax
from jax.extend import core as jex

from kiwi.deviation.pieces import Node, Piece, sizes_of

_SIZED = frozenset(
    {"shape", "new_sizes", "limit_indices", "slice_sizes", "sizes", "fft_lengths", "length"}
)
"""The parameters of primitives that hold sizes of dimensions."""

_Sizes = Mapping[int, int]
"""The new size of each size that changes."""


def shrunk(piece: Piece, size: int, divisor: int) -> Piece | None:
    """Returns the piece with all dimensions of a size divided by a divisor; None if that is
    impossible."""
    if size % divisor or size // divisor < 1:
        return None
    for changes in _consistent(piece, {size: size // divisor}):
        smaller = _with_sizes(piece, changes)
        if smaller is not None:
            return smaller
    return None


def _consistent(piece: Piece, changes: dict[int, int]) -> Iterator[_Sizes]:
    """Yields `changes`, then `changes` with the further changes that every `reshape` needs."""
    yield changes
    consistent = dict(changes)
    for _ in sizes_of(piece):
        missing = next(_missing(piece, consistent), None)
        if missing is None:
            break
        consistent |= missing
    if consistent != changes:
        yield consistent


def _missing(piece: Piece, changes: _Sizes) -> Iterator[dict[int, int]]:
    """Yields further changes of one size each, for each `reshape` whose sides differ in
    elements."""
    for node in piece.nodes:
        if node.name != "reshape" or not node.reads:
            continue
        before, after = (piece.types[value].shape for value in (node.reads[0], node.writes[0]))
        sides = [prod(changes.get(size, size) for size in shape) for shape in (before, after)]
        if sides[0] == sides[1]:
            continue
        larger, smaller = max(sides), min(sides)
        shape = before if sides[0] > sides[1] else after
        if larger % smaller:
            continue
        divisor = larger // smaller
        free = [
            candidate
            for candidate in shape
            if candidate not in changes and candidate % divisor == 0 and candidate > 1
        ]
        yield from ({size: size // divisor} for size in sorted(free, reverse=True))


def _with_sizes(piece: Piece, changes: _Sizes) -> Piece | None:
    """Returns the piece with other sizes; None if the shapes do not fit together."""
    types = {
        value: jax.ShapeDtypeStruct(_changed(type_.shape, changes), type_.dtype)
        for value, type_ in piece.types.items()
    }
    if any(_has_region_of(node, changes) for node in piece.nodes):
        return None  # Sizes inside of a traced loop are written into its body.
    resized = Piece(tuple(_node_with_sizes(node, changes) for node in piece.nodes), types)
    try:
        traced = _result_types(resized)
    except (TypeError, ValueError, IndexError, AssertionError):
        return None
    if any(types[value].shape != shape for value, shape in traced.items()):
        return None
    return resized


def _node_with_sizes(node: Node, changes: _Sizes) -> Node:
    params = {
        name: _changed_param(value, changes) if name in _SIZED else value
        for name, value in node.params.items()
    }
    return replace(node, params=params)


def _has_region_of(node: Node, changes: _Sizes) -> bool:
    """Returns whether the node runs a region with a dimension of a size that changes."""
    regions = [
        param for param in node.params.values() if isinstance(param, jex.ClosedJaxpr | jex.Jaxpr)
    ]
    variables = (variable for region in regions for variable in _variables(region))
    return any(size in changes for variable in variables for size in variable.aval.shape)


def _variables(region: Any) -> Iterator[Any]:
    jaxpr = getattr(region, "jaxpr", region)
    yield from (*jaxpr.invars, *jaxpr.outvars)


def _changed_param(value: Any, changes: _Sizes) -> Any:
    if isinstance(value, int):
        return changes.get(value, value)
    return _changed(value, changes) if isinstance(value, tuple) else value


def _changed(shape: tuple[int, ...], changes: _Sizes) -> tuple[int, ...]:
    return tuple(changes.get(size, size) for size in shape)


def _result_types(piece: Piece) -> dict[int, tuple[int, ...]]:
    """Returns the shapes of all values that the piece computes, by tracing it."""
    values = [value for node in piece.nodes for value in node.writes]

    def every_value(*arrays: Any) -> list[Any]:
        known: dict[int, Any] = dict(zip(piece.arguments, arrays, strict=True))
        for node in piece.nodes:
            pairs = zip(node.outputs, node.apply(known.__getitem__), strict=True)
            known.update((value, array) for value, array in pairs if value is not None)
        return [known[value] for value in values]

    types = jax.eval_shape(every_value, *piece.argument_types)
    return {value: tuple(type_.shape) for value, type_ in zip(values, types, strict=True)}
