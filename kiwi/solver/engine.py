"""Lagrangian bound and very-large-neighbourhood search, hand in hand: the solver of large problems.

Each round improves the bound (`dual`), turns the priced network's rounded assignment into a
feasible one (`repair`), and improves the incumbent by trees (`search`) at several price levels:
full prices keep memory where it is worth most, no prices spend what is left of it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kiwi.solver.dual import Dual
from kiwi.solver.network import Network
from kiwi.solver.peak import new_tree
from kiwi.solver.prices import cost_of, usage_of
from kiwi.solver.result import relative_gap
from kiwi.solver.search import forest_descent, seed_random, tree_descent
from kiwi.solver.trees import new_workspace

MOST_ROUNDS = 60
_FIRST_SWEEPS, _DUAL_STEPS = 15, 10
_REPAIR_ROUNDS = 40
_PRICE_LEVELS = (1.0, 0.5, 0.0)
_LARGEST_TREE = 60
_MOST_IDLE_ROUNDS = 8
_NOTICEABLE = 0.02


@dataclass(frozen=True, eq=False)
class Incumbent:
    """A feasible assignment of the network."""

    choice: np.ndarray
    cost: float
    peak_bytes: int


@dataclass(eq=False)
class Engine:
    """The search over one network; `run` until done, then read `incumbent` and `bound`."""

    net: Network
    seed: int
    gap: float
    deadline: float
    on_improvement: Callable[["Engine"], None] | None = None
    incumbent: Incumbent | None = field(init=False, default=None)
    least_peak_bytes: int | None = field(init=False, default=None)
    rounds: int = field(init=False, default=0)
    out_of_time: bool = field(init=False, default=False)
    _idle: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.forbidden = forbidden_cost(self.net)
        self.table = np.minimum(self.net.table, self.forbidden)
        self.unary = np.minimum(self.net.cost, self.forbidden)
        self.dual = Dual(self.net, self.table, self.unary)
        self.work = new_workspace(self.net)
        seed_random(self.seed)

    @property
    def bound(self) -> float:
        """The best proven lower bound."""
        return self.dual.bound

    @property
    def closed(self) -> bool:
        """True where the gap is as small as was asked for."""
        best = self.incumbent
        return best is not None and relative_gap(best.cost, self.bound) <= self.gap

    @property
    def infeasible(self) -> bool:
        """True where the bound exceeds the cost of every assignment without forbidden pairs."""
        return self.incumbent is None and self.bound > self.forbidden

    @property
    def settled(self) -> bool:
        """True where nothing is left to do."""
        return self.closed or self.infeasible

    def run(self) -> None:
        """Rounds until the gap is closed, the rounds are used up or the deadline passes."""
        self.dual.evaluate(self.dual.best_prices, _FIRST_SWEEPS)
        while not self.settled and self.rounds < MOST_ROUNDS and not self._late():
            before = self._standing()
            self.dual.improve(_DUAL_STEPS)
            self._improve_from(self.dual.choice.copy())
            if self.incumbent is not None and not self._late():
                self._improve_from(self.incumbent.choice.copy())
            self.rounds += 1
            self._idle = self._idle + 1 if self._is_close(before) else 0
            self._report()
            if self._idle >= _MOST_IDLE_ROUNDS:
                return

    def _standing(self) -> tuple[float, float]:
        return (self.incumbent.cost if self.incumbent else math.inf), self.bound

    def _is_close(self, before: tuple[float, float]) -> bool:
        """True where the round since `before` moved neither cost nor bound noticeably."""
        cost, bound = self._standing()
        small = _NOTICEABLE * max(self.gap, 1e-6) * abs(bound)
        return cost == before[0] and bound - before[1] <= small

    def offer(self, choice: np.ndarray) -> bool:
        """Takes `choice` as incumbent where it is feasible and better."""
        cost = float(cost_of(self.net, self.net.cost, self.net.table, choice))
        usage = usage_of(self.net, choice)
        peak = int(usage.max(initial=0))
        if not math.isfinite(cost):
            return False
        least = self.least_peak_bytes
        self.least_peak_bytes = peak if least is None else min(least, peak)
        if peak > self.net.limit_bytes:
            return False
        if self.incumbent is not None and cost >= self.incumbent.cost:
            return False
        self.incumbent = Incumbent(choice.copy(), cost, peak)
        return True

    def _improve_from(self, choice: np.ndarray) -> None:
        prices = self.dual.best_prices
        forest_descent(self.net, self.work, self.table, self.dual.priced(prices), choice, 4)
        self.offer(choice)
        if self._repair(choice, prices):
            self.offer(choice)
            self._polish(choice, prices)

    def _repair(self, choice: np.ndarray, prices: np.ndarray) -> bool:
        """Raises prices where memory overflows until the assignment fits; True where it does."""
        limit = self.net.limit_bytes
        extra = np.zeros(len(prices))
        unit = self._price_unit()
        for _ in range(_REPAIR_ROUNDS):
            usage = usage_of(self.net, choice)
            if usage.max(initial=0) <= limit:
                return True
            if self._late():
                return False
            extra += unit * np.maximum(usage / max(limit, 1) - 1.0, 0.0)
            unit *= 1.5
            priced = self.dual.priced(prices + extra)
            forest_descent(self.net, self.work, self.table, priced, choice, 1)
        self.offer(choice)
        return False

    def _price_unit(self) -> float:
        """A price per byte at which an overflow of all memory costs a tenth of the bound."""
        total = float(self.dual.best_prices.sum())
        if total > 0:
            return total
        return 0.1 * max(abs(self.bound), 1e-300) / max(self.net.limit_bytes, 1)

    def _polish(self, choice: np.ndarray, prices: np.ndarray) -> None:
        top, lift = new_tree(usage_of(self.net, choice))
        for level in _PRICE_LEVELS:
            tree_descent(
                self.net,
                self.work,
                self.table,
                self.dual.priced(level * prices),
                choice,
                top,
                lift,
                self.net.limit_bytes,
                max(50, self.net.node_count // 4),
                _LARGEST_TREE,
            )
            self.offer(choice)
            if self._late():
                return

    def _late(self) -> bool:
        self.out_of_time = self.out_of_time or time.monotonic() > self.deadline
        return self.out_of_time

    def _report(self) -> None:
        if self.on_improvement is not None:
            self.on_improvement(self)


def forbidden_cost(net: Network) -> float:
    """A finite stand-in for infinity: every node and edge at a middling price, at least."""
    total = 0.0
    for values, starts in ((net.cost, net.option_start), (net.table, net.table_start)):
        finite = np.where(np.isfinite(values), np.abs(values), 0.0)
        if len(values):
            total += float(np.maximum.reduceat(finite, starts[:-1]).sum())
    return total if total > 0 else 1.0
