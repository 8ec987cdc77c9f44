"""The arguments and results of a call that live in host memory.

An argument lives there if its sharding says so (`memory_kind="pinned_host"` in `in_shardings` or in
a constraint), or the first pattern of `Constraints.memory_kinds` that matches it. A result lives
there if `out_shardings` says so, or if it replaces such an argument in the next step
(`kiwi.calls.replaced_arguments`).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding

from kiwi.calls.constraints import Constraints, matched, slash_path
from kiwi.calls.replaced_arguments import replaced_arguments
from kiwi.calls.signature import Call, result_shardings
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.host_memory import HOST_MEMORY, fetch, store
from kiwi.hlo.units import UnitGraph
from kiwi.messages import topics


@dataclass(frozen=True)
class OnHost:
    """Positions of flat arguments and results in host memory.

    `results` is None if `host_results` has to find them.
    """

    arguments: frozenset[int] = frozenset()
    results: frozenset[int] | None = None


def host_arguments(call: Call, constraints: Constraints) -> frozenset[int]:
    """Positions of the leaves of a call in host memory; raises as `given_memories`."""
    return on_host(given_memories(call, constraints))


def on_host(kinds: Mapping[int, str]) -> frozenset[int]:
    """The positions whose memory kind is the host's."""
    return frozenset(k for k, kind in kinds.items() if kind == HOST_MEMORY)


def given_memories(call: Call, constraints: Constraints) -> dict[int, str]:
    """The memory kind of each leaf for which the caller gives one.

    **Raises:** `InvalidArgumentError` if a pattern matches nothing, or if a leaf on the host has no
    bytes that can be copied (a key).
    """
    paths = [slash_path(path) for path in call.paths]
    kinds: dict[int, str] = {}
    for pattern, kind in constraints.memory_kinds.items():
        for k in matched(pattern, paths, "memory_kinds"):
            kinds.setdefault(k, kind)
    for pattern, sharding in constraints.shardings.items():
        for k in matched(pattern, paths, "shardings") if _lies_in(HOST_MEMORY, sharding) else ():
            kinds.setdefault(k, HOST_MEMORY)
    for k, sharding in call.given_shardings.items():
        if _lies_in(HOST_MEMORY, sharding):
            kinds[k] = HOST_MEMORY
    for k in on_host(kinds):
        if not can_be_copied(call.shapes[k].dtype):
            raise InvalidArgumentError(
                f"{paths[k]} of type {call.shapes[k].dtype} cannot lie in host memory.",
                topic=topics.NOT_ON_HOST,
            )
    return kinds


def can_be_copied(dtype: Any) -> bool:
    """Whether arrays of a type have bytes of their own that could lie in host memory."""
    return not jnp.issubdtype(dtype, jax.dtypes.extended)


def host_results(
    call: Call, arguments: frozenset[int], out_tree: Any, units: UnitGraph
) -> frozenset[int]:
    """Positions of a program's results in host memory."""
    program = units.graph.program
    values = {program.arguments[k] for k in arguments}
    positions = {p for p, a in replaced_arguments(call, out_tree, units).items() if a in values}
    given = dict(enumerate(result_shardings(call.options, out_tree)))
    positions |= {p for p, sharding in given.items() if _lies_in(HOST_MEMORY, sharding)}
    return frozenset(
        positions - {p for p, sharding in given.items() if _lies_in("device", sharding)}
    )


def moving(
    function: Callable[..., Any], arguments: frozenset[int], results: frozenset[int]
) -> Callable[..., list[Any]]:
    """A function of flat leaves that fetches these arguments and stores these results."""

    @functools.wraps(function)
    def moved(*leaves: Any) -> list[Any]:
        inside = [fetch(leaf) if k in arguments else leaf for k, leaf in enumerate(leaves)]
        return [store(r) if k in results else r for k, r in enumerate(function(*inside))]

    return moved


def _lies_in(memory_kind: str, sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.memory_kind == memory_kind
