"""What the rules of the gradient of max pooling share.

XLA expands `select_and_scatter` into a window reduction that finds the selected elements, value and
index per dimension, and a scatter of the gradient to these, onto zeros. A rule each says which of
these arrays are held, and when: `max_pooling_selected`, `max_pooling_zeros`, `gpu_zeros_of_relu`,
`cpu_max_pooling_indices`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.program import MAX_POOLING_GRADIENT
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.targets.witness import Example, array

INDEX_BYTES = 4
"""Of an index along one dimension."""


def gradients(units: UnitGraph) -> Iterator[Unit]:
    """The units whose root is the gradient of max pooling."""
    equations = units.graph.program.equations
    return (unit for unit in units.units if equations[unit.root].name == MAX_POOLING_GRADIENT)


@dataclass(frozen=True)
class Indices:
    """An index for each dimension and element of a result of so many dimensions."""

    dimensions: int
    itemsize: int

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "Indices":
        """Those of a unit's result."""
        value = units.graph.program.values[unit.outputs[0]]
        return cls(len(value.shape), value.itemsize)

    def local_bytes(self, result_bytes: int) -> int:
        """Where the local result has `result_bytes`."""
        return self.dimensions * INDEX_BYTES * result_bytes // self.itemsize


@dataclass(frozen=True)
class SelectedElements:
    """Values and indices of the selected elements, which are `ratio` times the result's."""

    ratio: float
    indices: Indices

    def local_bytes(self, result_bytes: int) -> int:
        """Where the local result has `result_bytes`."""
        return int(self.ratio * (result_bytes + self.indices.local_bytes(result_bytes)))


IMAGES = array(4, 32, 32, 64)
"""Of witnesses."""


def pooled(
    w: jax.Array, x: jax.Array, mapped: Callable[[jax.Array], jax.Array] = jnp.sin
) -> jax.Array:
    """A loss of images that are multiplied, mapped, and pooled in windows of 2 x 2."""
    window = (1, 2, 2, 1)
    images = mapped(jnp.sin(x) @ w)
    most = lax.reduce_window(images, -jnp.inf, lax.max, window, window, "VALID")
    return (most * jnp.cos(most)).sum()


def pooled_gradient(
    w: jax.Array, x: jax.Array, mapped: Callable[[jax.Array], jax.Array] = jnp.sin
) -> jax.Array:
    """The gradient of `pooled` by the images."""
    return jax.grad(pooled, 1)(w, x, mapped)


FORWARD = Example(pooled, (array(64, 64), IMAGES))
GRADIENT = Example(pooled_gradient, (array(64, 64), IMAGES))
