"""Equations that compute several results independently of each other.

JAX traces `jax.numpy.split` as one equation, but lowers it to a slice per result, and XLA fuses
each slice into its readers. One unit for all of them would materialise all results, in one layout.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex


def independent_equations(eqn: Any) -> jex.ClosedJaxpr | None:
    """A program of one equation per result that computes the same; None if there is none.

    It takes the arguments, returns the results and has the source line of the given equation.
    """
    meaning = _MEANINGS.get(eqn.primitive.name)
    if meaning is None:
        return None
    avals = [v.aval for v in eqn.invars]
    closed = jax.make_jaxpr(lambda *xs: meaning(*xs, **eqn.params))(*avals)
    equations = [e.replace(source_info=eqn.source_info) for e in closed.jaxpr.eqns]
    return jex.ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)


def _split(x: jax.Array, *, sizes: Sequence[int], axis: int) -> list[jax.Array]:
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return [
        lax.slice_in_dim(x, start, start + size, axis=axis)
        for start, size in zip(starts, sizes, strict=True)
    ]


_MEANINGS: dict[str, Callable[..., list[jax.Array]]] = {"split": _split}
