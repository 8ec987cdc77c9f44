"""The estimated and compiled figures of a function, which a reduction compares."""

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
"""Smaller differences (bytes, seconds, bytes) count as none: launches, tiles and small workspaces
of compilers cause them."""

_COLLECTIVE_SHARE = 0.05
"""This fraction of the compiled peak is added to the bytes of collectives on both sides, so that
their ratio is finite, and close to 1 for small collectives."""


@dataclass(frozen=True)
class Measured:
    """Pairs (estimated, compiled) of the bytes at the peak, the seconds of a step, and the bytes of
    collectives."""

    peak_bytes: tuple[float, float]
    step_seconds: tuple[float, float]
    collective_bytes: tuple[float, float]

    @classmethod
    def of_plan(cls, plan: Plan) -> "Measured":
        """Returns the figures of a compiled plan."""
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
        """The pair (estimated, compiled) of a quantity."""
        pairs = self.peak_bytes, self.step_seconds, self.collective_bytes
        by_quantity: dict[str, tuple[float, float]] = dict(zip(QUANTITIES, pairs, strict=True))
        return by_quantity[quantity]

    def error(self, quantity: str) -> float:
        """The logarithm of the estimated figure divided by the compiled figure; 0 if the difference
        is too small to count."""
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
"""Returns the figures of a function of flat arguments with the given types; None if it cannot be
planned or compiled."""


def measured(
    options: Options, function: Callable[..., Any], arguments: Sequence[Any]
) -> Measured | None:
    """Plans and compiles a function and returns its figures; None if an exception is raised. A part
    of a step may be a function that nobody would write; the search then continues with others."""
    try:
        plan = PlannedFunction(function, options).plan(*arguments)
    except Exception:
        return None
    return Measured.of_plan(plan)


def measuring(options: Options) -> Measure:
    """Returns `measured` with these options."""
    return functools.partial(measured, options)
