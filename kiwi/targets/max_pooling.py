"""Shared code of the rules on the gradient of max pooling.

XLA expands `select_and_scatter` into two operators. A window reduction finds the selected elements:
the value of each, and its index along each dimension. A scatter adds the gradient at these indices
to zeros. Four rules say which of the arrays are held, and when: `max_pooling_selected`,
`max_pooling_zeros`, `gpu_zeros_of_relu` and `cpu_max_pooling_indices`.
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
"""The bytes of one index along one dimension."""


def gradients(units: UnitGraph) -> Iterator[Unit]:
    """The units whose root is the gradient of max pooling."""
    equations = units.graph.program.equations
    return (unit for unit in units.units if equations[unit.root].name == MAX_POOLING_GRADIENT)


@dataclass(frozen=True)
class Indices:
    """The index arrays of the selected elements, in the shape of a result of `select_and_scatter`.

    - `dimensions`: the rank of the result. There is one index array per dimension.
    - `itemsize`: the bytes of one element of the result.
    """

    dimensions: int
    itemsize: int

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "Indices":
        """Returns the index arrays for the first result of `unit`."""
        value = units.graph.program.values[unit.outputs[0]]
        return cls(len(value.shape), value.itemsize)

    def local_bytes(self, result_bytes: int) -> int:
        """Returns the bytes of all index arrays on one device that holds `result_bytes` of the
        result."""
        return self.dimensions * INDEX_BYTES * result_bytes // self.itemsize


@dataclass(frozen=True)
class SelectedElements:
    """The values and the indices of the selected elements.

    - `ratio`: the number of selected elements per element of the result.
    - `indices`: the index arrays that as many elements as the result has would need.
    """

    ratio: float
    indices: Indices

    def local_bytes(self, result_bytes: int) -> int:
        """Returns the bytes of values and indices on one device that holds `result_bytes` of the
        result."""
        return int(self.ratio * (result_bytes + self.indices.local_bytes(result_bytes)))


IMAGES = array(4, 32, 32, 64)
"""The shape of the witnesses' images."""


def pooled(
    w: jax.Array, x: jax.Array, mapped: Callable[[jax.Array], jax.Array] = jnp.sin
) -> jax.Array:
    """Returns a scalar loss: images are mapped, multiplied, mapped again by `mapped`, and pooled in
    windows of 2 x 2."""
    window = (1, 2, 2, 1)
    images = mapped(jnp.sin(x) @ w)
    most = lax.reduce_window(images, -jnp.inf, lax.max, window, window, "VALID")
    return (most * jnp.cos(most)).sum()


def pooled_gradient(
    w: jax.Array, x: jax.Array, mapped: Callable[[jax.Array], jax.Array] = jnp.sin
) -> jax.Array:
    """Returns the gradient of `pooled` with respect to the images `x`."""
    return jax.grad(pooled, 1)(w, x, mapped)


FORWARD = Example(pooled, (array(64, 64), IMAGES))
GRADIENT = Example(pooled_gradient, (array(64, 64), IMAGES))
