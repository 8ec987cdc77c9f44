"""XLA:TPU multiplies a batch of matrices in tiles of each matrix, however small the matrices are.

Layout assignment would make a large batch the minor dimension, which wastes no memory. But the
matrix unit reads and writes tiles of each matrix. The result, and the maps that are fused with the
matmul, have such tiles. Operands in another layout are copied. Small matrices take many times
their bytes in tiles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import jax
import jax.numpy as jnp

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import NO_WORKSPACE, Workspace
from kiwi.kernels.storage import MinorDimensions
from kiwi.mesh.tiles import tiled_elements
from kiwi.targets.rule import Rule
from kiwi.targets.tiles_through_maps import through_maps
from kiwi.targets.witness import Example, Witness, array

_MULTIPLIED_BYTES = 2
"""The most bytes of an operand's element in a copy: the matrix unit multiplies bfloat16."""


@dataclass(frozen=True)
class _Matrices:
    """The minor dimensions of a batched matmul's operands and result.

    - `operands`: for each operand, its value (None for a literal), and the last kept and the last
      summed dimension of its matrices.
    - `result`: the two dimensions of the result's matrices that are tiled.
    """

    operands: tuple[tuple[int | None, MinorDimensions], ...]
    result: MinorDimensions


def _matrices(equation: Equation) -> _Matrices | None:
    """Returns the minor dimensions of a batched matmul; None for other equations, and for batched
    products with vectors."""
    if equation.name != "dot_general":
        return None
    contracted, batch = equation.jaxpr_eqn.params["dimension_numbers"]
    operands, minors, rank = [], [], len(batch[0])
    for side, variable in enumerate(equation.jaxpr_eqn.invars):
        shape, taken = variable.aval.shape, {*contracted[side], *batch[side]}
        kept = [dimension for dimension in range(len(shape)) if dimension not in taken]
        if not batch[side] or not kept or not contracted[side]:
            return None
        value = equation.inputs[side]
        minor = _last(kept, shape)
        tile = minor, _last(contracted[side], shape)
        operands.append((value if isinstance(value, int) else None, tile))
        minors.append(rank + kept.index(minor))
        rank += len(kept)
    return _Matrices(tuple(operands), (minors[0], minors[1]))


def _last(dims: Sequence[int], shape: Sequence[int]) -> int:
    """Returns the last dimension that XLA keeps in a matrix: XLA removes dimensions of size one."""
    return next((dimension for dimension in reversed(dims) if shape[dimension] > 1), dims[-1])


def tiles_of_matmuls(graph: HloGraph) -> dict[int, MinorDimensions]:
    """Returns, by value, the minor dimensions of the results of batched matmuls and of the maps
    behind them."""
    equations = graph.program.equations
    tiles = {
        equation.outputs[0]: matrices.result
        for equation in equations
        if (matrices := _matrices(equation)) is not None
    }
    return through_maps(graph, tiles)


@dataclass(frozen=True)
class _Copied:
    """An operand that is copied if tiles of its matrices take more bytes than its stored layout.

    - `shape`: the global shape of the operand.
    - `itemsize`: the bytes of an element of the copy.
    - `dims`: the factors of the operand's dimensions.
    - `minor`: the dimensions of its matrices.
    """

    shape: tuple[int, ...]
    itemsize: int
    dims: Dims
    minor: MinorDimensions

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """Returns the bytes of the copy on one device; 0 if none is made. `shards`: the number of
        pieces into which each factor is cut."""
        cuts = (prod(shards.get(factor, 1) for factor in factors) for factors in self.dims)
        sizes = [size // cut for size, cut in zip(self.shape, cuts, strict=True)]
        elements = tiled_elements(sizes, self.minor)
        return self.itemsize * elements if elements > tiled_elements(sizes) else 0


@dataclass(frozen=True)
class CopiedMatrices(Workspace):
    """The operands of a unit's batched matmuls that are copied to tiles of their matrices."""

    operands: tuple[_Copied, ...]

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Returns the local bytes of each copy, see `Workspace.buffers`."""
        sizes = (operand.local_bytes(shards) for operand in self.operands)
        return tuple(size for size in sizes if size)


def _copied(graph: KernelGraph, unit: Unit, tiles: Mapping[int, MinorDimensions]) -> CopiedMatrices:
    """Returns the operands of a unit's batched matmuls whose tiles (`tiles`) are not those of their
    matrices."""
    program = graph.units.graph.program
    copied: dict[int, _Copied] = {}
    for position, index in enumerate(unit.equations):
        matrices = _matrices(program.equations[index])
        operands = () if matrices is None else matrices.operands
        for (value, minor), (read, dims) in zip(
            operands, _dims_of(unit, position, operands), strict=True
        ):
            if value is None or dims is None or set(tiles.get(value, ())) == set(minor):
                continue
            info = program.values[value]
            itemsize = min(_MULTIPLIED_BYTES, info.itemsize)
            copied[read] = _Copied(info.shape, itemsize, dims, minor)
    return CopiedMatrices(operands=tuple(copied.values()))


def _dims_of(
    unit: Unit, position: int, operands: Sequence[tuple[int | None, MinorDimensions]]
) -> Iterator[tuple[int, Dims | None]]:
    """Yields, for each operand of a unit's matmul, its value and the factors of its dimensions. A
    literal has the value -1; the factors are None if the unit's rule names none."""
    dims_of_results = {
        value: dims for results in unit.rule.operator_results for value, dims in results
    }
    dims_of = {**dict(unit.rule.reads), **dims_of_results}
    for value, _ in operands:
        yield (-1 if value is None else value), (None if value is None else dims_of.get(value))


def _apply(graph: KernelGraph) -> KernelGraph:
    hlo, storage = graph.units.graph, graph.storage
    tiles = tiles_of_matmuls(hlo)
    workspaces = {
        unit.index: copied
        for unit in graph.units.units
        if graph[unit.index].workspace == NO_WORKSPACE
        and (copied := _copied(graph, unit, tiles)).operands
    }
    storage = replace(storage, minor={**tiles, **storage.minor})
    return replace(graph.stating("workspace", workspaces), storage=storage)


_BATCH, _SIDE = 4096, 9


def _multiplied(x: jax.Array) -> jax.Array:
    return jnp.sin(jnp.einsum("bij,bkj->bik", x, x))


WITNESS = Witness(
    says="The product of small matrices has a buffer with whole tiles of each of them.",
    example=Example(_multiplied, (array(_BATCH, _SIDE, 64),)),
    shows=lambda module: module.temporaries_of(4 * _BATCH * 16 * 128) == 1,
    control=Example(_multiplied, (array(_BATCH // 32, 128, 64),)),
)


RULE = Rule(
    name="tpu_batched_matmuls",
    does="The matrices of a batched matmul form the tiles of its result, of the maps behind it, "
    "and of copies of its operands, however small they are.",
    component="layout assignment of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/targets/test_tpu_rows.py", "benchmarks/field"),
    witness=WITNESS,
    apply=_apply,
    limits="A map in front of the matmul keeps the order of its own operands.",
)
