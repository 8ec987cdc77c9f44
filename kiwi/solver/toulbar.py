"""Solves priced networks with toulbar2, a branch-and-bound solver for cost function networks.

Each round of the Lagrangian relaxation of memory prices the points of time, asks toulbar2 for the
cheapest assignment of the priced network and for a proven bound, and gives both to the bundle of
prices. toulbar2 gets integer costs, which are rounded down, so that its bound holds. (de Givry,
Heras, Zytnicki, Larrosa: *Existential arc consistency*, IJCAI 2005; Allouche et al.: *Anytime
hybrid best-first search with tree decomposition*, CP 2015.)
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

from kiwi.solver.dual import Oracle
from kiwi.solver.engine import Engine
from kiwi.solver.network import Network

TOULBAR_ROUNDS = 40, 8
"""The largest number of rounds, and of rounds in a row that gain nothing."""
_RESOLUTION = 2**50
"""The largest integer cost of an assignment of a priced network. Costs are scaled to it."""
_BACKTRACKS = 20_000
"""The number of backtracks after which toulbar2 ends a round, with the bound found by then."""
_ORACLE_BACKTRACKS = 2_000
_SWEEPS, _SWEEPS_PER_BACKTRACK = 100, 5
"""The work that is charged for a priced network and for each backtrack, in sweeps over its options
and pairs of options. In networks with an edge between every two nodes the true work is less."""
MOST_PAIRS_FOR_ORACLE = 300_000
"""The largest number of options and pairs of options for which toulbar2 is the oracle of another
search. Larger networks have no oracle."""


def oracle_for(net: Network, seed: int) -> Oracle | None:
    """Returns toulbar2 as the oracle of another search's priced networks, or None if they are too
    large. The number of backtracks ends each call, not the clock. Virtual arc consistency, which
    may take long, is off."""
    if _pairs(net) > MOST_PAIRS_FOR_ORACLE:
        return None
    return partial(solve_priced, seed=seed, seconds=None, backtracks=_ORACLE_BACKTRACKS, vac=0)


class ToulbarEngine(Engine):
    """An engine in which toulbar2 solves the priced network of each round."""

    def _round(self, *, force: bool) -> None:
        bundle, relaxed = self.dual.bundle, self.relaxed
        scaled = bundle.propose()
        prices = scaled / relaxed.limit_bytes
        seconds_left = self.deadline - time.monotonic()
        priced = relaxed.priced(prices)
        choice, network_bound, _ = solve_priced(relaxed.net, priced, self.seed, seconds_left)
        value = network_bound - relaxed.rent(prices)
        self.dual.bound = max(self.dual.bound, value - 1e-10 * abs(network_bound))
        bundle.observe(scaled, value)
        if choice is None:
            return
        is_first = not bundle.size
        self.dual.learn(choice)
        if is_first:
            relaxed.begin(bundle, choice, self.bound)
        scale = relaxed.scale(self.bound)
        self.primal.improve_from(choice.copy(), prices, scale)
        if self.incumbent is not None:
            self.primal.improve_from(self.incumbent.choice.copy(), prices, scale)


def solve_priced(
    net: Network,
    unary: np.ndarray,
    seed: int,
    seconds: float | None,
    backtracks: int = _BACKTRACKS,
    *,
    vac: int = 1,
) -> tuple[np.ndarray | None, float, int]:
    """Solves a network without regard to memory. Returns the assignment found or None, a proven
    lower bound, and the work in options and table cells.

    - `unary`: the costs of the options. These and the tables must be finite.
    - `seconds`: the time limit. With None toulbar2 sets no timer, and leaves Ctrl-C to Python.
    - `vac`: toulbar2's option for virtual arc consistency; 0 is off.
    """
    scale, shift = _scale(net, unary)
    with _own_interrupts():
        solver = CFN(ubinit=None, resolution=0, vac=vac, seed=seed + 1, verbose=-1)
        tb2.option.backtrackLimit = backtracks
        tb2.option.hbfs = 1  # toulbar2 adapts it, and leaves it changed for the next network.
        tb2.option.DEE = 0  # Dead-end elimination may not end, even on a small network.
        for i in range(net.node_count):
            size = int(net.option_start[i + 1] - net.option_start[i])
            solver.AddVariable(f"x{i}", range(size))
            first = net.option_start[i]
            solver.AddFunction([i], _integers(unary[first : first + size], shift[i], scale))
        for edge in range(net.edge_count):
            dense = net.edge_table(edge)[np.ix_(*net.lines(edge))]
            solver.AddFunction(
                net.ends[edge].tolist(), _integers(dense.ravel(), dense.min(), scale)
            )
        constant = float(shift.sum()) + float(net.over_edges(np.minimum, net.table).sum())
        answer = None
        try:
            with contextlib.suppress(solver.Contradiction, solver.SolverOut):
                limit = 0 if seconds is None else max(1, math.ceil(seconds))
                answer = solver.Solve(timeLimit=limit)
        finally:
            # `Solve` leaves its timer running if it raises. The signal's handler allocates memory:
            # if it interrupts an allocation of another solver's thread, it never returns.
            solver.CFN.timerStop()
        bound = solver.GetDDualBound() / scale + constant
    sweeps = _SWEEPS + _SWEEPS_PER_BACKTRACK * int(solver.GetNbBacktracks())
    if answer is None:
        return None, bound, sweeps * _pairs(net)
    return np.array(answer[0][: net.node_count], dtype=np.int64), bound, sweeps * _pairs(net)


def _pairs(net: Network) -> int:
    """Returns the number of options plus pairs of options with an edge. toulbar2 has no classes of
    options."""
    counts = np.diff(net.option_start)[net.ends]
    return net.option_count + int(counts.prod(axis=1).sum())


def _integers(costs: np.ndarray, least: float, scale: float) -> list[int]:
    return np.floor((costs - least) * scale).astype(np.int64).tolist()


def _scale(net: Network, unary: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the factor that scales costs to integers, and the least cost of each node."""
    least = np.minimum.reduceat(unary, net.option_start[:-1])
    most = float((np.maximum.reduceat(unary, net.option_start[:-1]) - least).sum())
    spans = net.over_edges(np.maximum, net.table) - net.over_edges(np.minimum, net.table)
    most += float(spans.sum())
    return (_RESOLUTION / most if most > 0 else 1.0), least


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """A context that restores Python's SIGINT handler at its end, since toulbar2's timer replaces
    it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
