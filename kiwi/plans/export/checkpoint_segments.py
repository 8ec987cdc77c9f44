"""A jaxpr as a flat list of equations, evaluated in segments that are checkpointed one by one.

One `jax.checkpoint` around a whole loss would have all of its recomputation start at once, as soon
as the backward pass does. A checkpointed segment is recomputed when the cotangent of its results is
there. What enters a segment is saved, so that a cut is made only where nothing else crosses it than
what is saved anyway: arguments, named results, and scalars. A scan is a segment of its own; its
body is cut likewise.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jex

from kiwi.hlo.program import Equation, Literal, join_scopes, kept_outputs
from kiwi.hlo.tracing import INLINED_CALLS

_INLINED = {call: where for call, where in INLINED_CALLS.items() if "custom" not in call}
"""Calls that are inlined, and the parameter that holds what they call. Unlike in the planned
program, custom derivatives are not: what they call is differentiated otherwise."""

Evaluate = Callable[[Equation, Callable[[int], Any]], list[Any]]
"""Gives the results of an equation that something reads; the second argument reads a value."""


@dataclass(frozen=True, eq=False)
class Flat:
    """The equations of a jaxpr, with its arguments, constants and results. Values are numbers."""

    equations: tuple[Equation, ...]
    arguments: tuple[int, ...]
    constants: Mapping[int, Any]
    results: tuple[int | Literal, ...]

    @functools.cached_property
    def last_read(self) -> dict[int, int]:
        """For each value the last equation that reads it; their count for a result."""
        found = {value: e.index for e in self.equations for value in e.reads}
        return found | {r: len(self.equations) for r in self.results if isinstance(r, int)}


def flattened(closed: Any) -> Flat:
    """A closed jaxpr, its calls inlined."""
    equations: list[Equation] = []
    constants: dict[int, Any] = {}
    numbers = itertools.count()

    def inline(called: Any, inputs: Sequence[int | Literal], scope: str) -> list[int | Literal]:
        env: dict[Any, int | Literal] = dict(zip(called.jaxpr.invars, inputs, strict=True))
        for variable, array in zip(called.jaxpr.constvars, called.consts, strict=True):
            constant = env[variable] = next(numbers)
            constants[constant] = array

        def read(atom: Any) -> int | Literal:
            return Literal(atom.val) if isinstance(atom, jex.Literal) else env[atom]

        for eqn in called.jaxpr.eqns:
            operands = tuple(map(read, eqn.invars))
            inner = eqn.params.get(_INLINED.get(eqn.primitive.name, ""))
            if inner is None:
                kept = {variable: next(numbers) for variable in kept_outputs(eqn)}
                equation = Equation(len(equations), eqn, scope, operands, tuple(kept.values()))
                equations.append(equation)
                env.update(kept)
                continue
            inner = inner if isinstance(inner, jex.ClosedJaxpr) else jex.ClosedJaxpr(inner, ())
            stack = join_scopes(scope, str(eqn.source_info.name_stack))
            env.update(zip(eqn.outvars, inline(inner, operands, stack), strict=True))
        return list(map(read, called.jaxpr.outvars))

    arguments = tuple(next(numbers) for _ in closed.jaxpr.invars)
    results = inline(closed, arguments, "")
    return Flat(tuple(equations), arguments, constants, tuple(results))


def run_segments(
    flat: Flat,
    leaves: Sequence[Any],
    evaluate: Evaluate,
    saved: AbstractSet[int] = frozenset(),
    policy: Callable[..., Any] | None = None,
) -> list[Any]:
    """Evaluates a flat jaxpr; with `policy`, each segment of it is checkpointed.

    `saved`: the equations whose results the policy saves.
    """
    env = {**flat.constants, **dict(zip(flat.arguments, leaves, strict=True))}
    for segment in _segments(flat, saved) if policy else [flat.equations]:
        end = len(flat.equations) if policy is None else segment[-1].index + 1
        inputs = _read_from_outside(segment)
        needed = [o for e in segment for o in e.outputs if flat.last_read.get(o, -1) >= end]
        run = functools.partial(_run, segment, inputs, needed, evaluate)
        if policy and segment[0].name != "scan":
            run = jax.checkpoint(run, policy=policy)
        env.update(zip(needed, run(*(env[i] for i in inputs)), strict=True))
    return [r.value if isinstance(r, Literal) else env[r] for r in flat.results]


def _run(
    segment: Sequence[Equation],
    inputs: Sequence[int],
    needed: Sequence[int],
    evaluate: Evaluate,
    *arrays: Any,
) -> list[Any]:
    env = dict(zip(inputs, arrays, strict=True))
    for equation in segment:
        env.update(zip(equation.outputs, evaluate(equation, env.__getitem__), strict=True))
    return [env[n] for n in needed]


def _read_from_outside(segment: Sequence[Equation]) -> list[int]:
    own = {o for equation in segment for o in equation.outputs}
    reads = (value for equation in segment for value in equation.reads)
    return [value for value in dict.fromkeys(reads) if value not in own]


def _segments(flat: Flat, saved: AbstractSet[int]) -> list[list[Equation]]:
    """The equations, cut where nothing but what is saved is read on both sides."""
    found: list[list[Equation]] = []
    crossing: set[int] = set()
    starts = True
    for equation in flat.equations:
        is_scan = equation.name == "scan"
        if starts or is_scan:
            found.append([])
        found[-1].append(equation)
        if equation.index not in saved:
            variables = zip(equation.outputs, kept_outputs(equation.jaxpr_eqn), strict=True)
            crossing |= {o for o, v in variables if v.aval.shape}
        crossing = {o for o in crossing if flat.last_read.get(o, -1) > equation.index}
        starts = is_scan or not crossing
    return found
