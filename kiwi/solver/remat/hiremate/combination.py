"""Parts combined without a program: each runs once forward and once backward, with some option.

From the fastest options on, one part after the other exchanges its option for a slower one that
holds less between forward and backward, the cheapest bytes first: along the lower convex hull of
each part, and where prices are equal the earlier part first, which holds its values longest. This
takes no search. It gives large graphs a schedule in any time, and H-ILP a solution to start from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.solver.remat.hiremate.cluster import Cluster, StepPair
from kiwi.solver.remat.hiremate.option import Option


@dataclass(frozen=True)
class Exchange:
    """Part `part` takes option `option`; `price` is in seconds per byte."""

    price: float
    part: int
    option: int


class Combinations:
    """The combinations of the parts of `cluster`, by how many exchanges were made."""

    def __init__(self, cluster: Cluster, options: Sequence[Sequence[Option]]) -> None:
        self._options = options
        self._first = [_fastest(each) for each in options]
        exchanges = [
            exchange
            for part, each in enumerate(options)
            for exchange in _exchanges(cluster, part, each, self._first[part])
        ]
        self._exchanges = sorted(exchanges, key=lambda e: (e.price, e.part))

    @property
    def count(self) -> int:
        """How many exchanges there are."""
        return len(self._exchanges)

    def chosen(self, exchanges: int) -> list[int]:
        """The option of each part after so many exchanges."""
        option = list(self._first)
        for each in self._exchanges[:exchanges]:
            option[each.part] = each.option
        return option

    def pair(self, exchanges: int) -> StepPair:
        """Forward and backward operators of the cluster after so many exchanges."""
        chosen = [each[o] for each, o in zip(self._options, self.chosen(exchanges), strict=True)]
        forward = (k for option in chosen for k in option.forward.steps)
        backward = (k for option in reversed(chosen) for k in option.backward.steps)
        return tuple(forward), tuple(backward)


def _fastest(options: Sequence[Option]) -> int:
    return min(range(len(options)), key=lambda o: (options[o].seconds, options[o].saved_bytes))


def _exchanges(
    cluster: Cluster, part: int, options: Sequence[Option], first: int
) -> list[Exchange]:
    """From option `first` on, each time to the one whose bytes cost least."""
    held = [_held_bytes(cluster, option) for option in options]
    found, now, price = [], first, 0.0
    while True:
        smaller = [o for o in range(len(options)) if held[o] < held[now]]
        if not smaller:
            return found
        slope = {
            o: (options[o].seconds - options[now].seconds) / (held[now] - held[o]) for o in smaller
        }
        now = min(smaller, key=lambda o: (slope[o], held[o]))
        price = max(price, slope[now])
        found.append(Exchange(price, part, now))


def _held_bytes(cluster: Cluster, option: Option) -> int:
    """The phantom, and what other parts hold for the backward part."""
    graph = cluster.graph
    kept = [v for v in option.backward.reads if 0 <= graph.producer[v] < cluster.forward_count]
    return option.saved_bytes + graph.bytes_of(kept)
