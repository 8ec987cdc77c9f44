"""Feasible assignments: infeasible ones are repaired, then improved by trees and by forced options.

Every move minimises costs that include prices of memory. At the relaxation's full prices a move
holds memory only where it saves most. At lower prices it uses memory that is still free: as prices
change, the relaxation jumps from assignments above the limit to assignments far below it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kiwi.solver.parameters import DEFAULT, Parameters
from kiwi.solver.peak import new_tree
from kiwi.solver.relaxed import Relaxed, cost_of, usage_of
from kiwi.solver.search import forced_moves, forest_descent, tree_descent
from kiwi.solver.trees import new_workspace

_REPAIR_ROUNDS = 40
"""The largest number of times that a repair raises the prices. Then it has failed."""
_PRICE_LEVELS = (1.0, 0.5, 0.0)
"""The shares of the relaxation's prices at which moves are made, one after the other."""
_LEAST_GAIN = 1e-10
"""The relative gain that a forced move must exceed. Smaller gains count as rounding."""


@dataclass(frozen=True, eq=False)
class Incumbent:
    """A feasible assignment of the network."""

    choice: np.ndarray
    cost: float
    peak_bytes: int


class Primal:
    """The best assignment so far, and the moves that improve it.

    - `incumbent`: the best feasible assignment, or None.
    - `smallest`: the assignment with the lowest peak among all that were seen without forbidden
      pairs, feasible or not.
    - `is_late`: returns whether the search has to end.
    """

    def __init__(
        self, relaxed: Relaxed, is_late: Callable[[], bool], parameters: Parameters = DEFAULT
    ) -> None:
        self.relaxed, self.net, self.is_late = relaxed, relaxed.net, is_late
        self._parameters = parameters
        self.incumbent: Incumbent | None = None
        self.smallest: Incumbent | None = None
        self._work = new_workspace(self.net)

    @property
    def work(self) -> int:
        """The number of options and table cells visited so far."""
        return int(self._work.visited[0])

    def offer(self, choice: np.ndarray) -> bool:
        """Takes `choice` as the incumbent if it is feasible and better. Returns whether it was
        taken."""
        cost = float(cost_of(self.relaxed.exact, self.net.cost, choice))
        if not math.isfinite(cost):
            return False
        peak = int(usage_of(self.net, choice).max(initial=0))
        if self.smallest is None or peak < self.smallest.peak_bytes:
            self.smallest = Incumbent(choice.copy(), cost, peak)
        if peak > self.net.limit_bytes:
            return False
        if self.incumbent is not None and cost >= self.incumbent.cost:
            return False
        self.incumbent = Incumbent(choice.copy(), cost, peak)
        return True

    def improve_from(self, choice: np.ndarray, prices: np.ndarray, scale: float) -> None:
        """Re-optimises `choice`, repairs it, and improves it by trees if it then fits. `scale`: a
        typical cost."""
        forest_descent(self.net, self._work, self.relaxed.priced(prices), choice, 4)
        self.offer(choice)
        if self._repair(choice, prices, scale):
            self.offer(choice)
            extent = (max(50, self.net.node_count // 4), self._parameters.tree_nodes)
            self._move_at_levels(tree_descent, choice, prices, extent)

    def force(self, prices: np.ndarray, tries: int) -> None:
        """Forces `tries` options around the incumbent at each price level."""
        if self.incumbent is None:
            return
        least_gain = _LEAST_GAIN * abs(self.incumbent.cost)
        extent = (tries, self._parameters.ball_nodes, least_gain)
        self._move_at_levels(forced_moves, self.incumbent.choice.copy(), prices, extent)

    def improve_apart(
        self, choice: np.ndarray, prices: np.ndarray, scale: float, tries: int
    ) -> None:
        """Improves `choice` without regard to the incumbent, and keeps the better of the two."""
        kept, self.incumbent = self.incumbent, None
        try:
            self.improve_from(choice, prices, scale)
            self.force(prices, tries)
        finally:
            if kept is not None and (self.incumbent is None or kept.cost <= self.incumbent.cost):
                self.incumbent = kept

    def _repair(self, choice: np.ndarray, prices: np.ndarray, scale: float) -> bool:
        """Raises prices at times above the limit until the assignment fits. Returns whether it
        does."""
        limit = self.net.limit_bytes
        extra = np.zeros(len(prices))
        unit = float(prices.sum()) or 0.1 * scale / max(limit, 1)
        for _ in range(_REPAIR_ROUNDS):
            usage = usage_of(self.net, choice)
            if usage.max(initial=0) <= limit:
                return True
            if self.is_late():
                break
            extra += unit * np.maximum(usage / max(limit, 1) - 1.0, 0.0)
            unit *= self._parameters.repair_growth
            forest_descent(self.net, self._work, self.relaxed.priced(prices + extra), choice, 1)
        self.offer(choice)
        return False

    def _move_at_levels(
        self, move: Callable, choice: np.ndarray, prices: np.ndarray, extent: tuple
    ) -> None:
        """Applies `move` to `choice` at each price level. `extent`: the last arguments of
        `move`."""
        peak = new_tree(usage_of(self.net, choice))
        for level in _PRICE_LEVELS:
            move(self.net, self._work, self.relaxed.priced(level * prices), choice, peak, *extent)
            self.offer(choice)
            if self.is_late():
                return
