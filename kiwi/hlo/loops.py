"""Opened loops: the program contains the body of a scan once.

    loop      ::= carry* slice* equation* stack* result*
    carry     ::= current = loop_carry(initial)        the carry at the start of an iteration
    slice     ::= x = loop_slice(stacked)              element i of a stacked operand
    stack     ::= stacked = loop_stack(y)              y of every iteration, stacked
    result    ::= final = loop_result(next)            the carry after the last iteration

An equation of the body stands for one computation per iteration. A value of the body is a family
with one member per iteration; another loop reads the member of its own iteration. JAX stacks a
residual in the forward scan and slices it in the backward scan; in the program the backward body
reads the forward value, and a plan keeps it (stacked) or recomputes it like any other.

Loops of one length in one place share an index *space*: member i of one may be read at iteration
i of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex
from jax.interpreters import mlir

from kiwi.hlo import jax_internals

CARRY, SLICE, STACK, RESULT = "loop_carry", "loop_slice", "loop_stack", "loop_result"
LOOP_PRIMITIVES = frozenset({CARRY, SLICE, STACK, RESULT})
"""What stands at the borders of an opened loop; none of them computes anything."""


@dataclass(frozen=True)
class Carry:
    """A carry of a scan: value indices of the body; `next` may be a literal."""

    current: int
    next: Any


@dataclass(frozen=True)
class Loop:
    """One opened scan.

    - `parent`: the loop that it is in, if any; `space`: its index space.
    - `length`: iterations; `reverse`: from the last to the first; `unroll`: as in `jax.lax.scan`.
    """

    index: int
    parent: int | None
    space: int
    length: int
    reverse: bool
    unroll: int | bool
    carries: tuple[Carry, ...]


@dataclass(frozen=True)
class ScanOperands:
    """A scan's operands and body, in the order constants, carries, stacked."""

    constants: int
    carries: int
    body: Any
    length: int
    reverse: bool
    unroll: int | bool


def may_open(eqn: Any) -> bool:
    """Whether an equation is a scan whose body Kiwi can plan."""
    return eqn.primitive.name == "scan" and not eqn.effects and eqn.params["length"] > 0


def scan_operands(eqn: Any) -> ScanOperands:
    """Reads a scan's equation; jax 0.10 and 0.11 describe its operands differently."""
    body = eqn.params["jaxpr"]
    carries = sum(not stacked for stacked in jax_internals.stacked_results(eqn))
    stacked = sum(v.aval.ndim > a.ndim for v, a in zip(eqn.invars, body.in_avals, strict=True))
    return ScanOperands(
        len(eqn.invars) - carries - stacked,
        carries,
        body,
        eqn.params["length"],
        eqn.params["reverse"],
        eqn.params["unroll"],
    )


def border_equation(name: str, aval: Any, source_info: Any, **params: int) -> Any:
    """The equation of one of `LOOP_PRIMITIVES` for an operand of the given type.

    `params`: `loop` or `space`, for `STACK` the `length`, for `CARRY` its `position`.
    """
    primitive = _PRIMITIVES[name]
    traced = jax.make_jaxpr(lambda x: primitive.bind(x, **params))(aval)
    return traced.eqns[0].replace(source_info=source_info)


def border_dims(name: str, rank: int) -> tuple[Sequence[int], Sequence[int]]:
    """For an operand or result of `rank` without the stacked dimension: the factors of the
    operand's and of the result's dimensions; factor 0 is the stacked dimension."""
    inner = tuple(range(1, rank + 1))
    whole = (0, *inner)
    if name == SLICE:
        return whole, inner
    return (inner, whole) if name == STACK else (inner, inner)


def _repeated(x: Any, *, length: int, **_: Any) -> Any:
    x = jnp.asarray(x)
    return jnp.broadcast_to(x[None], (length, *x.shape))


def _primitive(name: str, meaning: Any) -> Any:
    """A primitive that, outside a loop, stands for one iteration."""
    primitive = jex.Primitive(name)

    def result_type(x: Any, **params: Any) -> Any:
        return jax.eval_shape(lambda y: meaning(y, **params), x)

    primitive.def_impl(meaning)
    primitive.def_abstract_eval(lambda x, **params: x.update(shape=result_type(x, **params).shape))
    mlir.register_lowering(primitive, mlir.lower_fun(meaning, multiple_results=False))
    return primitive


_PRIMITIVES = {
    CARRY: _primitive(CARRY, lambda x, **_: jnp.asarray(x)),
    SLICE: _primitive(SLICE, lambda x, **_: lax.index_in_dim(x, 0, keepdims=False)),
    STACK: _primitive(STACK, _repeated),
    RESULT: _primitive(RESULT, lambda x, **_: jnp.asarray(x)),
}
