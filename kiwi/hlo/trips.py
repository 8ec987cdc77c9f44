"""The assumed number of iterations of a `while`.

The condition determines this number if it compares a counter with a literal, and the counter starts
at a literal to which the body adds a literal. The number is exact if the condition tests nothing
else. Otherwise it is an upper bound.

If the number is not exact, the option `while_trips` gives it, within the upper bound. The option is
one number for all loops, or numbers by a part of the loop's name scope or source line:
`{"solve": 40, "train.py:12": 7}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.extend import core as jex

from kiwi.hlo import jax_internals

WhileTrips: TypeAlias = int | Mapping[str, int]
"""The trip count of all `while`s, or trip counts by a part of a loop's name scope or source
line."""

DEFAULT_TRIPS = 10
"""The trip count of a `while` about which nothing is known."""

_COMPARISONS = {"lt": 0, "le": 1, "gt": 0, "ge": 1, "ne": 0}
"""By primitive that compares a counter with a limit, 1 if it holds at the limit, else 0."""

_PASSES = frozenset({"and", "convert_element_type"})
"""Primitives whose result is true only if all operands are."""


def trips_of_while(eqn: Any, inputs: Sequence[Any], given: WhileTrips) -> int:
    """Returns the trip count of a traced `while`, at least 1.

    - `inputs`: the condition's constants and the initial carries, as a `Program` or a jaxpr has
      them. In a `Program`, an input with an attribute `value` is a literal.
    - `given`: the user's trip counts.
    """
    exact, bounds = _counted(eqn, inputs)
    if exact is not None:
        return max(1, exact)
    return max(1, min((_given(eqn, given), *bounds)))


def _given(eqn: Any, given: WhileTrips) -> int:
    if not isinstance(given, Mapping):
        return given
    line, scope = jax_internals.source_line(eqn.source_info), str(eqn.source_info.name_stack)
    matching = (trips for part, trips in given.items() if part in line or part in scope)
    return next(matching, DEFAULT_TRIPS)


def _counted(eqn: Any, inputs: Sequence[Any]) -> tuple[int | None, list[int]]:
    """Returns the exact trip count, or None, and all upper bounds of the trip count."""
    condition = eqn.params["cond_jaxpr"].jaxpr
    producer = {
        variable: inner_eqn for inner_eqn in condition.eqns for variable in inner_eqn.outvars
    }
    pending, bounds, asks_more = [condition.outvars[0]], [], False
    while pending:
        atom = pending.pop()
        source = None if isinstance(atom, jex.Literal) else producer.get(atom)
        if source is not None and source.primitive.name in _PASSES:
            asks_more |= len(source.invars) > 1
            pending += source.invars
            continue
        trips = None if source is None else _of_comparison(eqn, inputs, source)
        asks_more |= trips is None
        bounds += [] if trips is None else [trips]
    return (bounds[0] if bounds and not asks_more else None), bounds


def _of_comparison(eqn: Any, inputs: Sequence[Any], comparison: Any) -> int | None:
    """Returns the trips until a comparison of a counter with a literal fails; None if the equation
    is no such comparison."""
    if comparison.primitive.name not in _COMPARISONS:
        return None
    condition = eqn.params["cond_jaxpr"].jaxpr
    constants = eqn.params["cond_nconsts"]
    places = {variable: k for k, variable in enumerate(condition.invars)}
    for counter, limit, sign in ((0, 1, 1), (1, 0, -1)):
        atom = comparison.invars[counter]  # A literal cannot be hashed.
        place = None if isinstance(atom, jex.Literal) else places.get(atom)
        end = _limit(eqn, comparison.invars[limit], places, inputs)
        if place is None or place < constants or end is None:
            continue
        start, step = _value(inputs[place]), step_of_carry(eqn, place - constants)
        if start is None or step is None:
            continue
        return _trips(comparison.primitive.name, sign, start, end, step)
    return None


def _trips(name: str, sign: int, start: int, end: int, step: int) -> int | None:
    """Returns the least n >= 0 for which `start + n * step` does not satisfy the comparison `name`
    with `end`; None if the counter does not move towards the limit. A counter that is compared by
    `ne` is taken to meet the limit.

    `sign`: 1 if the limit is on the right of the comparison, -1 if it is on the left.
    """
    upwards = name in ("lt", "le") if sign > 0 else name in ("gt", "ge")
    if name == "ne":
        upwards = step > 0
    if step == 0 or (step > 0) is not upwards:
        return None
    distance = (end - start) * (1 if step > 0 else -1) + _COMPARISONS[name]
    return max(0, -(-distance // abs(step)))


def step_of_carry(eqn: Any, carry: int) -> int | None:
    """Returns the integer literal that each iteration of a `while` adds to a carry.

    0 if the iteration passes the carry on unchanged; None if it computes the carry otherwise.

    - `carry`: the number of the carry.
    """
    body = eqn.params["body_jaxpr"].jaxpr
    carried, following = body.invars[eqn.params["body_nconsts"] + carry], body.outvars[carry]
    producer = {variable: inner_eqn for inner_eqn in body.eqns for variable in inner_eqn.outvars}
    if following is carried:
        return 0
    equation = None if isinstance(following, jex.Literal) else producer.get(following)
    if equation is None or equation.primitive.name not in ("add", "sub"):
        return None
    first, second = equation.invars
    if equation.primitive.name == "add" and second is carried:
        first, second = second, first
    is_literal = first is carried and isinstance(second, jex.Literal)
    step = _integer(second.val) if is_literal else None
    return step if step is None or equation.primitive.name == "add" else -step


def _limit(eqn: Any, atom: Any, places: Mapping[Any, int], inputs: Sequence[Any]) -> int | None:
    """Returns the limit of a comparison; None if it is unknown.

    The limit is known if it is a literal of the condition, or a literal input of the loop that
    stays unchanged.
    """
    if isinstance(atom, jex.Literal):
        return _integer(atom.val)
    place, constants = places.get(atom), eqn.params["cond_nconsts"]
    if place is None or (place >= constants and step_of_carry(eqn, place - constants) != 0):
        return None
    return _value(inputs[place])


def _value(given: Any) -> int | None:
    """Returns the integer of a literal, of a `Program` or of a jaxpr; None for other inputs."""
    if isinstance(given, jex.Literal):
        return _integer(given.val)
    return _integer(given.value) if hasattr(given, "value") else None


def _integer(value: Any) -> int | None:
    array = np.asarray(value)
    return int(array) if array.ndim == 0 and array.dtype.kind in "iu" else None
