"""Opened loops: the program contains the body of a `scan` or a `while`, and each branch, once.

    loop      ::= carry* slice* equation* stack* result*
    carry     ::= current = loop_carry(initial)        the carry at the start of an iteration
    slice     ::= x = loop_slice(stacked)              element i of a stacked operand
    stack     ::= stacked = loop_stack(y)              y of every iteration, stacked
    result    ::= final = loop_result(next)            the carry after the last iteration

An equation of the body stands for one computation per iteration. A value of the body is a family
with one member per iteration; another loop reads the member of its own iteration. JAX stacks a
residual in the forward scan and slices it in the backward scan; in the program the backward body
reads the forward value, and a plan keeps it (stacked) or recomputes it like any other.

Scans of one length in one place share an index *space*: member i of one may be read at iteration
i of another.

The body of a `while` also computes whether there is a next iteration, the carry `test`: its
condition is evaluated on the initial carries in front of the loop, and at the end of the body on
what the iteration hands on. Nothing is stacked, and a result is a carry as the last iteration
leaves it, or the initial one: `final = loop_result(current)`.

A `cond` or `switch` is a loop that runs once, `case = loop_case(index)`, around one loop for each
branch, of which one runs:

    switch    ::= case branch* join*
    branch    ::= equation*
    join      ::= result = loop_join(case, y of each branch)

A branch hands its y on to the result as an iteration hands a carry to the next one. Branches of one
index in one place share a space as well: the backward branch reads what its own forward branch
computed, which a plan keeps or recomputes, and not the join of all of them that JAX makes of
residuals.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex
from jax.interpreters import mlir

from kiwi.hlo import jax_internals
from kiwi.hlo.regions import elements, inner_jaxprs

CARRY, SLICE, STACK, RESULT = "loop_carry", "loop_slice", "loop_stack", "loop_result"
CASE, JOIN = "loop_case", "loop_join"
LOOP_PRIMITIVES = frozenset({CARRY, SLICE, STACK, RESULT, CASE, JOIN})
"""The primitives at the borders of an opened loop. None of them computes anything."""

ENTRIES, EXITS = frozenset({CARRY, SLICE, CASE}), frozenset({RESULT, JOIN})
"""The borders before a loop's first iteration, and those after its last one."""


class LoopKind(enum.Enum):
    """The kind of an opened loop in the traced program. `SWITCH` is a `cond` or `switch`."""

    SCAN = "scan"
    WHILE = "while"
    SWITCH = "switch"
    BRANCH = "branch"


LEAST_ELEMENTS = 2
"""A `while` or a conditional on smaller arrays is left whole."""


@dataclass(frozen=True)
class Carry:
    """A carry: value indices of the body; `next` may be a literal. Of a branch, `current` is the
    result of the conditional."""

    current: int
    next: Any


@dataclass(frozen=True)
class Loop:
    """One opened scan, `while`, conditional, or branch of one.

    - `parent`: the loop that it is in, if any; `space`: its index space.
    - `length`: iterations of a scan, else 1; `reverse`: from the last to the first; `unroll`: as in
      `jax.lax.scan`.
    - `runs`: how often the body runs each time: the length of a scan, the trips that a `while` is
      taken to make, the share of a branch. Not part of the program's identity.
    - `test`: the value that a `while` goes on by, or that selects the branch.
    """

    index: int
    parent: int | None
    space: int
    length: int
    reverse: bool
    unroll: int | bool
    carries: tuple[Carry, ...]
    kind: LoopKind = field(default=LoopKind.SCAN, repr=False)
    runs: float = field(default=1, repr=False)
    test: int | None = field(default=None, repr=False)


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
    """Whether an equation is a loop or a conditional whose body Kiwi can plan.

    A choice between platforms is not opened, nor a `while` or a conditional of scalars: there is
    nothing to shard.
    """
    name = eqn.primitive.name
    if jax_internals.side_effects(eqn) or name not in ("scan", "while", "cond"):
        return False
    if name == "scan":
        return eqn.params["length"] > 0
    return not chooses_platform(eqn) and most_elements(eqn) >= LEAST_ELEMENTS


def chooses_platform(eqn: Any) -> bool:
    """Whether an equation is a `jax.lax.platform_dependent`."""
    return eqn.primitive.name == "cond" and eqn.params.get("branches_platforms") is not None


def branch_of_platform(eqn: Any, platforms: Collection[str]) -> Any:
    """The closed jaxpr that a `jax.lax.platform_dependent` runs on a platform of these names.

    None for any other equation, without a name, or if no branch is for them: JAX then raises when
    it lowers the equation.
    """
    if not platforms or not chooses_platform(eqn):
        return None
    default = None
    for names, branch in zip(eqn.params["branches_platforms"], eqn.params["branches"], strict=True):
        if names is None:
            default = branch
        elif not set(names).isdisjoint(platforms):
            return branch
    return default


def scan_operands(eqn: Any) -> ScanOperands:
    """Reads a scan's equation; jax 0.10 and 0.11 describe its operands differently."""
    body = eqn.params["jaxpr"]
    carries = sum(not stacked for stacked in jax_internals.stacked_results(eqn))
    stacked = sum(
        variable.aval.ndim > aval.ndim
        for variable, aval in zip(eqn.invars, body.in_avals, strict=True)
    )
    return ScanOperands(
        len(eqn.invars) - carries - stacked,
        carries,
        body,
        eqn.params["length"],
        eqn.params["reverse"],
        eqn.params["unroll"],
    )


def border_equation(name: str, avals: Sequence[Any], source_info: Any, **params: int) -> Any:
    """The equation of one of `LOOP_PRIMITIVES` for operands of the given types.

    `params`: `loop` or `space`, for `STACK` the `length`, for `CARRY` and `JOIN` the `position`,
    and `apart` of `_passed`.
    """
    primitive = _PRIMITIVES[name]
    traced = jax.make_jaxpr(lambda *x: primitive.bind(*x, **params))(*avals)
    return traced.eqns[0].replace(source_info=source_info)


def most_elements(eqn: Any) -> int:
    """The most elements of any operand or result of an equation, or inside its regions."""
    atoms = (*eqn.invars, *eqn.outvars)
    largest = max((elements(atom) for atom in atoms), default=0)
    inner = (inner_eqn for region in inner_jaxprs(eqn) for inner_eqn in region.eqns)
    return max((largest, *map(most_elements, inner)))


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
    """A primitive that stands for one iteration outside of a loop."""
    primitive = jex.Primitive(name)

    def result_type(*x: Any, **params: Any) -> Any:
        return x[-1].update(shape=jax.eval_shape(lambda *y: meaning(*y, **params), *x).shape)

    primitive.def_impl(meaning)
    primitive.def_abstract_eval(result_type)
    mlir.register_lowering(primitive, mlir.lower_fun(meaning, multiple_results=False))
    return primitive


def _passed(x: Any, *, apart: bool = False, **_: Any) -> Any:
    """The operand itself. `apart` makes it another tensor of the lowered program, so that an
    operator that reads both is not taken to read one of them twice."""
    return lax.optimization_barrier(x) if apart else jnp.asarray(x)


_PRIMITIVES = {
    CARRY: _primitive(CARRY, _passed),
    SLICE: _primitive(SLICE, lambda x, **_: lax.index_in_dim(x, 0, keepdims=False)),
    STACK: _primitive(STACK, _repeated),
    RESULT: _primitive(RESULT, _passed),
    CASE: _primitive(CASE, _passed),
    JOIN: _primitive(JOIN, lambda *x, **_: _passed(x[-1], apart=True)),
}
