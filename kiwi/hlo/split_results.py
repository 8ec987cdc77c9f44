"""Equations of several results that are as many independent equations.

`jax.numpy.split` is traced as one equation, but lowers to a slice per part, which XLA fuses one by
one into what reads them. Planned as one equation all parts would be materialised together, and lie
alike.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex


def parts(eqn: Any) -> jex.ClosedJaxpr | None:
    """The program of the equations that an equation stands for; None if only for itself.

    Its arguments and results are those of the equation, its source lines too.
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
