"""How often a `while` is taken to run.

Its condition tells where a counter that starts at a literal, and to which the body adds a literal,
is compared with a literal: exactly if that is all it asks, at most if it asks more. Otherwise, and
below such a bound, the option `while_trips` says it: a number for all loops, or numbers by a part
of the loop's name scope or source line, `{"solve": 40, "train.py:12": 7}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.extend import core as jex

from kiwi.hlo import jax_internals

WhileTrips: TypeAlias = int | Mapping[str, int]

DEFAULT_TRIPS = 10
"""The trip count of a `while` of which nothing is known."""

_COMPARISONS = {"lt": 0, "le": 1, "gt": 0, "ge": 1, "ne": 0}
"""Primitives that compare a counter with a limit, and the trips that they add."""

_PASSES = frozenset({"and", "convert_element_type"})
"""Primitives that ask what their operands do, all of it."""


def trips_of_while(eqn: Any, inputs: Sequence[Any], given: WhileTrips) -> int:
    """The trip count of an equation of primitive `while`, at least 1.

    `inputs`: the condition's constants and the initial carries; what has a `value` is a literal.
    """
    exact, bounds = _counted(eqn, inputs)
    if exact is not None:
        return max(1, exact)
    return max(1, min((_given(eqn, given), *bounds)))


def _given(eqn: Any, given: WhileTrips) -> int:
    if not isinstance(given, Mapping):
        return given
    line, scope = jax_internals.source_line(eqn.source_info), str(eqn.source_info.name_stack)
    found = (trips for part, trips in given.items() if part in line or part in scope)
    return next(found, DEFAULT_TRIPS)


def _counted(eqn: Any, inputs: Sequence[Any]) -> tuple[int | None, list[int]]:
    """The exact trip count, if known, and upper bounds of it."""
    condition = eqn.params["cond_jaxpr"].jaxpr
    producer = {v: e for e in condition.eqns for v in e.outvars}
    pending, bounds, asks_more = [condition.outvars[0]], [], False
    while pending:
        atom = pending.pop()
        own = None if isinstance(atom, jex.Literal) else producer.get(atom)
        if own is not None and own.primitive.name in _PASSES:
            asks_more |= len(own.invars) > 1
            pending += own.invars
            continue
        trips = None if own is None else _of_comparison(eqn, inputs, own)
        asks_more |= trips is None
        bounds += [] if trips is None else [trips]
    return (bounds[0] if bounds and not asks_more else None), bounds


def _of_comparison(eqn: Any, inputs: Sequence[Any], comparison: Any) -> int | None:
    """The trips until a comparison of a counter with a literal fails; None if it is none."""
    if comparison.primitive.name not in _COMPARISONS:
        return None
    condition = eqn.params["cond_jaxpr"].jaxpr
    constants = eqn.params["cond_nconsts"]
    places = {v: k for k, v in enumerate(condition.invars)}
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
    """Until `start + n * step` no longer compares; `sign` -1: the limit stands on the left."""
    upwards = name in ("lt", "le") if sign > 0 else name in ("gt", "ge")
    if name == "ne":
        upwards = step > 0
    if step == 0 or (step > 0) is not upwards:
        return None
    distance = (end - start) * (1 if step > 0 else -1) + _COMPARISONS[name]
    return max(0, -(-distance // abs(step)))


def step_of_carry(eqn: Any, carry: int) -> int | None:
    """The literal that each iteration of a `while` adds to a carry, whose number is given.

    0 where it passes the carry on, None of all else.
    """
    body = eqn.params["body_jaxpr"].jaxpr
    own, found = body.invars[eqn.params["body_nconsts"] + carry], body.outvars[carry]
    producer = {v: e for e in body.eqns for v in e.outvars}
    if found is own:
        return 0
    equation = None if isinstance(found, jex.Literal) else producer.get(found)
    if equation is None or equation.primitive.name not in ("add", "sub"):
        return None
    first, second = equation.invars
    if equation.primitive.name == "add" and second is own:
        first, second = second, first
    is_literal = first is own and isinstance(second, jex.Literal)
    step = _integer(second.val) if is_literal else None
    return step if step is None or equation.primitive.name == "add" else -step


def _limit(eqn: Any, atom: Any, places: Mapping[Any, int], inputs: Sequence[Any]) -> int | None:
    """A literal of the condition, or one that is handed in and stays as it is."""
    if isinstance(atom, jex.Literal):
        return _integer(atom.val)
    place, constants = places.get(atom), eqn.params["cond_nconsts"]
    if place is None or (place >= constants and step_of_carry(eqn, place - constants) != 0):
        return None
    return _value(inputs[place])


def _value(given: Any) -> int | None:
    return _integer(given.value) if hasattr(given, "value") else None


def _integer(value: Any) -> int | None:
    found = np.asarray(value)
    return int(found) if found.ndim == 0 and found.dtype.kind in "iu" else None
