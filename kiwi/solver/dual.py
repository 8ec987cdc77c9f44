"""The Lagrangian bound: prices on memory and messages on edges, improved together.

For prices p >= 0 (cost per byte at each kept time) and any messages,

    bound(p) = [message bound of the network with costs + p . bytes] - p . limit

is at most the cost of every feasible assignment. `Bundle` chooses the prices. At each of them, a
few sweeps of message passing, which start from the messages of the last prices, give the bound.
Forests re-optimised from the rounded assignment give the bundle its next cut.

**Messages** bound the priced network by sequential tree-reweighted message passing. Every edge
takes over costs from its two nodes: `share` has a value for each end (laid out as `Network.line`)
and option of its node, which is added to the edge's table and subtracted from the node's cost. So
no assignment's cost changes. The bound is the sum of the minima of all nodes and edges. A forward
sweep visits the nodes in order. Node i pulls the min-marginals of the edges to its predecessors,
whose minima are zero then, and hands its cost in equal parts to the edges to its successors. A
backward sweep does the same in reverse. This is TRW-S (Kolmogorov, *Convergent Tree-Reweighted
Message Passing for Energy Minimization*, PAMI 2006) in the form of SRMP (Kolmogorov, *A New Look at
Reweighted Message Passing*, PAMI 2015, section 2). The bound never falls while node costs stay the
same, and stays valid when they change between sweeps.
"""

from collections.abc import Callable

import numpy as np

from kiwi.solver.bundle import Bundle
from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.elimination import Elimination
from kiwi.solver.network import Network, add_line, widest
from kiwi.solver.parameters import DEFAULT, Parameters
from kiwi.solver.relaxed import Relaxed, cost_of
from kiwi.solver.search import forest_descent
from kiwi.solver.trees import new_workspace

Tables = tuple[np.ndarray, np.ndarray]
"""The transposed tables of all edges, and the tables themselves, both laid out as `Network.table`.
The loop over the lines at an end h reads contiguous cells of entry h & 1."""


def tables_of(net: Network) -> Tables:
    """Returns the transposed tables of `net` and its tables."""
    transposed = np.empty_like(net.table)
    for edge in np.unique(net.table_start, return_index=True)[1]:
        first, block = net.table_start[edge], net.edge_table(edge)
        transposed[first : first + block.size] = block.T.ravel()
    return transposed, net.table


@inner(fastmath=True)
def _pull(net, tables, h, share, line_cost, marginal):
    """Sets marginal[b], for each line b at end h, to the minimum over the options at the other end
    of the cost of the pair plus the share of the option."""
    o, base, width = h ^ 1, net.table_start[h >> 1], net.line_count[h]
    line_cost[: net.line_count[o]] = np.inf
    for x in range(net.line_start[o], net.line_start[o + 1]):
        line_cost[net.line[x]] = min(line_cost[net.line[x]], share[x])
    marginal[:width] = np.inf
    for a in range(net.line_count[o]):
        add = line_cost[a]
        line = tables[h & 1][base + a * width : base + (a + 1) * width]
        for b in range(width):
            marginal[b] = min(marginal[b], line[b] + add)


@kernel
def sweep(net: Network, tables: Tables, unary, share, choice, forward):
    """Makes one sweep over finite costs `unary`, which changes `share`; returns the bound.

    A backward sweep also writes a rounded assignment to `choice`. It fixes the nodes in its order,
    each at the best option given the nodes fixed before (Kolmogorov 2006, section 3.1).
    """
    node_count, most = len(net.option_start) - 1, widest(net)
    line_cost, marginal = np.empty(most), np.empty(most)
    costs, guess = np.empty(most), np.empty(most)
    bound = 0.0
    for step in range(node_count):
        i = step if forward else node_count - 1 - step
        first, last = net.option_start[i], net.option_start[i + 1]
        cost = costs[: last - first]
        for o in range(len(cost)):
            cost[o] = unary[first + o]
        ahead = 0
        for near in range(net.near_start[i], net.near_start[i + 1]):
            h = net.near_end[near]
            if (h & 1 == 0) == forward:
                ahead += 1
                _take_back(net, h, share, cost)
            else:
                _pull(net, tables, h, share, line_cost, marginal)
                _take(net, h, share, marginal, cost)
        behind = net.near_start[i + 1] - net.near_start[i] - ahead
        weight = 1.0 / max(1, ahead, behind)
        if not forward:
            choice[i] = _round(net, unary, share, choice, i, guess[: last - first])
        if ahead > 0:
            _hand_on(net, i, forward, weight, share, cost)
        least = np.inf
        for o in range(len(cost)):
            least = min(least, cost[o])
        bound += (1.0 - ahead * weight) * least
    return bound


