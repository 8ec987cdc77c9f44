"""Priced networks solved by toulbar2, a branch-and-bound solver for cost function networks.

Within the Lagrangian relaxation of memory each round prices the points of time, asks toulbar2 for
the cheapest assignment of the priced network and for its proven bound, and gives both to the
bundle of prices. Costs go to toulbar2 as integers, rounded down, so that its bound holds.
(de Givry, Heras, Zytnicki, Larrosa: *Existential arc consistency*, IJCAI 2005; Allouche et al.:
*Anytime hybrid best-first search with tree decomposition*, CP 2015.)
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
from pytoulbar2 import CFN
from pytoulbar2.pytoulbar2 import tb2

from kiwi.solver.bundle import Bundle
from kiwi.solver.dual import Oracle
from kiwi.solver.engine import LEAST_SCALE, forbidden_cost
from kiwi.solver.network import Network, build_network
from kiwi.solver.outcome import conclude
from kiwi.solver.presolve import presolve
from kiwi.solver.prices import cost_of, priced_costs, usage_of
from kiwi.solver.primal import Primal
from kiwi.solver.request import Request
from kiwi.solver.result import SolveResult, is_closed
from kiwi.solver.search import seed_random

_MOST_ROUNDS = 40
_MOST_IDLE_ROUNDS = 8
_RESOLUTION = 2**50
"""Integer costs of a priced network: at most this for one assignment without forbidden pairs."""
_BACKTRACKS = 20_000
"""toulbar2 gives up on one round after this many, with the bound it has by then."""
_ORACLE_BACKTRACKS = 2_000
MOST_CELLS_FOR_ORACLE = 300_000
"""Options and table cells of a network up to which it is an oracle for others."""


def solve_toulbar(request: Request) -> SolveResult:
    """Rounds of pricing until the gap is closed, nothing improves or the deadline passes."""
    problem, start = request.problem, request.warm_start
    reduction = presolve(build_network(problem))
    if reduction.infeasible:
        return conclude(problem, None, math.inf, solver="toulbar2")
    relaxation = _Relaxation(reduction.net, request.seed, request.deadline)
    if start is not None:
        lowered = reduction.lower(np.array(start, dtype=np.int64))
        if lowered is not None:
            relaxation.primal.offer(lowered)
    rounds = relaxation.run(request.gap)
    best = relaxation.primal.incumbent
    smallest = relaxation.primal.smallest
    infeasible = best is None and relaxation.bound > relaxation.forbidden
    return conclude(
        problem,
        start if best is None else reduction.lift(best.choice).tolist(),
        math.inf if infeasible else relaxation.bound,
        solver="toulbar2",
        iterations=rounds,
        deterministic=not relaxation.primal.late,
        least_peak_bytes=None if smallest is None else smallest.peak_bytes,
    )


def oracle_for(net: Network, seed: int) -> Oracle | None:
    """toulbar2 for the priced networks of another search, where they are small enough. Backtracks
    end it, not the clock, and it propagates by nothing that may take long (no virtual arc
    consistency)."""
    if net.option_count + net.cell_count > MOST_CELLS_FOR_ORACLE:
        return None

    def solved(unary: np.ndarray, table: np.ndarray) -> tuple[np.ndarray | None, float]:
        return solve_priced(net, unary, table, seed, None, _ORACLE_BACKTRACKS, vac=0)

    return solved


class _Relaxation:
    """The Lagrangian relaxation of one network, evaluated by toulbar2."""

    def __init__(self, net: Network, seed: int, deadline: float) -> None:
        self.net, self.seed, self.deadline = net, seed, deadline
        self.forbidden = forbidden_cost(net)
        self.table = np.minimum(net.table, self.forbidden)
        self.unary = np.minimum(net.cost, self.forbidden)
        self.primal = Primal(net, self.table, self.unary, deadline)
        self.bound = -math.inf
        self._limit = max(net.limit_bytes, 1)
        self._bundle = Bundle(len(net.times), 1.0)
        seed_random(seed)

    def run(self, gap: float) -> int:
        """Returns the number of rounds."""
        idle = 0
        for round_index in range(_MOST_ROUNDS):
            best = self.primal.incumbent
            closed = best is not None and is_closed(best.cost, self.bound, gap)
            proven = best is None and self.bound > self.forbidden
            if closed or proven or idle >= _MOST_IDLE_ROUNDS or self.primal.late:
                return round_index
            before = (best.cost if best else math.inf, self.bound)
            self._round()
            now = self.primal.incumbent
            moved = self.bound - before[1] > 0.02 * max(gap, 1e-6) * abs(self.bound)
            idle = 0 if moved or (now is not None and now.cost < before[0]) else idle + 1
        return _MOST_ROUNDS

    def _round(self) -> None:
        scaled = self._bundle.propose()
        prices = scaled / self._limit
        priced = np.empty(self.net.option_count)
        priced_costs(self.net, self.unary, prices, priced)
        left = self.deadline - time.monotonic()
        choice, network_bound = solve_priced(self.net, priced, self.table, self.seed, left)
        value = network_bound - float(prices.sum()) * self.net.limit_bytes
        self.bound = max(self.bound, value - 1e-10 * abs(network_bound))
        self._bundle.observe(scaled, value)
        if choice is None:
            return
        self._learn(choice)
        self.primal.improve_from(choice.copy(), prices, self._scale)
        if self.primal.incumbent is not None:
            self.primal.improve_from(self.primal.incumbent.choice.copy(), prices, self._scale)

    @property
    def _scale(self) -> float:
        return max(abs(self.bound), LEAST_SCALE * self.forbidden)

    def _learn(self, choice: np.ndarray) -> None:
        excess = usage_of(self.net, choice) / self._limit - 1.0
        first = not self._bundle.size
        self._bundle.add(float(cost_of(self.net, self.unary, self.table, choice)), excess)
        positive = np.maximum(excess, 0.0)
        if first and positive.any():
            self._bundle.width = 0.05 * self._scale / float(positive @ positive)


def solve_priced(
    net: Network,
    unary: np.ndarray,
    table: np.ndarray,
    seed: int,
    seconds: float | None,
    backtracks: int = _BACKTRACKS,
    *,
    vac: int = 1,
) -> tuple[np.ndarray | None, float]:
    """The assignment found (or None), and a proven lower bound, of the network without memory.

    `unary` and `table` are finite costs of options and of table cells. Without a limit of `seconds`
    toulbar2 sets no timer, and leaves Ctrl-C to Python.
    """
    scale, shift = _scale(net, unary, table)
    with _own_interrupts():
        solver = CFN(ubinit=None, resolution=0, vac=vac, seed=seed + 1, verbose=-1)
        tb2.option.backtrackLimit = backtracks
        tb2.option.DEE = 0  # as virtual arc consistency, it was seen not to end on 14 small nodes
        for i in range(net.node_count):
            size = int(net.option_start[i + 1] - net.option_start[i])
            solver.AddVariable(f"x{i}", range(size))
            first = net.option_start[i]
            solver.AddFunction([i], _integers(unary[first : first + size], shift[i], scale))
        for e in range(net.edge_count):
            rows, columns = net.classes(e)
            dense = net._replace(table=table).edge_table(e)[np.ix_(rows, columns)]
            ends = [int(net.tail[e]), int(net.head[e])]
            solver.AddFunction(ends, _integers(dense.ravel(), dense.min(), scale))
        constant = float(shift.sum()) + _edge_minima(net, table)
        found = None
        try:
            with contextlib.suppress(solver.Contradiction, solver.SolverOut):
                limit = 0 if seconds is None else max(1, math.ceil(seconds))
                found = solver.Solve(timeLimit=limit)
        finally:
            # `Solve` leaves its timer running if it raises. The signal's handler allocates memory:
            # sent to another solver's thread while that does, it never returns.
            solver.CFN.timerStop()
        bound = solver.GetDDualBound() / scale + constant
    if found is None:
        return None, bound
    return np.array(found[0][: net.node_count], dtype=np.int64), bound


def _integers(costs: np.ndarray, least: float, scale: float) -> list[int]:
    return np.floor((costs - least) * scale).astype(np.int64).tolist()


def _edge_minima(net: Network, table: np.ndarray) -> float:
    return float(net.over_edges(np.minimum, table).sum())


def _scale(net: Network, unary: np.ndarray, table: np.ndarray) -> tuple[float, np.ndarray]:
    """The factor that makes costs integers, and the least cost of each node."""
    least = np.minimum.reduceat(unary, net.option_start[:-1])
    most = float((np.maximum.reduceat(unary, net.option_start[:-1]) - least).sum())
    spans = net.over_edges(np.maximum, table) - net.over_edges(np.minimum, table)
    most += float(spans.sum())
    return (_RESOLUTION / most if most > 0 else 1.0), least


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """toulbar2's timer takes over SIGINT; Python's handler comes back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
