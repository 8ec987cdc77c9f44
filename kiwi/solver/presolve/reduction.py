"""A smaller network together with the way back to the larger one."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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

    @property
    def merged(self) -> int:
        """How many nodes have disappeared."""
        return len(self.root) - self.net.node_count

    def lift(self, choice: np.ndarray) -> np.ndarray:
        """The choice of the larger network that `choice` stands for."""
        return self.option[self.map_start[:-1] + choice[self.root]]

    def lower(self, choice: np.ndarray) -> np.ndarray | None:
        """A choice of `net` that lifts to `choice`, or None where there is none."""
        small = np.full(self.net.node_count, -1, dtype=np.int64)
        sizes = np.diff(self.net.option_start)
        for node, root in enumerate(self.root):
            if small[root] < 0:
                start = self.map_start[node]
                match = self.option[start : start + sizes[root]] == choice[node]
                if match.sum() == 1:
                    small[root] = int(np.argmax(match))
        if (small < 0).any() or not np.array_equal(self.lift(small), choice):
            return None
        return small


def chain(first: Reduction, second: Reduction) -> Reduction:
    """Both reductions as one."""
    sizes = np.diff(second.net.option_start)
    root = second.root[first.root]
    starts = np.zeros(len(root) + 1, dtype=np.int64)
    np.cumsum(sizes[root], out=starts[1:])
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
