"""The Lagrangian bound: prices on memory and messages on edges, improved together.

For prices p >= 0 (cost per byte at each kept time) and any messages,

    bound(p) = [message bound of the network with costs + p . bytes] - p . limit

is at most the cost of every feasible assignment. A sweep of message passing and a step of the
prices alternate. The prices move along a smoothed direction of (usage of the rounded assignment -
limit), with a Polyak step towards a target a little above the bound (Barahona and Anbil, *The
volume algorithm*, 2000: the smoothing replaces the zigzag of plain subgradients).
"""

from dataclasses import dataclass, field

import numpy as np

from kiwi.solver.messages import sweep
from kiwi.solver.network import Network
from kiwi.solver.prices import priced_costs, usage_of
from kiwi.solver.search import forest_descent
from kiwi.solver.trees import new_workspace

_SMOOTHING = 0.25
_PATIENCE = 12
_SHRINK, _GROW = 0.7, 1.1
_MOST_STEP, _LEAST_STEP = 1.0, 1e-4
_ROUNDING = 1e-10
"""Relative floating-point error granted to a bound before it counts as proven."""


@dataclass(eq=False)
class Dual:
    """State of the relaxation. `table` and `unary` are finite: forbidden is merely expensive,
    which keeps every bound valid.

    **Attributes:**

    - `prices` (T): the current prices; `best_prices` those of the best bound.
    - `bound`: the best bound so far.
    - `choice`: the rounded assignment of the last sweep.
    """

    net: Network
    table: np.ndarray
    unary: np.ndarray
    prices: np.ndarray = field(init=False)
    best_prices: np.ndarray = field(init=False)
    bound: float = field(init=False, default=-np.inf)
    choice: np.ndarray = field(init=False)
    step: float = field(init=False, default=0.3)
    sweeps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        net = self.net
        self.prices = np.zeros(len(net.times))
        self.best_prices = self.prices.copy()
        self.choice = np.zeros(net.node_count, dtype=np.int64)
        self._tail_share = np.zeros(int(net.row_start[-1]))
        self._head_share = np.zeros(int(net.col_start[-1]))
        self._priced = np.empty(net.option_count)
        self._direction = np.zeros(len(net.times))
        self._stale = 0
        self._work = new_workspace(net)

    def priced(self, prices: np.ndarray) -> np.ndarray:
        """Costs of all options at `prices`, a new array."""
        out = np.empty(self.net.option_count)
        priced_costs(self.net, self.unary, prices, out)
        return out

    def run(self, pairs: int, target: float | None, *, move_prices: bool = True) -> None:
        """`pairs` forward and backward sweeps; `target` is the cost of the best solution."""
        for _ in range(pairs):
            for forward in (True, False):
                self._sweep(forward)
                if move_prices and len(self.net.times):
                    self._move_prices(target)

    def _sweep(self, forward: bool) -> None:
        priced_costs(self.net, self.unary, self.prices, self._priced)
        network_bound = sweep(
            self.net,
            self.table,
            self._priced,
            self._tail_share,
            self._head_share,
            self.choice,
            forward,
        )
        rent = float(self.prices.sum()) * self.net.limit_bytes
        self._last = network_bound - rent
        self.sweeps += 1
        safe = self._last - _ROUNDING * (abs(network_bound) + rent)
        if safe > self.bound:
            if safe > self.bound + 1e-5 * abs(self.bound):
                self._stale = 0
            self.bound = safe
            self.best_prices = self.prices.copy()
        self._stale += 1

    def _move_prices(self, target: float | None) -> None:
        limit = max(self.net.limit_bytes, 1)
        forest_descent(self.net, self._work, self.table, self._priced, self.choice, 1)
        excess = usage_of(self.net, self.choice) / limit - 1.0
        self._direction += _SMOOTHING * (excess - self._direction)
        at_zero = self.best_prices <= 0
        direction = np.where(at_zero, np.maximum(self._direction, 0.0), self._direction)
        norm = float(direction @ direction)
        if norm <= 0.0:
            return
        self._adapt_step()
        length = self.step * max(self._goal(target) - self.bound, 0.0) / norm
        self.prices = np.maximum(0.0, self.best_prices + length / limit * direction)

    def _goal(self, target: float | None) -> float:
        ahead = self.bound + 0.05 * abs(self.bound)
        return ahead if target is None else min(target, ahead)

    def _adapt_step(self) -> None:
        if self._stale > _PATIENCE:
            self.step = max(_LEAST_STEP, self.step * _SHRINK)
            self._stale = 0
        elif self._stale == 0:
            self.step = min(_MOST_STEP, self.step * _GROW)
