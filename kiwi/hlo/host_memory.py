"""Copies between host and device memory, for arguments and results that live on the host.

`fetch` copies an argument from the host into device memory, `store` copies a result back. Both are
identities with primitives of their own, so that a plan can price them, choose their time, and fetch
an argument twice instead of keeping the copy. The emitted program moves the array
(`kiwi.emit.interpreter`); outside of a plan they do nothing.

The argument of a fetch and the result of a store take no device memory.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex
from jax.interpreters import mlir

FETCH, STORE = "host_fetch", "host_store"
TRANSFERS = frozenset({FETCH, STORE})

HOST_MEMORY = "pinned_host"
"""JAX's memory kind for host memory that devices can read."""

LEAST_ELEMENTS = 2
"""Of a buffer in the host's memory whose elements a program writes and reads: XLA takes the index
of the only one to be 0, and the copy to be the whole."""


def buffer_key(shape: Sequence[int], dtype: Any, layout: Hashable) -> Hashable:
    """Offloaded values outside of loops for which it is equal are elements of one buffer."""
    return tuple(shape), str(dtype), layout


def moved_to(eqn: Any) -> Any | None:
    """The memory that a traced `jax.device_put` of one array copies to; None of all others.

    So policies of `jax.checkpoint` copy to the host what they offload, and back.
    """
    if eqn.primitive.name != "device_put" or len(eqn.invars) != 1:
        return None
    (target,) = eqn.params["devices"]
    return target if isinstance(target, jax.memory.Space) else None


def _identity(name: str) -> Callable[[Any], Any]:
    primitive = jex.Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    # An operator with a sharding rule that XLA does not fuse.
    barrier = mlir.lower_fun(lax.optimization_barrier, multiple_results=False)
    mlir.register_lowering(primitive, barrier)
    return primitive.bind


fetch = _identity(FETCH)
"""The copy in device memory of an argument in host memory."""

store = _identity(STORE)
"""The copy in host memory of a result."""
