"""A smaller network together with the way back to the larger one."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kiwi.solver.edge_tables import offsets
from kiwi.solver.network import Network


@dataclass(frozen=True, eq=False)
class Reduction:
    """`net` has the same least cost as the network that it was made from.

    Every feasible choice of `net` lifts to one of the same cost and the same memory use at every
    time.

    **Attributes:**

    - `net`: the smaller network.
    - `root` (n): for each node of the larger network the node of `net` that decides it.
    - `map_start` (n+1), `option`: for each option of that node the option of the larger one.
    - `infeasible`: True where some node is left without an option; `net` is the larger network.
    """

    net: Network
    root: np.ndarray
    map_start: np.ndarray
    option: np.ndarray
    infeasible: bool = False

    @classmethod
    def nothing(cls, net: Network, *, infeasible: bool = False) -> "Reduction":
        """The reduction that leaves `net` as it is."""
        first = np.repeat(net.option_start[:-1], np.diff(net.option_start))
        identity = np.arange(net.option_count) - first
        return cls(net, np.arange(net.node_count), net.option_start, identity, infeasible)

    @classmethod
    def renumbered(cls, net: Network, order: np.ndarray) -> "Reduction":
        """The reduction to `net` whose k-th node is node `order[k]` of the larger network."""
        root = np.empty(len(order), dtype=np.int64)
        root[order] = np.arange(len(order))
        starts = offsets(np.diff(net.option_start)[root])
        option = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
        return cls(net, root, starts, option)

    @property
    def merged(self) -> int:
        """How many nodes have disappeared."""
        return len(self.root) - self.net.node_count

    def lift(self, choice: np.ndarray) -> np.ndarray:
        """The choice of the larger network that `choice` stands for."""
        return self.option[self.map_start[:-1] + choice[self.root]]

    def lower(self, choice: np.ndarray) -> np.ndarray | None:
        """A choice of `net` that lifts to `choice`, or None where there is none."""
        owner = np.repeat(self.root, np.diff(self.map_start))
        within = np.arange(len(self.option)) - np.repeat(
            self.map_start[:-1], np.diff(self.map_start)
        )
        differs = self.option != np.repeat(choice, np.diff(self.map_start))
        matches = np.ones(self.net.option_count, dtype=bool)
        matches[self.net.option_start[owner[differs]] + within[differs]] = False
        flat = np.flatnonzero(matches)
        nodes = np.repeat(np.arange(self.net.node_count), np.diff(self.net.option_start))[flat]
        small = np.full(self.net.node_count, -1, dtype=np.int64)
        small[nodes] = flat - self.net.option_start[nodes]
        if (small < 0).any() or not np.array_equal(self.lift(small), choice):
            return None
        return small


def chain(first: Reduction, second: Reduction) -> Reduction:
    """Both reductions as one."""
    sizes = np.diff(second.net.option_start)
    root = second.root[first.root]
    starts = offsets(sizes[root])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes[root])
    middle = second.option[np.repeat(second.map_start[first.root], sizes[root]) + within]
    option = first.option[np.repeat(first.map_start[:-1], sizes[root]) + middle]
    return Reduction(second.net, root, starts, option, second.infeasible)


def repeat(step: Callable[[Network], Reduction], net: Network, most: int) -> Reduction:
    """Applies `step` while it merges nodes, `most` times at most."""
    total = step(net)
    for _ in range(most - 1):
        if total.infeasible:
            break
        more = step(total.net)
        if more.infeasible or not more.merged:
            break
        total = chain(total, more)
    return total
