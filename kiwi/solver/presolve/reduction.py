"""A smaller network, with the way back to the larger network."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kiwi.solver.edge_tables import offsets, owners, within
from kiwi.solver.loops.arrays import Arrays
from kiwi.solver.network import Network


@dataclass(frozen=True, eq=False)
class Maps(Arrays):
    """The meaning of a smaller network's options in the larger network.

    - `root` (n): for each node of the larger network, the node of the smaller network that decides
      it.
    - `start` (n+1), `option`: the options of node i of the larger network, for each option of
      root[i], are option[start[i]] .. option[start[i+1]].
    """

    root: np.ndarray
    start: np.ndarray
    option: np.ndarray


@dataclass(frozen=True, eq=False)
class Reduction:
    """A network `net` with the same least cost as the larger network from which it was made.

    Every feasible choice of `net` lifts to a choice of the larger network with the same cost and
    the same memory use at every kept time.

    - `infeasible`: whether some node has no option left. `net` is the larger network then.
    """

    net: Network
    maps: Maps
    infeasible: bool = False

    @classmethod
    def nothing(cls, net: Network, *, infeasible: bool = False) -> "Reduction":
        """Returns the reduction that leaves `net` unchanged."""
        maps = Maps(np.arange(net.node_count), net.option_start, within(net.option_start))
        return cls(net, maps, infeasible)

    @classmethod
    def renumbered(cls, net: Network, order: np.ndarray) -> "Reduction":
        """Returns the reduction to `net`, whose k-th node is node `order[k]` of the larger
        network."""
        root = np.argsort(order)
        starts = offsets(np.diff(net.option_start)[root])
        return cls(net, Maps(root, starts, within(starts)))

    @property
    def merged(self) -> int:
        """The number of nodes that have disappeared."""
        return len(self.maps.root) - self.net.node_count

    def lift(self, choice: np.ndarray) -> np.ndarray:
        """Returns the choice of the larger network that `choice` represents."""
        return self.maps.option[self.maps.start[:-1] + choice[self.maps.root]]

    def lower(self, choice: np.ndarray) -> np.ndarray | None:
        """Returns a choice of `net` that lifts to `choice`, or None if there is none."""
        root, start, option = self.maps.root, self.maps.start, self.maps.option
        differs = option != np.repeat(choice, np.diff(start))
        matches = np.ones(self.net.option_count, dtype=bool)
        matches[(self.net.option_start[root[owners(start)]] + within(start))[differs]] = False
        small = np.full(self.net.node_count, -1, dtype=np.int64)
        small[owners(self.net.option_start)[matches]] = within(self.net.option_start)[matches]
        if (small < 0).any() or not np.array_equal(self.lift(small), choice):
            return None
        return small


def chain(first: Reduction, second: Reduction) -> Reduction:
    """Returns the reduction that applies `first` and then `second`."""
    root = second.maps.root[first.maps.root]
    sizes = np.diff(second.net.option_start)[root]
    starts = offsets(sizes)
    middle = np.repeat(second.maps.start[first.maps.root], sizes) + within(starts)
    option = np.repeat(first.maps.start[:-1], sizes) + second.maps.option[middle]
    return Reduction(second.net, Maps(root, starts, first.maps.option[option]), second.infeasible)


def repeat(step: Callable[[Network], Reduction], net: Network, most: int) -> Reduction:
    """Applies `step` as long as it merges nodes, at most `most` times. Returns the reductions as
    one."""
    total = step(net)
    for _ in range(most - 1):
        if total.infeasible:
            break
        next_pass = step(total.net)
        if next_pass.infeasible or not next_pass.merged:
            break
        total = chain(total, next_pass)
    return total
