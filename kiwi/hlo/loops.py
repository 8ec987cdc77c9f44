"""Opened loops: the program contains the body of a `scan` or a `while`, and each branch, once.

    loop      ::= carry* slice* equation* stack* result*
    carry     ::= current = loop_carry(initial)        the carry at the start of an iteration
    slice     ::= x = loop_slice(stacked)              element i of a stacked operand
    stack     ::= stacked = loop_stack(y)              y of every iteration, stacked
    result    ::= final = loop_result(next)            the carry after the last iteration

An equation of the body stands for one computation per iteration. A value of the body is a family
with one member per iteration. If another loop reads the value, each iteration reads the member of
its own index. JAX stacks a residual in the forward scan and slices it in the backward scan. In the
program the backward body reads the forward value, and a plan keeps the value (stacked) or
recomputes it, as any other value.

Scans of the same length in the same place share an index *space*: iteration i of one scan may read
member i of a value of another scan. Loops of one space count as one place.

The body of a `while` also computes the carry `test`: whether there is a next iteration. The
condition is evaluated on the initial carries in front of the loop, and on the next carries at the
end of the body. Nothing is stacked. A result is the carry after the last iteration, or the initial
carry if there was no iteration: `final = loop_result(current)`.

A `cond` or `switch` is a loop that runs once, `case = loop_case(index)`. It contains one loop for
each branch, and one of these runs:

    switch    ::= case branch* join*
    branch    ::= equation*
    join      ::= result = loop_join(case, y of each branch)

A branch hands its y on to the result as an iteration hands a carry to the next one. Branches of the
same index for the same selector share a space as well. JAX joins the residuals of all branches. In
the program a backward branch reads what its own forward branch computed, and a plan keeps or
recomputes these values.
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
from kiwi.hlo.regions.work import elements, inner_jaxprs

CARRY, SLICE, STACK, RESULT = "loop_carry", "loop_slice", "loop_stack", "loop_result"
CASE, JOIN = "loop_case", "loop_join"
LOOP_PRIMITIVES = frozenset({CARRY, SLICE, STACK, RESULT, CASE, JOIN})
"""The primitives at the borders of an opened loop, which compute nothing."""

ENTRIES, EXITS = frozenset({CARRY, SLICE, CASE}), frozenset({RESULT, JOIN})
"""The border primitives before a loop's first iteration, and after its last one."""


class LoopKind(enum.Enum):
    """The kind of an opened loop in the traced program.

    `SWITCH` is a whole `cond` or `switch`. `BRANCH` is one branch inside of it.
    """

    SCAN = "scan"
    WHILE = "while"
    SWITCH = "switch"
    BRANCH = "branch"


LEAST_ELEMENTS = 2
"""The number of elements from which a `while` or a conditional is opened. If none of its arrays has
as many, it stays whole."""


@dataclass(frozen=True)
class Carry:
    """A value that an iteration hands to the next one.

    - `current`: the index of the value at the start of an iteration. For a branch, the index of the
      conditional's result.
    - `next`: the index of the value that the iteration or the branch hands on, or a literal.
    """

    current: int
    next: Any


@dataclass(frozen=True)
class Loop:
    """One opened scan, `while`, conditional, or branch of a conditional.

    - `parent`: the loop around; None outside of loops.
    - `space`: the number of the index space.
    - `length`: the iterations of a scan; 1 for other loops.
    - `reverse`: whether a scan runs from the last iteration to the first. `unroll`: as in
      `jax.lax.scan`.
    - `runs`: the number of times that the body runs for each run of the loop around: the length of
      a scan, the assumed trips of a `while`, the assumed share of a branch. It is not part of the
      program's identity.
    - `test`: the value that decides whether a `while` goes on, or which branch runs; None for scans
      and branches.
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
    """The parts of a scan's equation. Operands are in the order constants, carries, stacked.

    - `constants`, `carries`: the numbers of such operands.
    - `body`: the closed jaxpr of one iteration.
    """

    constants: int
    carries: int
    body: Any
    length: int
    reverse: bool
    unroll: int | bool


def may_open(eqn: Any) -> bool:
    """Whether an equation is a loop or a conditional whose body Kiwi can plan.

    Loops with side effects and choices between platforms stay whole. So do a `while` and a
    conditional on scalars, since there is nothing to shard.
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
    """Returns the closed jaxpr that a `jax.lax.platform_dependent` runs on a platform.

    None for other equations, if `platforms` is empty, or if no branch fits. In the last case JAX
    raises an error when it lowers the equation.

    - `platforms`: jax's names of the platform.
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
    """Returns the parts of a scan's equation, which jax 0.10 and 0.11 describe differently."""
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
    """Returns an equation of one of `LOOP_PRIMITIVES` for operands of the given types.

    `params`: `loop`, or `space` for `SLICE`; `length` for `STACK`; `position` for `CARRY` and
    `JOIN`; `apart` of `_passed`.
    """
    primitive = _PRIMITIVES[name]
    traced = jax.make_jaxpr(lambda *x: primitive.bind(*x, **params))(*avals)
    return traced.eqns[0].replace(source_info=source_info)


def most_elements(eqn: Any) -> int:
    """Returns the number of elements of the largest operand or result of an equation and of the
    equations in its regions."""
    atoms = (*eqn.invars, *eqn.outvars)
    largest = max((elements(atom) for atom in atoms), default=0)
    inner = (inner_eqn for region in inner_jaxprs(eqn) for inner_eqn in region.eqns)
    return max((largest, *map(most_elements, inner)))


def border_dims(name: str, rank: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the factor of each dimension of a border's operand, and of its result.

    Factor 0 is the stacked dimension. `rank`: the number of dimensions besides that one.
    """
    inner = tuple(range(1, rank + 1))
    whole = (0, *inner)
    if name == SLICE:
        return whole, inner
    return (inner, whole) if name == STACK else (inner, inner)


def _repeated(x: Any, *, length: int, **_: Any) -> Any:
    x = jnp.asarray(x)
    return jnp.broadcast_to(x[None], (length, *x.shape))


def _primitive(name: str, meaning: Any) -> Any:
    """Returns a border primitive with the given name.

    `meaning`: the function that the primitive computes outside of a loop, where a loop counts as
    one iteration.
    """
    primitive = jex.Primitive(name)

    def result_type(*x: Any, **params: Any) -> Any:
        return x[-1].update(shape=jax.eval_shape(lambda *y: meaning(*y, **params), *x).shape)

    primitive.def_impl(meaning)
    primitive.def_abstract_eval(result_type)
    mlir.register_lowering(primitive, mlir.lower_fun(meaning, multiple_results=False))
    return primitive


def _passed(x: Any, *, apart: bool = False, **_: Any) -> Any:
    """Returns the operand.

    `apart`: whether the result is another tensor of the lowered program than the operand.
    Otherwise an operator that reads operand and result would be taken to read one tensor twice.
    """
    return lax.optimization_barrier(x) if apart else jnp.asarray(x)


_PRIMITIVES = {
    CARRY: _primitive(CARRY, _passed),
    SLICE: _primitive(SLICE, lambda x, **_: lax.index_in_dim(x, 0, keepdims=False)),
    STACK: _primitive(STACK, _repeated),
    RESULT: _primitive(RESULT, _passed),
    CASE: _primitive(CASE, _passed),
    JOIN: _primitive(JOIN, lambda *x, **_: _passed(x[-1], apart=True)),
}
