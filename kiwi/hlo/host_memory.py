"""Copies between host and device memory, for arguments and results on the host.

`fetch` copies an argument from host memory to device memory, and `store` copies a result back. Both
are identities with primitives of their own. So a plan can price them, choose their time, and fetch
an argument twice instead of keeping the copy. The emitted program moves the array
(`kiwi.emit.interpreter`). Outside of a plan, `fetch` and `store` move nothing.

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
"""The least number of elements of a host buffer that a program writes and reads one by one. With a
single element, XLA would replace the index by 0 and copy the whole buffer."""


def buffer_key(shape: Sequence[int], dtype: Any, layout: Hashable) -> Hashable:
    """Returns a key of an offloaded value outside of loops. Values with equal keys are elements of
    one host buffer."""
    return tuple(shape), str(dtype), layout


def moved_to(eqn: Any) -> Any | None:
    """Returns the memory space to which a traced `jax.device_put` copies one array.

    None for other equations, and for a `device_put` to a sharding or device. Policies of
    `jax.checkpoint` copy offloaded values to the host and back by such an equation.
    """
    if eqn.primitive.name != "device_put" or len(eqn.invars) != 1:
        return None
    (target,) = eqn.params["devices"]
    return target if isinstance(target, jax.memory.Space) else None


def _identity(name: str) -> Callable[[Any], Any]:
    primitive = jex.Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    # A barrier has a sharding rule, and XLA does not fuse it.
    barrier = mlir.lower_fun(lax.optimization_barrier, multiple_results=False)
    mlir.register_lowering(primitive, barrier)
    return primitive.bind


fetch = _identity(FETCH)
"""Returns the copy in device memory of an argument in host memory."""

store = _identity(STORE)
"""Returns the copy in host memory of a result."""