@inner
def _take_back(net, h, share, cost):
    """Subtracts from `cost` the shares that an edge to a following node took from this node
    before."""
    start = net.line_start[h]
    for o in range(len(cost)):
        cost[o] -= share[start + o]


@inlined
def _take(net, h, share, marginal, cost):
    """Moves the min-marginals of an edge to a preceding node from the edge to this node."""
    start = net.line_start[h]
    for o in range(len(cost)):
        pulled = marginal[net.line[start + o]]
        share[start + o] = -pulled
        cost[o] += pulled


@inlined
def _round(net, unary, share, choice, i, guess):
    """Returns the best option of node i, given the options of the nodes after it and the shares of
    the edges to the nodes before it."""
    for o in range(len(guess)):
        guess[o] = unary[net.option_start[i] + o]
    for near in range(net.near_start[i], net.near_start[i + 1]):
        h = net.near_end[near]
        if h & 1:
            _take_back(net, h, share, guess)
        else:
            add_line(net, h, choice[net.end_node[h ^ 1]], guess)
    best = 0
    for o in range(1, len(guess)):
        if guess[o] < guess[best]:
            best = o
    return best


@inlined
def _hand_on(net, i, forward, weight, share, cost):
    for near in range(net.near_start[i], net.near_start[i + 1]):
        h = net.near_end[near]
        if (h & 1 == 0) == forward:
            start = net.line_start[h]
            for o in range(len(cost)):
                share[start + o] += weight * cost[o]


@kernel
def reduced_costs(net: Network, tables: Tables, unary, share):
    """Returns, for each option, a lower bound on the amount by which every assignment with it
    exceeds the bound, shape (K,).

    The amount is the option's cost above the least cost of its node, plus the least cost that each
    edge charges for the option. It is valid after any sweep, since a sweep's shares leave no edge
    with a negative minimum.
    """
    spare, most = unary.copy(), widest(net)
    line_cost, marginal = np.empty(most), np.empty(most)
    starts = net.option_start
    for h in range(len(net.end_node)):
        i = net.end_node[h]
        _take_back(net, h, share, spare[starts[i] : starts[i + 1]])
    for i in range(len(starts) - 1):
        least = np.inf
        for o in range(starts[i], starts[i + 1]):
            least = min(least, spare[o])
        for o in range(starts[i], starts[i + 1]):
            spare[o] -= least
    for h in range(len(net.end_node)):
        _pull(net, tables, h, share, line_cost, marginal)
        first = starts[net.end_node[h]] - net.line_start[h]
        for x in range(net.line_start[h], net.line_start[h + 1]):
            spare[first + x] += max(0.0, marginal[net.line[x]] + share[x])
    return spare


FIRST_SWEEPS = 15
"""The largest number of pairs of sweeps if the messages begin at zero or belong to other prices."""
_ROUNDING = 1e-10
"""The relative floating-point error that is subtracted from a bound before it counts as proven."""
_CONVERGED = 1e-5
"""The relative gain of a pair of sweeps at or below which sweeping ends."""
_ROUNDED_PAIRS = 3
"""The number of pairs of sweeps for a rounded assignment at other costs."""
_MARGINAL_PASSES = 3
"""The work of computing the min-marginals of all options, in passes of an elimination."""
Oracle = Callable[[Network, np.ndarray], tuple[np.ndarray | None, float, int]]
"""A function of a network without memory limit and the costs of its options. It returns an
assignment or None, a proven lower bound, and the work."""

MOST_ELIMINATED_CELLS, MOST_CELLS_OF_ONE = 2e7, 1e8
"""The largest number of table cells for which a network's nodes are eliminated: at each step of the
prices, or once if the network has no points of time. Beyond it, the bound comes from messages or
the oracle."""


