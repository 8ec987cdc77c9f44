"""XLA:TPU gathers and scatters rows that lie along the 128 lanes of a tile.

Short rows, such as a device's part of an embedding that is cut along its width, are padded to 128
elements. The padding affects the table, the gathered rows, the rows that are added, and the updated
table. If no other operator needs rows, layout assignment puts the table's length along the lanes,
and the gather reads a copy of the table. A table that is an argument is copied once, for the gather
and the update.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.storage import MinorDimensions
from kiwi.targets.rule import Rule
from kiwi.targets.tiles_through_maps import through_maps
from kiwi.targets.witness import Example, Witness, array

_SCATTERS = frozenset({"scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"})


def rows_of(graph: HloGraph) -> dict[int, MinorDimensions]:
    """Returns the dimension along which rows lie, by value: for the operands and results of gathers
    and scatters of whole rows."""
    pairs = (pair for equation in graph.program.equations for pair in _of_equation(equation))
    return dict(pairs)


def _of_equation(equation: Equation) -> Iterator[tuple[int, MinorDimensions]]:
    if equation.name == "gather":
        yield from _of_gather(equation)
    elif equation.name in _SCATTERS:
        yield from _of_scatter(equation)


def _of_gather(equation: Equation) -> Iterator[tuple[int, MinorDimensions]]:
    """Yields the table and the gathered rows, with the dimension along which rows lie; nothing for
    gathers of parts of rows."""
    params = equation.jaxpr_eqn.params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    table = equation.jaxpr_eqn.invars[0].aval.shape
    rows = [
        dimension
        for dimension in range(len(table))
        if dimension not in numbers.collapsed_slice_dims
    ]
    is_of_rows = rows and all(sizes[dimension] == table[dimension] for dimension in rows)
    if (
        not is_of_rows
        or numbers.operand_batching_dims
        or _are_of_matrices(rows, numbers.collapsed_slice_dims)
    ):
        return
    if isinstance(equation.inputs[0], int):
        yield equation.inputs[0], (rows[-1],)
    yield equation.outputs[0], (numbers.offset_dims[-1],)


def _of_scatter(equation: Equation) -> Iterator[tuple[int, MinorDimensions]]:
    """Yields the scattered rows and the result, with the dimension along which rows lie; nothing
    for scatters of parts of rows."""
    numbers = equation.jaxpr_eqn.params["dimension_numbers"]
    table, _, added = (variable.aval.shape for variable in equation.jaxpr_eqn.invars)
    rows = [
        dimension
        for dimension in range(len(table))
        if dimension not in numbers.inserted_window_dims
    ]
    windows = numbers.update_window_dims
    is_of_rows = rows and [added[dimension] for dimension in windows] == [
        table[dimension] for dimension in rows
    ]
    inserted = numbers.inserted_window_dims
    if not is_of_rows or numbers.operand_batching_dims or _are_of_matrices(rows, inserted):
        return
    if isinstance(equation.inputs[2], int):
        yield equation.inputs[2], (windows[-1],)
    yield equation.outputs[0], (rows[-1],)


def _are_of_matrices(rows: Sequence[int], indexed: Sequence[int]) -> bool:
    """Returns whether each index is a place in matrices, as that of a diagonal. What is gathered
    then is an element of each matrix, and no row."""
    return len(indexed) > 1 and rows[-1] < min(indexed)


def _apply(graph: KernelGraph) -> KernelGraph:
    hlo, storage = graph.units.graph, graph.storage
    values, minor_of = hlo.program.values, rows_of(hlo)
    copied = {value: values[value].itemsize for value in minor_of if values[value].producer is None}
    storage = replace(
        storage,
        minor={**through_maps(hlo, minor_of), **storage.minor},
        copied_itemsize={**copied, **storage.copied_itemsize},
    )
    return replace(graph, storage=storage)


_ROWS, _WIDTH, _TAKEN = 16_384, 8, 4096


def _taken(table: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.sin(table[ids])


WITNESS = Witness(
    says="A copy of the table takes the bytes of rows of 128 elements.",
    example=Example(_taken, (array(_ROWS, _WIDTH), array(_TAKEN, dtype="int32"))),
    shows=lambda module: module.temporaries_of(4 * _ROWS * 128) == 1,
    control=Example(_taken, (array(_ROWS, 128), array(_TAKEN, dtype="int32"))),
)


RULE = Rule(
    name="tpu_rows_of_gathers",
    does="Rows that are gathered or scattered lie along the lanes of tiles: short ones are filled "
    "up to 128 elements, in a copy of the table, too.",
    component="layout assignment of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/targets/test_tpu_rows.py", "benchmarks/field"),
    witness=WITNESS,
    apply=_apply,
    limits="The update of a table keeps the order of rows or not, as layout assignment happens to "
    "propagate; the table's copy is taken to be held until then. Copies back to an order that "
    "wastes less are not counted.",
)
