"""Equal nodes of equal layers, whose decisions are tied.

Layers are found in the graph of units (`kiwi.hlo.repeated_layers`). A node of one layer and its
counterpart in the next layer are equal if they offer the same strategies or shardings, and
residencies with times at corresponding units. The first and the last layer have other neighbours,
and so other options: the chain of equal nodes ends there.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import astuple, replace

import numpy as np

from kiwi.hlo.repeated_layers import repeated_layers
from kiwi.problem.build import PlanningProblem
from kiwi.solver.tied import EqualNodes

Next = dict[int, tuple[int, np.ndarray]]
"""For each node, its counterpart in the next layer, and for each of its options the counterpart's
option with the same meaning."""

_Found = tuple[int, int, np.ndarray | None]
"""A node, its counterpart in the next layer, and for each of the node's options the counterpart's
option with the same meaning; None if the two offer different options."""


def equal_nodes(planning: PlanningProblem) -> tuple[EqualNodes, ...]:
    """Returns the classes of equal nodes with two members or more."""
    return tuple(_chains(_Correspondence(planning), planning))


def _chains(layers: "_Correspondence", planning: PlanningProblem) -> Iterator[EqualNodes]:
    """Yields the chains of equal nodes. A chain begins at a node that is no counterpart of an
    earlier node."""
    following = layers.next_nodes()
    behind = {node for node, _ in following.values()}
    for start in following:
        if start in behind:
            continue
        members = [start]
        options = [np.arange(planning.problem.nodes[start].costs.size)]
        while members[-1] in following:
            node, means = following[members[-1]]
            members.append(node)
            options.append(means[options[-1]])
        yield EqualNodes(tuple(members), np.stack(options))


class _Correspondence:
    """The correspondence between nodes and their counterparts in the next layer."""

    def __init__(self, planning: PlanningProblem) -> None:
        self._planning = planning
        shift = repeated_layers(planning.units)
        self._units, self._arguments = shift.units.images, shift.arguments.images

    def next_nodes(self) -> Next:
        """The counterparts of all nodes that have an equal node in the next layer."""
        pairs = (*self._sources(), *self._units_of_layers(), *self._copies())
        return {
            node: (counterpart, means) for node, counterpart, means in pairs if means is not None
        }

    def _sources(self) -> Iterator[_Found]:
        sources = self._planning.sources
        number_of = {source.value: number for number, source in enumerate(sources)}
        for value, image in self._arguments.items():
            source_number, image_number = number_of[value], number_of[image]
            yield (
                source_number,
                image_number,
                _meaning(sources[source_number].shardings, sources[image_number].shardings),
            )

    def _units_of_layers(self) -> Iterator[_Found]:
        nodes, first_unit = self._planning.unit_nodes, len(self._planning.sources)
        for unit, image in self._units.items():
            node, counterpart = nodes[unit], nodes[image]
            if node.strategies == counterpart.strategies:
                moved = [
                    tuple(map(self._moved_time, astuple(residency)))
                    for residency in node.residency.options
                ]
                means = _meaning(
                    moved, [astuple(residency) for residency in counterpart.residency.options]
                )
                if means is not None:  # options are strategy-major
                    strategies = np.arange(len(node.strategies))
                    means = np.add.outer(len(means) * strategies, means).ravel()
                yield first_unit + unit, first_unit + image, means

    def _copies(self) -> Iterator[_Found]:
        copies = self._planning.copies
        first_copy = len(self._planning.sources) + len(self._planning.unit_nodes)
        number_of = {(copy.unit, copy.read): number for number, copy in enumerate(copies)}
        for copy_number, copy in enumerate(copies):
            counterpart = number_of.get((self._units.get(copy.unit, -1), copy.read))
            if counterpart is not None:
                moved = [
                    replace(option, again_at=self._moved_time(option.again_at))
                    for option in copy.options
                ]
                yield (
                    first_copy + copy_number,
                    first_copy + counterpart,
                    _meaning(moved, copies[counterpart].options),
                )

    def _moved_time(self, time: int | None) -> Hashable:
        """Returns the time of the corresponding unit in the next layer. None and the end of the
        step stay. Any other time of a unit without counterpart becomes a key that equals no
        time."""
        if time is None or time == len(self._planning.units.units) - 1:
            return time
        return self._units.get(time, ("of no next layer", time))


def _meaning(mine: Sequence[Hashable], theirs: Sequence[Hashable]) -> np.ndarray | None:
    """Returns, for each of `mine`, its index in `theirs`; None if the two are not the same set."""
    place_of = {key: place for place, key in enumerate(theirs)}
    if len(mine) != len(theirs) or any(key not in place_of for key in mine):
        return None
    return np.array([place_of[key] for key in mine])
