"""The Lagrangian bound: prices on memory and messages on edges, improved together.

For prices p >= 0 (cost per byte at each kept time) and any messages,

    bound(p) = [message bound of the network with costs + p . bytes] - p . limit

is at most the cost of every feasible assignment. `Bundle` chooses the prices; at each, a few
sweeps of message passing starting from the messages of the last prices give the bound, and trees
re-optimised from the rounded assignment give the bundle its next cut.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from kiwi.solver.bundle import Bundle
from kiwi.solver.messages import reduced_costs, sweep, tables_of
from kiwi.solver.network import Network
from kiwi.solver.prices import cost_of, priced_costs, usage_of
from kiwi.solver.search import forest_descent
from kiwi.solver.trees import new_workspace

_ROUNDING = 1e-10
"""Relative floating-point error granted to a bound before it counts as proven."""
_MOST_PAIRS = 10
_CONVERGED = 1e-5
_FIRST_MOVE = 0.05
_LEAST_SCALE = 1e-9


@dataclass(eq=False)
class Dual:
    """State of the relaxation. `table` and `unary` are finite: forbidden is merely expensive,
    which keeps every bound valid.

    **Attributes:**

    - `bound`: the best bound so far; `best_prices` (T): where it was found.
    - `choice`: the assignment that the last evaluation ended with.
    """

    net: Network
    table: np.ndarray
    unary: np.ndarray
    best_prices: np.ndarray = field(init=False)
    bound: float = field(init=False, default=-np.inf)
    choice: np.ndarray = field(init=False)
    evaluations: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        net = self.net
        self.best_prices = np.zeros(len(net.times))
        self.choice = np.zeros(net.node_count, dtype=np.int64)
        self._tail_share = np.zeros(int(net.row_start[-1]))
        self._head_share = np.zeros(int(net.col_start[-1]))
        self._work = new_workspace(net)
        self._tables = tables_of(net, self.table)
        self._limit = max(net.limit_bytes, 1)
        self.bundle = Bundle(len(net.times), 1.0)

    def priced(self, prices: np.ndarray) -> np.ndarray:
        """Costs of all options at `prices`, a new array."""
        out = np.empty(self.net.option_count)
        priced_costs(self.net, self.unary, prices, out)
        return out

    def evaluate(self, prices: np.ndarray, most_pairs: int = _MOST_PAIRS) -> float:
        """The bound at `prices`, by sweeps until they gain little; `choice` follows."""
        priced = self.priced(prices)
        rent = float(prices.sum()) * self.net.limit_bytes
        best = -np.inf
        for _ in range(most_pairs):
            before = best
            for forward in (True, False):
                best = max(best, self._sweep(priced, forward, rent))
            if best - before <= _CONVERGED * abs(best):
                break
        self.evaluations += 1
        if best > self.bound:
            self.bound, self.best_prices = best, prices.copy()
        forest_descent(self.net, self._work, self.table, priced, self.choice, 2)
        return best

    def improve(self, steps: int, deadline: float = math.inf) -> None:
        """`steps` evaluations at the bundle's prices, fewer where the deadline (a reading of
        `time.monotonic`) passes."""
        if not len(self.net.times):
            self.evaluate(self.best_prices)
            return
        for _ in range(steps):
            if time.monotonic() > deadline:
                return
            prices = self.bundle.propose()
            value = self.evaluate(prices / self._limit)
            self.bundle.observe(prices, value)
            self.learn(self.choice)
            if self.evaluations == 1:
                self._set_width()

    def reduced_costs(self) -> tuple[float, np.ndarray]:
        """The bound at `best_prices`, and for each option how far above it every assignment with
        that option costs at least."""
        bound = self.evaluate(self.best_prices, _MOST_PAIRS)
        priced = self.priced(self.best_prices)
        rent = float(self.best_prices.sum()) * self.net.limit_bytes
        last = self._sweep(priced, False, rent)  # the shares must be those of the bound
        spare = reduced_costs(self.net, self._tables, priced, self._tail_share, self._head_share)
        return min(bound, last), spare

    def learn(self, choice: np.ndarray) -> None:
        """Gives the bundle an assignment as a cut."""
        if len(self.net.times):
            cost = float(cost_of(self.net, self.unary, self.table, choice))
            self.bundle.add(cost, usage_of(self.net, choice) / self._limit - 1.0)

    def _set_width(self) -> None:
        """A first step that would move the bound by a twentieth, were the excess to stay."""
        excess = np.maximum(usage_of(self.net, self.choice) / self._limit - 1.0, 0.0)
        norm = float(excess @ excess)
        if norm > 0.0:
            scale = max(abs(self.bound), _LEAST_SCALE * float(self.table.max(initial=1.0)))
            self.bundle.width = _FIRST_MOVE * scale / norm

    def _sweep(self, priced: np.ndarray, forward: bool, rent: float) -> float:
        network_bound = sweep(
            self.net,
            self._tables,
            priced,
            self._tail_share,
            self._head_share,
            self.choice,
            forward,
        )
        return network_bound - rent - _ROUNDING * (abs(network_bound) + rent)
