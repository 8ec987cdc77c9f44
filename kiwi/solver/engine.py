"""The solver of large problems: a Lagrangian bound and a very-large-neighbourhood search.

Each round improves the bound (`dual`), turns the rounded assignments of the priced network into
feasible ones, and improves the incumbent (`primal`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kiwi.solver.dual import FIRST_SWEEPS, Dual, Oracle
from kiwi.solver.network import Network
from kiwi.solver.parameters import DEFAULT, Parameters
from kiwi.solver.primal import Incumbent, Primal
from kiwi.solver.relaxed import Relaxed
from kiwi.solver.result import is_closed
from kiwi.solver.search import seed_random

_LEAST_DUAL_STEPS = 4
"""The smallest number of price steps in a round, however much they have stalled."""
_STUCK = 2
"""The number of idle rounds from which on every other forcing round begins from another
solution."""
_STALLED = 0.01
"""The share of the gap that the price steps of a round must close. If they close less, the bound
has stalled."""
_MOST_FORCED_TRIES, _FORCED_CELLS = 150, 1_000_000
"""The largest number of options forced in a round, and the size (options and cells) from which on a
network gets `Parameters.forced_tries`. Smaller networks get more tries, in inverse proportion."""
_NOTICEABLE = 0.02
"""The share of the requested gap by which the bound must rise in a round that is not idle."""


@dataclass(eq=False)
class Engine:
    """The search over one network. `run` searches; `incumbent` and `bound` are the results.

    - `gap`: the relative gap at which the search is settled.
    - `deadline`: a reading of `time.monotonic` after which it ends.
    - `on_round`: called with the engine after each round.
    - `most_work`: the number of options and table cells after whose visit it ends.
    - `out_of_time`, `out_of_work`: whether the deadline or `most_work` ended it.
    """

    net: Network
    seed: int
    gap: float
    deadline: float
    on_round: Callable[["Engine"], None] | None = None
    oracle: Oracle | None = None
    parameters: Parameters = DEFAULT
    most_work: float = math.inf
    rounds: int = field(init=False, default=0)
    out_of_time: bool = field(init=False, default=False)
    out_of_work: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.relaxed = Relaxed(self.net)
        self.dual = Dual(self.relaxed, self.oracle, self.parameters)
        self.primal = Primal(self.relaxed, self._late, self.parameters)
        self._least_rounds = 0
        self._dual_steps = self.parameters.dual_steps
        least_tries = self.parameters.forced_tries
        tries = min(least_tries * _FORCED_CELLS // max(1, self.net.size), _MOST_FORCED_TRIES)
        self._random, self._anew = np.random.default_rng(self.seed), False
        self._tries = max(least_tries, tries)
        seed_random(self.seed)

    @property
    def bound(self) -> float:
        """The best proven lower bound."""
        return self.dual.bound

    @property
    def work(self) -> int:
        """The number of options and table cells that the dual and the primal side have visited."""
        return self.dual.work + self.primal.work

    @property
    def incumbent(self) -> Incumbent | None:
        """The best feasible assignment."""
        return self.primal.incumbent

    @property
    def infeasible(self) -> bool:
        """Whether the bound exceeds the cost of every assignment without forbidden pairs."""
        return self.incumbent is None and self.bound > self.relaxed.forbidden

    @property
    def settled(self) -> bool:
        """Whether the gap is small enough, or the network is proven infeasible."""
        best = self.incumbent
        if best is None:
            return self.infeasible
        return is_closed(best.cost, self.bound, self.gap)

    def run(
        self,
        most_rounds: int,
        most_idle_rounds: int,
        *,
        force: bool,
        least_rounds: int = 0,
        by_cost: bool = False,
    ) -> None:
        """Runs rounds until the search is settled, out of time or out of work, or a number of
        rounds is reached.

        - `most_rounds`: the largest number of rounds, including the rounds of earlier calls.
        - `most_idle_rounds`: the largest number of idle rounds in a row. A round is idle if it
          improved neither cost nor bound noticeably.
        - `force`: whether a round after an idle one forces options. After `_STUCK` idle rounds,
          every other round begins from another solution instead.
        - `least_rounds`: the number of rounds before which neither time nor work ends the search.
        - `by_cost`: whether the bound does not count for idle rounds once there is a solution.
        """
        if not self.rounds:
            self.dual.evaluate(self.dual.best_prices, FIRST_SWEEPS)
        self._least_rounds = least_rounds
        idle = 0
        while not self.settled and self.rounds < most_rounds and idle < most_idle_rounds:
            if self._late():
                return
            before = self._standing()
            self._anew = idle >= _STUCK and idle % 2 == 0
            self._round(force=force and idle > 0)
            self.rounds += 1
            idle = 0 if self._has_moved(before, by_cost) else idle + 1
            if self.on_round is not None:
                self.on_round(self)

    def _round(self, *, force: bool) -> None:
        scale = self.relaxed.scale(self.bound)
        self._improve_bound()
        prices = self.dual.best_prices
        self.primal.improve_from(self.dual.choice.copy(), prices, scale)
        if self.incumbent is None or self.settled or self._late():
            return
        self.primal.improve_from(self.incumbent.choice.copy(), prices, scale)
        if force and self._anew:
            self._begin_anew(prices, scale)
        elif force:
            self.primal.force(prices, self._tries)
        self.dual.learn(self.incumbent.choice)

    def _begin_anew(self, prices: np.ndarray, scale: float) -> None:
        """Builds a second solution from the assignment at lower prices, and improves it apart from
        the incumbent.

        All other moves start from the incumbent. If a few large choices hold the memory, a better
        solution may share few of them, and forced options around the incumbent do not reach it.
        """
        share = float(self._random.random())
        start = self.dual.visit(share * prices)
        self.primal.improve_apart(start, prices, scale, self._tries)

    def probe(self) -> None:
        """Builds solutions apart from the incumbent; counts as one round. A few nodes get random
        options, messages decide all other nodes, and the rounded assignment is improved.

        If a few decisions settle most others (how the batch is divided, say), other values of these
        decisions reach further than any neighbourhood (probing in MILP: Savelsbergh, ORSA Journal
        on Computing 1994; perturbed maximisation: Papandreou and Yuille, ICCV 2011).
        """
        if not self.rounds:
            self.dual.settle()
        self.rounds += 1
        prices, scale = self.dual.best_prices, self.relaxed.scale(self.bound)
        priced = self.relaxed.priced(prices)
        for _ in range(self._tries):
            if self._late():
                return
            start = self.dual.rounded(priced + self._telling(scale))
            self.primal.improve_apart(start, prices, scale, 0)

    def _telling(self, scale: float) -> np.ndarray:
        """Returns additional costs of options, shape (options,), that make a few random nodes take
        random options."""
        costs, starts = np.zeros(self.net.option_count), self.net.option_start
        told = self._random.integers(
            0, self.net.node_count, self._random.integers(1, self.parameters.most_told + 1)
        )
        for node in told.tolist():
            costs[starts[node] : starts[node + 1]] = self.parameters.telling * scale
            costs[self._random.integers(starts[node], starts[node + 1])] = 0.0
        return costs

    def _improve_bound(self) -> None:
        """Makes steps of the prices. If they have stalled, elimination or the oracle improves the
        bound. If the oracle does not answer either, later rounds make fewer steps, which leaves
        time for solutions."""
        before = self.bound
        self.dual.improve(self._dual_steps, self._late)
        best = self.incumbent
        open_cost = (best.cost if best else 2.0 * abs(self.bound)) - self.bound
        if self.bound - before > _STALLED * open_cost:
            self._dual_steps = self.parameters.dual_steps
        elif not len(self.net.times):
            self.dual.eliminate()
        elif not self.rounds or not self.dual.ask():
            self._dual_steps = max(_LEAST_DUAL_STEPS, self._dual_steps // 2)

    def _standing(self) -> tuple[float, float]:
        return (self.incumbent.cost if self.incumbent else math.inf), self.bound

    def _has_moved(self, before: tuple[float, float], by_cost: bool) -> bool:
        cost, bound = self._standing()
        if cost != before[0] or (by_cost and self.incumbent is not None):
            return cost != before[0]
        return bound - before[1] > _NOTICEABLE * max(self.gap, 1e-6) * abs(bound)

    def _late(self) -> bool:
        if self.rounds >= self._least_rounds:
            self.out_of_time = self.out_of_time or time.monotonic() > self.deadline
            self.out_of_work = self.out_of_work or self.work > self.most_work
        return self.out_of_time or self.out_of_work
