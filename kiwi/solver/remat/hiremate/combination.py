"""Parts combined without a program: each runs once forward and once backward, with some option.

From the fastest options on, one part after the other exchanges its option for a slower one that
holds less between forward and backward, the cheapest bytes first: along the lower convex hull of
each part, and where prices are equal the earlier part first, which holds its values longest. This
takes no search. It gives large graphs a schedule in any time, and H-ILP a solution to start from.
"""

from collections.abc import Sequence

from kiwi.solver.remat.hiremate.cluster import Cluster, StepPair
from kiwi.solver.remat.hiremate.option import Option

Exchange = tuple[float, int, int]
"""Seconds per byte, the part, and its new option."""


def combinations(cluster: Cluster, options: Sequence[Sequence[Option]]) -> list[list[int]]:
    """The option of each part of `cluster`: the fastest, and those after each exchange."""
    parts = [_exchanges(cluster, part, each) for part, each in enumerate(options)]
    found = [[fastest for fastest, _ in parts]]
    exchanges = (exchange for _, each in parts for exchange in each)
    for _, part, option in sorted(exchanges, key=lambda exchange: exchange[:2]):
        found.append([*found[-1][:part], option, *found[-1][part + 1 :]])
    return found


def combined(options: Sequence[Sequence[Option]], chosen: Sequence[int]) -> StepPair:
    """Forward and backward operators of a combination."""
    parts = [each[o] for each, o in zip(options, chosen, strict=True)]
    forward = (k for option in parts for k in option.forward.steps)
    backward = (k for option in reversed(parts) for k in option.backward.steps)
    return tuple(forward), tuple(backward)


def _exchanges(
    cluster: Cluster, part: int, options: Sequence[Option]
) -> tuple[int, list[Exchange]]:
    """The fastest option, and from it on each time the one whose bytes cost least."""
    held = [_held_bytes(cluster, option) for option in options]
    fastest = min(range(len(options)), key=lambda o: (options[o].seconds, options[o].saved_bytes))
    found, now, price = [], fastest, 0.0
    while True:
        smaller = [o for o in range(len(options)) if held[o] < held[now]]
        if not smaller:
            return fastest, found
        slope = {
            o: (options[o].seconds - options[now].seconds) / (held[now] - held[o]) for o in smaller
        }
        now = min(smaller, key=lambda o: (slope[o], held[o]))
        price = max(price, slope[now])
        found.append((price, part, now))


def _held_bytes(cluster: Cluster, option: Option) -> int:
    """The phantom, and what other parts hold for the backward part."""
    graph = cluster.graph
    kept = [v for v in option.backward.reads if 0 <= graph.producer[v] < cluster.forward_count]
    return option.saved_bytes + graph.bytes_of(kept)