class Dual:
    """The state of the relaxation. Forbidden options have a large finite cost in it, which keeps
    every bound valid.

    The bound of messages may be below the network's least cost, and their rounded assignment far
    from the best. If the prices stall because of that (`ask`), nodes are eliminated, which is exact
    and takes more work (`kiwi.solver.elimination`). If the tables of the elimination would be too
    large, an oracle is asked for the network's cost.

    - `bound`: the best bound so far. `best_prices` (T): the prices at which it was found.
    - `choice`: the assignment of the last evaluation.
    - `asking`: whether the oracle is asked at each evaluation.
    """

    def __init__(
        self, relaxed: Relaxed, oracle: Oracle | None = None, parameters: Parameters = DEFAULT
    ) -> None:
        self.relaxed, self.oracle, self.net = relaxed, oracle, relaxed.net
        self._most_pairs, self._sweeps, self._asked_work = parameters.most_sweep_pairs, 0, 0
        net, self.bound = self.net, -np.inf
        self.best_prices = np.zeros(len(net.times))
        self.choice = np.zeros(net.node_count, dtype=np.int64)
        self._share, self._centre_share = np.zeros(len(net.line)), np.zeros(len(net.line))
        self.asking = self._has_asked = False
        self._elimination: Elimination | None = None
        self._work = new_workspace(net)
        self._tables = tables_of(net)
        self._limit = relaxed.limit_bytes
        self.bundle = Bundle(len(net.times))

    @property
    def is_exact(self) -> bool:
        """Whether nodes are eliminated, so that the bound is the priced network's least cost."""
        return self._elimination is not None

    @property
    def work(self) -> int:
        """The number of options and table cells visited so far."""
        return self._sweeps * self.net.size + self._asked_work + int(self._work.visited[0])

    def evaluate(self, prices: np.ndarray, most_pairs: int | None = None) -> float:
        """Returns the bound at `prices`, and sets `choice` to the assignment found there. Sweeps
        end after `most_pairs` pairs, or when they gain little."""
        priced, rent = self.relaxed.priced(prices), self.relaxed.rent(prices)
        if self._elimination is not None:
            best = self._eliminated(self._elimination, priced, rent)
        else:
            best = self._swept(priced, rent, most_pairs or self._most_pairs)
        if best > self.bound:
            self.bound, self.best_prices = best, prices.copy()
        return best

    def _swept(self, priced: np.ndarray, rent: float, most_pairs: int) -> float:
        """Returns the bound of messages, or the oracle's if that is asked and higher."""
        best = -np.inf
        for _ in range(most_pairs):
            before = best
            for forward in (True, False):
                best = max(best, self._sweep(priced, forward, rent))
            if best - before <= _CONVERGED * abs(best):
                break
        forest_descent(self.net, self._work, priced, self.choice, 2)
        return max(best, self._asked(priced, rent)) if self.asking else best

    def _eliminated(self, elimination: Elimination, priced: np.ndarray, rent: float) -> float:
        """Returns the least cost of the priced network less the rent. `choice` becomes the
        assignment with that cost."""
        self._asked_work += elimination.cells
        self.choice[:], value = elimination.solve(priced)
        return value - rent - _ROUNDING * (abs(value) + rent)

    def _asked(self, priced: np.ndarray, rent: float) -> float:
        """Returns the oracle's bound. `choice` becomes the oracle's assignment if that is
        better."""
        if self.oracle is None:
            return -np.inf
        choice, value, work = self.oracle(self.net, priced)
        self._asked_work += work
        own_cost = cost_of(self.net, priced, self.choice)
        if choice is not None and cost_of(self.net, priced, choice) < own_cost:
            self.choice[:] = choice
        return value - rent - _ROUNDING * (abs(value) + rent)

    def begin_at(self, prices: np.ndarray) -> None:
        """Makes `prices` the centre. It must be called before any prices are evaluated."""
        self.best_prices = prices.copy()
        self.bundle.centre = prices * self._limit

    def visit(self, prices: np.ndarray) -> np.ndarray:
        """Returns the assignment at `prices`. The bundle does not learn of it."""
        asking, self.asking = self.asking, self._has_asked
        self.evaluate(prices)
        self.asking = asking
        self._keep_messages(of_centre=False)
        return self.choice.copy()

    def settle(self) -> None:
        """Sweeps at the best prices, and keeps their messages as the centre's."""
        self.evaluate(self.best_prices, FIRST_SWEEPS)
        self._keep_messages(of_centre=True)

    def rounded(self, priced: np.ndarray) -> np.ndarray:
        """Returns the rounded assignment at the costs `priced` of options. Neither the bound nor
        the bundle changes."""
        if self._elimination is not None:
            self._eliminated(self._elimination, priced, 0.0)
            return self.choice.copy()
        for _ in range(_ROUNDED_PAIRS):
            for forward in (True, False):
                self._sweep(priced, forward, 0.0)
        self._keep_messages(of_centre=False)
        return self.choice.copy()

    def ask(self) -> bool:
        """Switches to elimination from now on, or to the oracle if the tables are too large. A
        second call ends the questions to the oracle, except at visits. Returns whether either
        began."""
        if self._has_asked:
            self.asking = False
            return False
        self._has_asked = True
        if self.eliminate():
            return True
        self.asking = self.oracle is not None and len(self.net.times) > 0
        if not self.asking:
            return False
        self._observe_anew()
        return True

    def eliminate(self) -> bool:
        """Switches to elimination from now on. Returns whether it began: not if the tables are too
        large, nor if it has begun before."""
        if self._elimination is not None:
            return False
        most_cells = MOST_ELIMINATED_CELLS if len(self.net.times) else MOST_CELLS_OF_ONE
        self._elimination = Elimination.of(self.net, most_cells)
        if self._elimination is None:
            return False
        self._observe_anew()
        return True

    def _observe_anew(self) -> None:
        """Evaluates the bundle's centre again after a switch to a stronger bound."""
        if not len(self.net.times):
            self.evaluate(self.best_prices)
            return
        value = self.evaluate(self.bundle.centre / self._limit)
        self.bundle.observe(self.bundle.centre, value)
        self.learn(self.choice, (self.bundle.centre, value))
        self.relaxed.begin(self.bundle, self.choice, self.bound)

    def improve(self, steps: int, is_late: Callable[[], bool] = lambda: False) -> None:
        """Evaluates the bundle's prices `steps` times, or until `is_late`."""
        if not len(self.net.times):
            self.evaluate(self.best_prices)
            self._keep_messages(of_centre=True)
            return
        for _ in range(steps):
            if is_late():
                return
            prices = self.bundle.propose()
            value = self.evaluate(prices / self._limit)
            self.bundle.observe(prices, value)
            self._keep_messages(of_centre=value >= self.bundle.value)
            is_first = not self.bundle.size
            self.learn(self.choice, (prices, value))
            if is_first:
                self.relaxed.begin(self.bundle, self.choice, self.bound)

    def _keep_messages(self, *, of_centre: bool) -> None:
        """Keeps the messages if they belong to the bundle's centre, and restores the centre's
        otherwise.

        After too long a step the messages are worse near the centre than before. If they were kept,
        every later value there would seem a loss, and steps would shrink to nothing.
        """
        if of_centre:
            self._centre_share[:] = self._share
        else:
            self._share[:] = self._centre_share

    def reduced_costs(self) -> tuple[float, np.ndarray]:
        """Returns the bound at `best_prices`, and for each option a lower bound on the amount by
        which every assignment with it exceeds that bound, shape (K,)."""
        priced = self.relaxed.priced(self.best_prices)
        rent = self.relaxed.rent(self.best_prices)
        if self._elimination is not None:
            self._asked_work += _MARGINAL_PASSES * self._elimination.cells
            least = self._elimination.min_marginals(priced)
            value = float(least.min()) if len(least) else 0.0
            bound = value - rent - _ROUNDING * (abs(value) + rent)
            return bound, least - value
        bound = self.evaluate(self.best_prices)
        last = self._sweep(priced, False, rent)  # The shares must belong to the bound returned.
        return min(bound, last), reduced_costs(self.net, self._tables, priced, self._share)

    def learn(self, choice: np.ndarray, at: tuple[np.ndarray, float] | None = None) -> None:
        """Adds an assignment to the bundle as a cut. `at`: as in `Bundle.add`."""
        if len(self.net.times):
            self.bundle.add(self.relaxed.cost(choice), self.relaxed.excess(choice), at)

    def _sweep(self, priced: np.ndarray, forward: bool, rent: float) -> float:
        self._sweeps += 1
        value = sweep(self.net, self._tables, priced, self._share, self.choice, forward)
        return value - rent - _ROUNDING * (abs(value) + rent)
