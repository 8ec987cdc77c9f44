"""The Lagrangian bound: prices on memory and messages on edges, improved together.

For prices p >= 0 (cost per byte at each kept time) and any messages,

    bound(p) = [message bound of the network with costs + p . bytes] - p . limit

is at most the cost of every feasible assignment. `Bundle` chooses the prices; at each, a few
sweeps of message passing starting from the messages of the last prices give the bound, and trees
re-optimised from the rounded assignment give the bundle its next cut.
"""

import math
import time
from collections.abc import Callable
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


Oracle = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray | None, float]]
"""An assignment (or None) and a proven bound of the network at costs of options and of cells."""


@dataclass(eq=False)
class Dual:
    """State of the relaxation. `table` and `unary` are finite: forbidden is merely expensive,
    which keeps every bound valid.

    Messages bound the network by less than its least cost, and what they round to may be far from
    it. Where that holds the prices back (`ask`), an oracle says what the network costs.

    **Attributes:**

    - `bound`: the best bound so far; `best_prices` (T): where it was found.
    - `choice`: the assignment that the last evaluation ended with.
    """

    net: Network
    table: np.ndarray
    unary: np.ndarray
    oracle: Oracle | None = None
    asking: bool = field(init=False, default=False)
    best_prices: np.ndarray = field(init=False)
    bound: float = field(init=False, default=-np.inf)
    choice: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        net = self.net
        self.best_prices = np.zeros(len(net.times))
        self.choice = np.zeros(net.node_count, dtype=np.int64)
        self._tail_share = np.zeros(int(net.row_start[-1]))
        self._head_share = np.zeros(int(net.col_start[-1]))
        self._centre_shares = self._tail_share.copy(), self._head_share.copy()
        self._has_asked = False
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
        forest_descent(self.net, self._work, self.table, priced, self.choice, 2)
        if self.asking:
            best = max(best, self._asked(priced, rent))
        if best > self.bound:
            self.bound, self.best_prices = best, prices.copy()
        return best

    def _asked(self, priced: np.ndarray, rent: float) -> float:
        """The oracle's bound; `choice` follows where its assignment is better."""
        if self.oracle is None:
            return -np.inf
        choice, value = self.oracle(priced, self.table)
        mine = cost_of(self.net, priced, self.table, self.choice)
        if choice is not None and cost_of(self.net, priced, self.table, choice) < mine:
            self.choice[:] = choice
        return value - rent - _ROUNDING * (abs(value) + rent)

    def begin_at(self, prices: np.ndarray) -> None:
        """Makes these prices the centre, before any others were looked at."""
        self.best_prices = prices.copy()
        self.bundle.centre = prices * self._limit

    def visit(self, prices: np.ndarray) -> np.ndarray:
        """The assignment at prices that the bundle does not hear of."""
        asking, self.asking = self.asking, self._has_asked
        self.evaluate(prices)
        self.asking = asking
        self._keep_messages(of_centre=False)
        return self.choice.copy()

    def ask(self) -> bool:
        """Asks the oracle from now on; where it is asked already, no more but for visits. False
        where it was or there is none."""
        self.asking = not self._has_asked and self.oracle is not None and len(self.net.times) > 0
        if not self.asking:
            return False
        self._has_asked = True
        value = self.evaluate(self.bundle.centre / self._limit)
        self.bundle.observe(self.bundle.centre, value)
        self.learn(self.choice, (self.bundle.centre, value))
        self._set_width()
        return True

    def improve(self, steps: int, deadline: float = math.inf) -> None:
        """`steps` evaluations at the bundle's prices, fewer where the deadline (a reading of
        `time.monotonic`) passes."""
        if not len(self.net.times):
            self.evaluate(self.best_prices)
            self._keep_messages(of_centre=True)
            return
        for _ in range(steps):
            if time.monotonic() > deadline:
                return
            prices = self.bundle.propose()
            value = self.evaluate(prices / self._limit)
            self.bundle.observe(prices, value)
            self._keep_messages(of_centre=value >= self.bundle.value)
            is_first = not self.bundle.size
            self.learn(self.choice, (prices, value))
            if is_first:
                self._set_width()

    def _keep_messages(self, *, of_centre: bool) -> None:
        """Notes the messages where they belong to the bundle's centre, and goes back to those where
        they do not. After a step too far messages are worth less near the centre than before,
        every later value there seems a loss, and steps shrink to nothing."""
        if of_centre:
            self._centre_shares = self._tail_share.copy(), self._head_share.copy()
        else:
            self._tail_share[:], self._head_share[:] = self._centre_shares

    def reduced_costs(self) -> tuple[float, np.ndarray]:
        """The bound at `best_prices`, and for each option how far above it every assignment with
        that option costs at least."""
        bound = self.evaluate(self.best_prices, _MOST_PAIRS)
        priced = self.priced(self.best_prices)
        rent = float(self.best_prices.sum()) * self.net.limit_bytes
        last = self._sweep(priced, False, rent)  # the shares must be those of the bound
        spare = reduced_costs(self.net, self._tables, priced, self._tail_share, self._head_share)
        return min(bound, last), spare

    def learn(self, choice: np.ndarray, at: tuple[np.ndarray, float] | None = None) -> None:
        """Gives the bundle an assignment as a cut; `at`: as in `Bundle.add`."""
        if len(self.net.times):
            cost = float(cost_of(self.net, self.unary, self.table, choice))
            self.bundle.add(cost, usage_of(self.net, choice) / self._limit - 1.0, at)

    def _set_width(self) -> None:
        """A first step that would move the bound by a twentieth, were the excess to stay."""
        excess = np.maximum(usage_of(self.net, self.choice) / self._limit - 1.0, 0.0)
        norm = float(excess @ excess)
        if norm > 0.0:
            scale = max(abs(self.bound), _LEAST_SCALE * float(self.table.max(initial=1.0)))
            self.bundle.begin(_FIRST_MOVE * scale / norm)

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
