"""The arguments and results of a call that lie in host memory.

An argument lies in host memory if its sharding says so (`memory_kind="pinned_host"` in
`in_shardings` or in a constraint), or if the first matching pattern of `Constraints.memory_kinds`
does. A result lies in host memory if `out_shardings` says so, or if it replaces such an argument in
the next step (`kiwi.calls.replaced_arguments`).
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
    """The positions of flat arguments and results in host memory.

    `results` is None if `host_results` is to find the results.
    """

    arguments: frozenset[int] = frozenset()
    results: frozenset[int] | None = None


def host_arguments(call: Call, constraints: Constraints) -> frozenset[int]:
    """Returns the positions of the leaves of a call in host memory; raises as `given_memories`
    does."""
    return on_host(given_memories(call, constraints))


def on_host(kinds: Mapping[int, str]) -> frozenset[int]:
    """Returns the positions whose memory kind is host memory."""
    return frozenset(k for k, kind in kinds.items() if kind == HOST_MEMORY)


def given_memories(call: Call, constraints: Constraints) -> dict[int, str]:
    """Returns the memory kind of each leaf for which the caller gives one, by position.

    **Raises:** `InvalidArgumentError` if a pattern matches nothing, or if a leaf on the host has no
    bytes that can be copied, such as a random key.
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
    """Returns whether arrays of a dtype have bytes of their own, which could lie in host memory."""
    return not jnp.issubdtype(dtype, jax.dtypes.extended)


def host_results(
    call: Call, arguments: frozenset[int], out_tree: Any, units: UnitGraph
) -> frozenset[int]:
    """Returns the positions of a program's results in host memory. `arguments`: the positions of
    arguments in host memory."""
    program = units.graph.program
    values = {program.arguments[k] for k in arguments}
    positions = {
        position
        for position, argument in replaced_arguments(call, out_tree, units).items()
        if argument in values
    }
    given_shardings = dict(enumerate(result_shardings(call.options, out_tree)))
    positions |= {
        position
        for position, sharding in given_shardings.items()
        if _lies_in(HOST_MEMORY, sharding)
    }
    return frozenset(
        positions
        - {
            position
            for position, sharding in given_shardings.items()
            if _lies_in("device", sharding)
        }
    )


def moving(
    function: Callable[..., Any], arguments: frozenset[int], results: frozenset[int]
) -> Callable[..., list[Any]]:
    """Returns a function of flat leaves that fetches `arguments` from host memory, calls
    `function`, and stores `results` in host memory."""

    @functools.wraps(function)
    def moved(*leaves: Any) -> list[Any]:
        inside = [fetch(leaf) if k in arguments else leaf for k, leaf in enumerate(leaves)]
        return [
            store(result) if k in results else result for k, result in enumerate(function(*inside))
        ]

    return moved


def _lies_in(memory_kind: str, sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.memory_kind == memory_kind
