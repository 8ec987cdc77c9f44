"""XLA:TPU reduce-scatters partial sums over a part of a slice, if the pieces are whole tiles.

It all-reduces them over two chips, over all chips of a square slice of 4 x 4 or more, and over all
chips of a three-dimensional slice.
"""

from collections.abc import Mapping
from math import prod

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.hlo.program import Value
from kiwi.mesh import DeviceMesh
from kiwi.mesh.tiles import cuts_tiles
from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array

_TWO_CORES = frozenset({"v4", "v5p"})
"""The generations whose chips have two cores."""


def scatters_sums(mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
    """Returns whether XLA:TPU reduce-scatters partial sums; see
    `kiwi.kernels.facts.ScattersSums`."""
    interconnect = mesh.hardware.interconnect
    cores = 1 + (interconnect is not None and interconnect.generation in _TWO_CORES)
    dims, count = set(scattered.values()), prod(mesh.shape[axis] for axis in scattered)
    pieces = (cuts_tiles(part.shape, dimension, count, part.itemsize, cores) for dimension in dims)
    if count == 2 or not all(pieces):
        return False
    extents = () if mesh.topology is None else mesh.topology.extents
    longer = [extent for extent in extents if extent > 1]
    is_whole = count == mesh.size
    is_square = len(longer) == 2 and longer[0] == longer[1] > 2
    return not is_whole or len(dims) > 1 or not (is_square or longer[2:])


def _summed(chips: int) -> Example:
    """Returns a matmul over `chips` chips, whose operands are cut along the summed dimension, and
    whose result is cut along the rows."""
    cut = P(None, "x"), P("x")
    return Example(jnp.matmul, (array(1024, 1024),) * 2, (chips,), cut, P("x"))


WITNESS = Witness(
    says="A product's partial sums are reduce-scattered over eight chips.",
    example=_summed(8),
    shows=lambda module: list(module.collectives) == ["reduce-scatter"],
    control=_summed(16),
)

RULE = Rule(
    name="tpu_scattered_sums",
    does="Partial sums are reduce-scattered in pieces of whole tiles, over part of a slice.",
    component="ReduceScatterCreator of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e and v5p",
    evidence=("tests/xla/tpu", "benchmarks/resharding"),
    witness=WITNESS,
    states=stating(scatters_sums=scatters_sums),
)
