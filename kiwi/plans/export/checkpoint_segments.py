"""A jaxpr as a flat list of equations, evaluated in segments that are checkpointed one by one.

One `jax.checkpoint` around a whole loss would have all of its recomputation start at once, as soon
as the backward pass does. A checkpointed segment is recomputed when the cotangent of its results is
there. What enters a segment is saved, so that a cut is made only where nothing else crosses it than
what is saved anyway: arguments, named results, and scalars. A scan is a segment of its own; its
body is cut likewise.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jex

from kiwi.hlo.program import Literal, join_scopes
from kiwi.hlo.tracing import INLINED_CALLS

_INLINED = {call: where for call, where in INLINED_CALLS.items() if "custom" not in call}
"""Calls that are inlined, and the parameter that holds what they call. Unlike in the planned
program, custom derivatives are not: what they call is differentiated otherwise."""


@dataclass(frozen=True, eq=False)
class FlatEquation:
    """An equation with its place: `label` counts equations through the calls that it is in.

    `inputs` are values by number, or literals; `outputs` the numbers of all results.
    """

    label: str
    eqn: Any
    scope: str
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int, ...]

    @property
    def is_scan(self) -> bool:
        """Whether it has a body that is looked into."""
        return self.eqn.primitive.name == "scan"


@dataclass(frozen=True, eq=False)
class Flat:
    """The equations of a jaxpr, with its arguments, constants and results."""

    equations: tuple[FlatEquation, ...]
    arguments: tuple[int, ...]
    constants: Mapping[int, Any]
    results: tuple[int | Literal, ...]


class _Flattening:
    def __init__(self) -> None:
        self.equations: list[FlatEquation] = []
        self.constants: dict[int, Any] = {}
        self._count = 0

    def number(self) -> int:
        self._count += 1
        return self._count - 1

    def add(
        self, closed: Any, inputs: Sequence[int | Literal], prefix: str, scope: str
    ) -> list[int | Literal]:
        env: dict[Any, int | Literal] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        for variable, array in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            constant = env[variable] = self.number()
            self.constants[constant] = array

        def read(atom: Any) -> int | Literal:
            return Literal(atom.val) if isinstance(atom, jex.Literal) else env[atom]

        for position, eqn in enumerate(closed.jaxpr.eqns):
            operands = tuple(read(v) for v in eqn.invars)
            label = f"{prefix}{position}"
            inner = eqn.params.get(_INLINED.get(eqn.primitive.name, ""))
            if inner is None:
                results: Sequence[Any] = tuple(self.number() for _ in eqn.outvars)
                self.equations.append(FlatEquation(label, eqn, scope, operands, tuple(results)))
            else:
                called = inner if isinstance(inner, jex.ClosedJaxpr) else jex.ClosedJaxpr(inner, ())
                stack = join_scopes(scope, str(eqn.source_info.name_stack))
                results = self.add(called, operands, label + ".", stack)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in closed.jaxpr.outvars]


def flattened(closed: Any) -> Flat:
    """A closed jaxpr, its calls inlined."""
    building = _Flattening()
    arguments = tuple(building.number() for _ in closed.jaxpr.invars)
    results = building.add(closed, arguments, "", "")
    return Flat(tuple(building.equations), arguments, building.constants, tuple(results))


def run_segments(
    flat: Flat,
    leaves: Sequence[Any],
    evaluate: Callable[[FlatEquation, list[Any]], list[Any]],
    saved: AbstractSet[str],
    policy: Callable[..., Any] | None,
) -> list[Any]:
    """Evaluates a flat jaxpr; with `policy`, each segment of it is checkpointed.

    - `evaluate`: all results of an equation from its operands.
    - `saved`: labels of the equations whose results the policy saves.
    """
    env = {**flat.constants, **dict(zip(flat.arguments, leaves, strict=True))}
    for segment in _segments(flat, saved) if policy else [flat.equations]:
        needed = _read_behind(flat, segment)
        inputs = _read_from_outside(segment)
        run = _runner(segment, inputs, needed, evaluate)
        if policy and not segment[0].is_scan:
            run = jax.checkpoint(run, policy=policy)
        env.update(zip(needed, run(*(env[i] for i in inputs)), strict=True))
    return [r.value if isinstance(r, Literal) else env[r] for r in flat.results]


def _runner(
    segment: Sequence[FlatEquation],
    inputs: Sequence[int],
    needed: Sequence[int],
    evaluate: Callable[[FlatEquation, list[Any]], list[Any]],
) -> Callable[..., list[Any]]:
    def run(*arrays: Any) -> list[Any]:
        env = dict(zip(inputs, arrays, strict=True))
        for step in segment:
            operands = [i.value if isinstance(i, Literal) else env[i] for i in step.inputs]
            env.update(zip(step.outputs, evaluate(step, operands), strict=True))
        return [env[n] for n in needed]

    return run


def _read_from_outside(segment: Sequence[FlatEquation]) -> list[int]:
    own = {o for step in segment for o in step.outputs}
    reads = (i for step in segment for i in step.inputs if isinstance(i, int))
    return [i for i in dict.fromkeys(reads) if i not in own]


def _read_behind(flat: Flat, segment: Sequence[FlatEquation]) -> list[int]:
    """What a segment yields that other segments or the caller read."""
    inside = {id(step) for step in segment}
    outside = (step for step in flat.equations if id(step) not in inside)
    reads = {i for step in outside for i in step.inputs if isinstance(i, int)}
    reads |= {r for r in flat.results if isinstance(r, int)}
    return [o for step in segment for o in step.outputs if o in reads]


def _segments(flat: Flat, saved: AbstractSet[str]) -> list[list[FlatEquation]]:
    """The equations, cut where nothing but what is saved is read on both sides."""
    last = {
        i: k for k, step in enumerate(flat.equations) for i in step.inputs if isinstance(i, int)
    }
    last |= {r: len(flat.equations) for r in flat.results if isinstance(r, int)}
    found: list[list[FlatEquation]] = []
    crossing: set[int] = set()
    starts = True
    for k, step in enumerate(flat.equations):
        if starts or step.is_scan:
            found.append([])
        found[-1].append(step)
        if step.label not in saved:
            sizes = zip(step.outputs, step.eqn.outvars, strict=True)
            crossing |= {o for o, v in sizes if v.aval.shape and o in last}
        crossing = {o for o in crossing if last[o] > k}
        starts = step.is_scan or not crossing
    return found
