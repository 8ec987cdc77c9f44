"""The estimated and compiled figures of a function that are compared."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kiwi.api import PlannedFunction
from kiwi.options import Options
from kiwi.plans.plan import Plan

MEMORY, TIME, COLLECTIVES = "memory", "time", "collectives"
QUANTITIES = (MEMORY, TIME, COLLECTIVES)
"""The quantities in which estimate and compiled program may differ."""

_LEAST: dict[str, float] = {MEMORY: 2.0**20, TIME: 20e-6, COLLECTIVES: 2.0**20}
"""Smaller differences (bytes, seconds, bytes) do not count: launches, tiles and small workspaces of
compilers cause them."""

_COLLECTIVE_SHARE = 0.05
"""The part of the compiled peak that is added to the bytes of collectives on both sides, so that
their ratio is finite and close to 1 for small collectives."""


@dataclass(frozen=True)
class Measured:
    """Estimated and compiled bytes at the peak, seconds of a step, and bytes of collectives."""

    peak_bytes: tuple[float, float]
    step_seconds: tuple[float, float]
    collective_bytes: tuple[float, float]

    @classmethod
    def of_plan(cls, plan: Plan) -> "Measured":
        """The figures of a checked plan."""
        estimate, compiled = plan.estimate, plan.compiled
        assert compiled is not None and compiled.step_seconds is not None
        return cls(
            (float(estimate.peak_bytes), float(compiled.peak_bytes)),
            (estimate.step_seconds, compiled.step_seconds),
            (
                float(sum(use.bytes for use in estimate.collective_uses)),
                float(compiled.collective_bytes),
            ),
        )

    def sides(self, quantity: str) -> tuple[float, float]:
        """Estimated and compiled."""
        pairs = self.peak_bytes, self.step_seconds, self.collective_bytes
        by_quantity: dict[str, tuple[float, float]] = dict(zip(QUANTITIES, pairs, strict=True))
        return by_quantity[quantity]

    def error(self, quantity: str) -> float:
        """The logarithm of estimated over compiled; 0 for a difference that is too small
        to count."""
        estimated, compiled = self.sides(quantity)
        if abs(estimated - compiled) < _LEAST[quantity]:
            return 0.0
        if quantity == COLLECTIVES:
            added = _COLLECTIVE_SHARE * self.peak_bytes[1]
            estimated, compiled = estimated + added, compiled + added
        return math.log(estimated / compiled)

    @property
    def largest(self) -> str:
        """The quantity that deviates most."""
        return max(QUANTITIES, key=lambda quantity: abs(self.error(quantity)))


Measure = Callable[[Callable[..., Any], Sequence[Any]], Measured | None]
"""Measures a function of flat arguments and their types; None if it cannot be planned or
compiled."""


def measured(
    options: Options, function: Callable[..., Any], arguments: Sequence[Any]
) -> Measured | None:
    """Plans and compiles a function; None if that raises anything. A part of a step may be a
    function that nobody would write, and the search goes on with others."""
    try:
        plan = PlannedFunction(function, options).plan(*arguments)
    except Exception:
        return None
    return Measured.of_plan(plan)


def measuring(options: Options) -> Measure:
    """`measured` with these options."""
    return functools.partial(measured, options)
