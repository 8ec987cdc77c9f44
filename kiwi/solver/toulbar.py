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
from functools import partial

import numpy as np
from pytoulbar2 import CFN
from pytoulbar2.pytoulbar2 import tb2

from kiwi.solver.bundle import Bundle
from kiwi.solver.dual import Oracle
from kiwi.solver.network import Network, build_network
from kiwi.solver.outcome import conclude
from kiwi.solver.presolve import presolve
from kiwi.solver.primal import Primal
from kiwi.solver.relaxed import Relaxed
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
    infeasible = best is None and relaxation.bound > relaxation.relaxed.forbidden
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

    return partial(solve_priced, seed=seed, seconds=None, backtracks=_ORACLE_BACKTRACKS, vac=0)


class _Relaxation:
    """The Lagrangian relaxation of one network, evaluated by toulbar2."""

    def __init__(self, net: Network, seed: int, deadline: float) -> None:
        self.relaxed, self.seed, self.deadline = Relaxed(net), seed, deadline
        self.primal = Primal(self.relaxed, deadline)
        self.bound = -math.inf
        self._bundle = Bundle(len(net.times), 1.0)
        seed_random(seed)

    def run(self, gap: float) -> int:
        """Returns the number of rounds."""
        idle = 0
        for round_index in range(_MOST_ROUNDS):
            best = self.primal.incumbent
            closed = best is not None and is_closed(best.cost, self.bound, gap)
            proven = best is None and self.bound > self.relaxed.forbidden
            if closed or proven or idle >= _MOST_IDLE_ROUNDS or self.primal.late:
                return round_index
            before = (best.cost if best else math.inf, self.bound)
            self._round()
            now = self.primal.incumbent
            moved = self.bound - before[1] > 0.02 * max(gap, 1e-6) * abs(self.bound)
            idle = 0 if moved or (now is not None and now.cost < before[0]) else idle + 1
        return _MOST_ROUNDS

    def _round(self) -> None:
        scaled, relaxed = self._bundle.propose(), self.relaxed
        prices = scaled / relaxed.limit_bytes
        left = self.deadline - time.monotonic()
        choice, network_bound = solve_priced(relaxed.net, relaxed.priced(prices), self.seed, left)
        value = network_bound - relaxed.rent(prices)
        self.bound = max(self.bound, value - 1e-10 * abs(network_bound))
        self._bundle.observe(scaled, value)
        if choice is None:
            return
        is_first = not self._bundle.size
        self._bundle.add(relaxed.cost(choice), relaxed.excess(choice))
        if is_first:
            relaxed.begin(self._bundle, choice, self.bound)
        scale = relaxed.scale(self.bound)
        self.primal.improve_from(choice.copy(), prices, scale)
        if self.primal.incumbent is not None:
            self.primal.improve_from(self.primal.incumbent.choice.copy(), prices, scale)


def solve_priced(
    net: Network,
    unary: np.ndarray,
    seed: int,
    seconds: float | None,
    backtracks: int = _BACKTRACKS,
    *,
    vac: int = 1,
) -> tuple[np.ndarray | None, float]:
    """The assignment found (or None), and a proven lower bound, of the network without memory.

    `unary`: costs of options; these and the tables are finite. Without a limit of `seconds`
    toulbar2 sets no timer, and leaves Ctrl-C to Python.
    """
    scale, shift = _scale(net, unary)
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
            dense = net.edge_table(e)[np.ix_(*net.lines(e))]
            solver.AddFunction(net.ends[e].tolist(), _integers(dense.ravel(), dense.min(), scale))
        constant = float(shift.sum()) + float(net.over_edges(np.minimum, net.table).sum())
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


def _scale(net: Network, unary: np.ndarray) -> tuple[float, np.ndarray]:
    """The factor that makes costs integers, and the least cost of each node."""
    least = np.minimum.reduceat(unary, net.option_start[:-1])
    most = float((np.maximum.reduceat(unary, net.option_start[:-1]) - least).sum())
    spans = net.over_edges(np.maximum, net.table) - net.over_edges(np.minimum, net.table)
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
