"""What crosses between host and device memory: arguments and results that live on the host.

`fetch` copies an argument from the host into device memory, `store` a result back. Both are
identities with primitives of their own, so that a plan can price them, place them, and fetch again
what it does not hold on to. Emission moves the array (`kiwi.emit.evaluation`); outside a plan they
do nothing.

An argument that is fetched, and a result that is stored, take no device memory.
"""

from typing import Any

from jax import lax
from jax.extend import core as jex
from jax.interpreters import mlir

FETCH, STORE = "host_fetch", "host_store"
TRANSFERS = frozenset({FETCH, STORE})

HOST_MEMORY = "pinned_host"
"""The memory kind, in jax's words, from which devices read by themselves."""


def fetch(x: Any) -> Any:
    """An argument in host memory, as the program computes with it."""
    return _PRIMITIVES[FETCH].bind(x)


def store(x: Any) -> Any:
    """A result, as it goes back to host memory."""
    return _PRIMITIVES[STORE].bind(x)


def _primitive(name: str) -> Any:
    primitive = jex.Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    # An operator of its own, that no fusion swallows and that has a sharding rule.
    barrier = mlir.lower_fun(lax.optimization_barrier, multiple_results=False)
    mlir.register_lowering(primitive, barrier)
    return primitive


_PRIMITIVES = {name: _primitive(name) for name in (FETCH, STORE)}
