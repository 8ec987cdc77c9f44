"""The weight of each channel in each window, and the problem without loads at these weights."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.problem import Edge, Load, Node, Problem
from kiwi.solver.result import Balances

Loads = Mapping[tuple[int, int], float]
"""Amounts by window and channel."""


def weighted(problem: Problem, weight: Callable[[Load, int], float]) -> Problem:
    """Returns the problem without loads in which each load counts times its weight.

    - `weight`: the weight of a load and a node. The node is the one with the load, or the head of
      the edge with the load.
    """
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
    """The bisections for the first channel of a window and another channel.

    - `channel`: the other channel.
    - `low`, `high`: weights of the other channel at which its load is the larger, and the smaller.
    - `first`, `last`: bounds of the place of a split, as a share of the window's nodes. Nodes
      before the place have the weight `high`, the others `low`.
    """

    channel: int
    low: float = 0.0
    high: float = 1.0
    first: float = 0.0
    last: float = 1.0

    @property
    def share(self) -> float:
        """The weight to try: the middle of `low` and `high`."""
        return (self.low + self.high) / 2

    @property
    def place(self) -> float:
        """The place to try: the middle of `first` and `last`."""
        return (self.first + self.last) / 2


class Weights:
    """The weight of each channel in each window. At the start the first channel has all the weight,
    or the weights follow from the balances `given`."""

    def __init__(self, problem: Problem, given: Balances) -> None:
        self.is_split = False
        self._balances = {window: _Balance(*balance) for window, balance in given.items()}
        parts = [*problem.nodes, *problem.edges]
        nodes = [*range(len(problem.nodes)), *(edge.head for edge in problem.edges)]
        self._places: dict[int, list[int]] = {}
        for part, node in zip(parts, nodes, strict=True):
            for window in {load.window for load in part.loads}:
                self._places.setdefault(window, []).append(node)
        self._places = {
            key: sorted(set(window_nodes)) for key, window_nodes in self._places.items()
        }
        self._known: tuple[object, Problem] | None = None

    @property
    def balances(self) -> Balances:
        """The balances from which the weights follow."""
        return {
            window: (balance.channel, balance.low, balance.high)
            for window, balance in self._balances.items()
        }

    def moved(self, loads: Loads) -> bool:
        """Moves weight to the channels whose load is larger. Returns whether any weight moved."""
        is_moved = False
        for window, channel, is_larger in _compared(loads):
            balance = self._balances.get(window)
            if balance is None:
                if is_larger:
                    self._balances[window] = _Balance(channel)
                    is_moved = True
                continue
            balance.low, balance.high = (
                (balance.share, balance.high) if is_larger else (balance.low, balance.share)
            )
            is_moved = True
        return is_moved

    def split(self, loads: Loads) -> bool:
        """Begins to split the windows with a balance, or moves the places of the splits. Returns
        whether there is a balance."""
        for window, _, is_larger in _compared(loads) if self.is_split else ():
            balance = self._balances.get(window)
            if balance is not None:
                balance.first, balance.last = (
                    (balance.place, balance.last) if is_larger else (balance.first, balance.place)
                )
        self.is_split = True
        return bool(self._balances)

    def weighted(self, problem: Problem) -> Problem:
        """Returns the problem without loads at the present weights. It is the same object as long
        as the weights do not move, so that its presolved network is reused."""
        state = (
            problem,
            self.is_split,
            {window: replace(balance) for window, balance in self._balances.items()},
        )
        if self._known is None or self._known[0] != state:
            self._known = state, weighted(problem, self._weight)
        return self._known[1]

    def _weight(self, load: Load, node: int) -> float:
        balance = self._balances.get(load.window)
        if balance is None:
            return 1.0 if load.channel == 0 else 0.0
        share = balance.share
        if self.is_split:
            nodes = self._places[load.window]
            is_before = bisect_left(nodes, node) < balance.place * len(nodes)
            share = balance.high if is_before else balance.low
        return {0: 1.0 - share, balance.channel: share}.get(load.channel, 0.0)


def _compared(loads: Loads) -> Iterator[tuple[int, int, bool]]:
    """Yields, for each window with several channels, the window, the largest channel other than the
    first, and whether its load exceeds the first channel's."""
    for window in sorted({window for window, _ in loads}):
        amounts = {
            channel: amount
            for (load_window, channel), amount in loads.items()
            if load_window == window and channel
        }
        if amounts:
            largest = max(amounts, key=lambda channel: (amounts[channel], -channel))
            yield window, largest, amounts[largest] > loads.get((window, 0), 0.0)
