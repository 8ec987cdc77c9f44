"""Equations that compute several results independently of each other.

JAX traces `jax.numpy.split` as one equation, but lowers it to a slice per result, and XLA fuses
each slice into its readers. One unit for all of them would materialise all results, in one layout.
"""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jex


def independent_equations(eqn: Any) -> jex.ClosedJaxpr | None:
    """A program of one equation per result that computes the same; None if there is none.

    It takes the arguments, returns the results and has the source line of the given equation.
    """
    if eqn.primitive.name != "split":
        return None
    ends, axis = np.cumsum(eqn.params["sizes"]).tolist(), eqn.params["axis"]

    def slices(x: jax.Array) -> list[jax.Array]:
        pairs = zip([0, *ends], ends, strict=False)
        return [lax.slice_in_dim(x, start, end, axis=axis) for start, end in pairs]

    closed = jax.make_jaxpr(slices)(*(v.aval for v in eqn.invars))
    equations = [e.replace(source_info=eqn.source_info) for e in closed.jaxpr.eqns]
    return jex.ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)
