"""The common part of the rules of the gradient of max pooling.

XLA expands `select_and_scatter` into a window reduction that finds the selected elements (value,
and index along each dimension), and a scatter of the gradient to these, onto zeros. One rule each
says which of these arrays are held, and when: `max_pooling_selected`, `max_pooling_zeros`,
`gpu_zeros_of_relu`, `cpu_max_pooling_indices`.
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
"""Bytes of an index along one dimension."""


def gradients(units: UnitGraph) -> Iterator[Unit]:
    """The units whose root is the gradient of max pooling."""
    equations = units.graph.program.equations
    return (unit for unit in units.units if equations[unit.root].name == MAX_POOLING_GRADIENT)


@dataclass(frozen=True)
class Indices:
    """The indices of the selected elements: one for each dimension and element of the result."""

    dimensions: int
    itemsize: int

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "Indices":
        """The indices of a unit's result."""
        value = units.graph.program.values[unit.outputs[0]]
        return cls(len(value.shape), value.itemsize)

    def local_bytes(self, result_bytes: int) -> int:
        """Local bytes, for a local result of `result_bytes`."""
        return self.dimensions * INDEX_BYTES * result_bytes // self.itemsize


@dataclass(frozen=True)
class SelectedElements:
    """Values and indices of the selected elements. Their number is `ratio` times that of the
    result."""

    ratio: float
    indices: Indices

    def local_bytes(self, result_bytes: int) -> int:
        """Local bytes, for a local result of `result_bytes`."""
        return int(self.ratio * (result_bytes + self.indices.local_bytes(result_bytes)))


IMAGES = array(4, 32, 32, 64)
"""The shape of the witnesses' images."""


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
