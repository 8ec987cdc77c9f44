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

from kiwi.solver.dual import Oracle
from kiwi.solver.engine import Engine
from kiwi.solver.network import Network

TOULBAR_ROUNDS = 40, 8
"""The most rounds, and the most of them in a row that gain nothing."""
_RESOLUTION = 2**50
"""The integer cost of a priced network's assignment without forbidden pairs is at most this."""
_BACKTRACKS = 20_000
"""toulbar2 gives up on one round after this many, with the bound it has by then."""
_ORACLE_BACKTRACKS = 2_000
_SWEEPS, _SWEEPS_PER_BACKTRACK = 100, 5
"""The work of a priced network and of a backtrack, in sweeps over its options and their pairs. In
networks where every node has an edge to every other they take less."""
MOST_PAIRS_FOR_ORACLE = 300_000
"""Up to so many options and pairs of them it is an oracle for others."""


def oracle_for(net: Network, seed: int) -> Oracle | None:
    """toulbar2 for the priced networks of another search, if they are small enough. Backtracks end
    it, not the clock, and it uses no propagation that may take long (no virtual arc consistency).
    """
    if _pairs(net) > MOST_PAIRS_FOR_ORACLE:
        return None
    return partial(solve_priced, seed=seed, seconds=None, backtracks=_ORACLE_BACKTRACKS, vac=0)


class ToulbarEngine(Engine):
    """Rounds in each of which toulbar2 says what the network costs at the prices."""

    def _round(self, *, force: bool) -> None:
        bundle, relaxed = self.dual.bundle, self.relaxed
        scaled = bundle.propose()
        prices = scaled / relaxed.limit_bytes
        left = self.deadline - time.monotonic()
        priced = relaxed.priced(prices)
        choice, network_bound, _ = solve_priced(relaxed.net, priced, self.seed, left)
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
    """The assignment found (or None), and a proven lower bound, of the network without memory; and
    the work, in options and table cells.

    `unary`: costs of options; these and the tables are finite. Without a limit of `seconds`
    toulbar2 sets no timer, and leaves Ctrl-C to Python.
    """
    scale, shift = _scale(net, unary)
    with _own_interrupts():
        solver = CFN(ubinit=None, resolution=0, vac=vac, seed=seed + 1, verbose=-1)
        tb2.option.backtrackLimit = backtracks
        tb2.option.hbfs = 1  # adapts itself, and is left as it is for the next network
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
        answer = None
        try:
            with contextlib.suppress(solver.Contradiction, solver.SolverOut):
                limit = 0 if seconds is None else max(1, math.ceil(seconds))
                answer = solver.Solve(timeLimit=limit)
        finally:
            # `Solve` leaves its timer running if it raises. The signal's handler allocates memory:
            # sent to another solver's thread while that does, it never returns.
            solver.CFN.timerStop()
        bound = solver.GetDDualBound() / scale + constant
    sweeps = _SWEEPS + _SWEEPS_PER_BACKTRACK * int(solver.GetNbBacktracks())
    if answer is None:
        return None, bound, sweeps * _pairs(net)
    return np.array(answer[0][: net.node_count], dtype=np.int64), bound, sweeps * _pairs(net)


def _pairs(net: Network) -> int:
    """Options, and pairs of them that have an edge: toulbar2 knows no classes of options."""
    counts = np.diff(net.option_start)[net.ends]
    return net.option_count + int(counts.prod(axis=1).sum())


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
