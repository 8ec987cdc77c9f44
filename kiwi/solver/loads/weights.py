"""How much each channel counts in each window, and the problem without loads that follows."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.problem import Edge, Load, Node, Problem
from kiwi.solver.result import Balances

Loads = Mapping[tuple[int, int], float]
"""Amounts by window and channel."""


def weighted(problem: Problem, weight: Callable[[Load, int], float]) -> Problem:
    """The problem in which each load counts as its weight, by the load and the node that has it or
    is the head of its edge, and nothing overlaps."""
    known: dict[object, np.ndarray] = {}

    def costs_of(part: Node | Edge, node: int) -> np.ndarray:
        counted = [(load, weight(load, node) - 1) for load in part.loads]
        key = (id(part.costs), tuple((id(load.amounts), w) for load, w in counted))
        if key not in known:
            known[key] = part.costs + sum(w * load.amounts for load, w in counted)
        return known[key]

    nodes = tuple(
        replace(n, costs=costs_of(n, k), parts={}, loads=()) if n.loads else n
        for k, n in enumerate(problem.nodes)
    )
    edges = tuple(
        replace(e, costs=costs_of(e, e.head), parts={}, loads=()) if e.loads else e
        for e in problem.edges
    )
    return replace(problem, nodes=nodes, edges=edges)


@dataclass
class _Balance:
    """Two channels of a window, the first one and another.

    - `low`, `high`: weights of the other one, at which it is the larger and the smaller channel.
    - `first`, `last`: the place up to which nodes weigh as at `high`: it is between these.
    """

    channel: int
    low: float = 0.0
    high: float = 1.0
    first: float = 0.0
    last: float = 1.0

    @property
    def share(self) -> float:
        """The weight to try."""
        return (self.low + self.high) / 2

    @property
    def place(self) -> float:
        """The place to try."""
        return (self.first + self.last) / 2


class Weights:
    """How much each channel counts in each window: at the start the first one alone, or as it did
    in another problem."""

    def __init__(self, problem: Problem, given: Balances) -> None:
        self.is_split = False
        self._balances = {window: _Balance(*balance) for window, balance in given.items()}
        parts = [*problem.nodes, *problem.edges]
        nodes = [*range(len(problem.nodes)), *(edge.head for edge in problem.edges)]
        self._places: dict[int, list[int]] = {}
        for part, node in zip(parts, nodes, strict=True):
            for window in {load.window for load in part.loads}:
                self._places.setdefault(window, []).append(node)
        self._places = {w: sorted(set(own)) for w, own in self._places.items()}
        self._known: tuple[object, Problem] | None = None

    @property
    def balances(self) -> Balances:
        """What they come from."""
        return {w: (own.channel, own.low, own.high) for w, own in self._balances.items()}

    def moved(self, loads: Loads) -> bool:
        """Moves weight to the channels that are larger; whether any moved."""
        is_moved = False
        for window, other, is_larger in _compared(loads):
            balance = self._balances.get(window)
            if balance is None:
                if is_larger:
                    self._balances[window] = _Balance(other)
                    is_moved = True
                continue
            balance.low, balance.high = (
                (balance.share, balance.high) if is_larger else (balance.low, balance.share)
            )
            is_moved = True
        return is_moved

    def split(self, loads: Loads) -> bool:
        """Moves the places at which weights change; whether there are any."""
        for window, _, is_larger in _compared(loads) if self.is_split else ():
            balance = self._balances.get(window)
            if balance is not None:
                balance.first, balance.last = (
                    (balance.place, balance.last) if is_larger else (balance.first, balance.place)
                )
        self.is_split = True
        return bool(self._balances)

    def weighted(self, problem: Problem) -> Problem:
        """The problem in which each load counts as its weight says; the same object as long as the
        weights do not move, so that what is reduced once is not reduced again."""
        at = problem, self.is_split, {w: replace(own) for w, own in self._balances.items()}
        if self._known is None or self._known[0] != at:
            self._known = at, weighted(problem, self._weight)
        return self._known[1]

    def _weight(self, load: Load, node: int) -> float:
        balance = self._balances.get(load.window)
        if balance is None:
            return 1.0 if load.channel == 0 else 0.0
        share = balance.share
        if self.is_split:
            own = self._places[load.window]
            is_before = bisect_left(own, node) < balance.place * len(own)
            share = balance.high if is_before else balance.low
        return {0: 1.0 - share, balance.channel: share}.get(load.channel, 0.0)


def _compared(loads: Loads) -> Iterator[tuple[int, int, bool]]:
    """For each window with several channels the largest channel beside the first, and whether its
    load exceeds the first one's."""
    for window in sorted({window for window, _ in loads}):
        own = {c: amount for (w, c), amount in loads.items() if w == window and c}
        if own:
            other = max(own, key=lambda c: (own[c], -c))
            yield window, other, own[other] > loads.get((window, 0), 0.0)
