"""Equal nodes of equal layers, whose decisions are tied.

Layers are found in the graph of units (`kiwi.hlo.repeated_layers`). A node of one layer and its
counterpart in the next are equal if they offer the same strategies or shardings, and residencies
with times at corresponding units. The first and the last layer have other neighbours, and so other
options: the chain of equal nodes ends there.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import astuple, replace

import numpy as np

from kiwi.hlo.repeated_layers import repeated_layers
from kiwi.problem.build import PlanningProblem
from kiwi.solver.tied import EqualNodes

Next = dict[int, tuple[int, np.ndarray]]
"""For each node its counterpart in the next layer, and for each of its options the counterpart's
option of the same meaning."""

_Found = tuple[int, int, np.ndarray | None]
"""A node, its counterpart in the next layer, and the meaning of its options there, if both offer
the same."""


def equal_nodes(planning: PlanningProblem) -> tuple[EqualNodes, ...]:
    """The classes of equal nodes with two members or more."""
    return tuple(_chains(_Correspondence(planning), planning))


def _chains(layers: "_Correspondence", planning: PlanningProblem) -> Iterator[EqualNodes]:
    """The chains of equal nodes, each from a node that no other node leads to."""
    following = layers.next_nodes()
    behind = {node for node, _ in following.values()}
    for first in following:
        if first in behind:
            continue
        members = [first]
        options = [np.arange(planning.problem.nodes[first].costs.size)]
        while members[-1] in following:
            node, means = following[members[-1]]
            members.append(node)
            options.append(means[options[-1]])
        yield EqualNodes(tuple(members), np.stack(options), layers.layer_of(first))


class _Correspondence:
    """Nodes and the nodes of the next layer."""

    def __init__(self, planning: PlanningProblem) -> None:
        self._planning = planning
        shift = repeated_layers(planning.units)
        self._units, self._arguments = shift.units.images, shift.arguments.images
        self._unit_layer, self._argument_layer = (
            {one: layer for chain in shifted.chains() for layer, one in enumerate(chain)}
            for shifted in (shift.units, shift.arguments)
        )

    def layer_of(self, node: int) -> int:
        """How many layers are before a node's, whether or not their nodes are equal."""
        sources, units = self._planning.sources, self._planning.unit_nodes
        if node < len(sources):
            return self._argument_layer.get(sources[node].value, 0)
        number = node - len(sources)
        if number >= len(units):
            number = self._planning.copies[number - len(units)].unit
        return self._unit_layer.get(number, 0)

    def next_nodes(self) -> Next:
        """The counterparts of all nodes that have an equal node in the next layer."""
        pairs = (*self._sources(), *self._units_of_layers(), *self._copies())
        return {one: (other, means) for one, other, means in pairs if means is not None}

    def _sources(self) -> Iterator[_Found]:
        sources = self._planning.sources
        number_of = {source.value: number for number, source in enumerate(sources)}
        for value, image in self._arguments.items():
            one, other = number_of[value], number_of[image]
            yield one, other, _meaning(sources[one].shardings, sources[other].shardings)

    def _units_of_layers(self) -> Iterator[_Found]:
        nodes, first = self._planning.unit_nodes, len(self._planning.sources)
        for one, other in self._units.items():
            mine, theirs = nodes[one], nodes[other]
            if mine.strategies == theirs.strategies:
                moved = [tuple(map(self._moved_time, astuple(r))) for r in mine.residency.options]
                means = _meaning(moved, [astuple(r) for r in theirs.residency.options])
                if means is not None:  # options are strategy-major
                    strategies = np.arange(len(mine.strategies))
                    means = np.add.outer(len(means) * strategies, means).ravel()
                yield first + one, first + other, means

    def _copies(self) -> Iterator[_Found]:
        copies = self._planning.copies
        first = len(self._planning.sources) + len(self._planning.unit_nodes)
        number_of = {(copy.unit, copy.read): number for number, copy in enumerate(copies)}
        for one, copy in enumerate(copies):
            other = number_of.get((self._units.get(copy.unit, -1), copy.read))
            if other is not None:
                moved = [replace(o, again_at=self._moved_time(o.again_at)) for o in copy.options]
                yield first + one, first + other, _meaning(moved, copies[other].options)

    def _moved_time(self, time: int | None) -> Hashable:
        """The time of the corresponding unit. The end of the step stays. Any other time of a unit
        without counterpart matches nothing."""
        if time is None or time == len(self._planning.units.units) - 1:
            return time
        return self._units.get(time, ("of no next layer", time))


def _meaning(mine: Sequence[Hashable], theirs: Sequence[Hashable]) -> np.ndarray | None:
    """For each of `mine` its place among `theirs`; None if the two differ."""
    place_of = {key: place for place, key in enumerate(theirs)}
    if len(mine) != len(theirs) or any(key not in place_of for key in mine):
        return None
    return np.array([place_of[key] for key in mine])
