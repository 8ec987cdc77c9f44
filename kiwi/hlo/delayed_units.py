"""Units that wait for their first reader.

What `jax.checkpoint` recomputes is traced in front of all gradients that need it, and would be held
from there. XLA's schedulers run an operator late where that holds less, and no fence forbids it: a
fence says what must be there when a unit runs, not when that is.
"""

import math
from collections.abc import Mapping, Sequence

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.in_place import overwritable
from kiwi.hlo.unit import Unit


def postponed(graph: HloGraph, units: Sequence[Unit], aliased: Mapping[int, int]) -> list[Unit]:
    """The same units, each that is better computed late directly in front of its first reader.

    Better late are those for which nothing would have to be held meanwhile, so that the peak does
    not rise. None leaves its loop or its phase: to compute a result of the forward pass in the
    backward pass is recomputation, for the plan to decide. Effects keep their place.

    **Arguments:**

    - `units`: in execution order.
    - `aliased`: result value → the donated argument whose buffer it takes over.
    """
    order = _Order(graph, units, aliased)
    for place in reversed(range(len(units))):
        order.postpone(place)
    return order.units


class _Order:
    """An order of units, in which those behind the one in question do not move any more."""

    def __init__(self, graph: HloGraph, units: Sequence[Unit], aliased: Mapping[int, int]) -> None:
        self.units = list(units)
        self._graph = graph
        self._places = {unit.root: place for place, unit in enumerate(units)}
        self._aliased = aliased
        self._replaced = {argument: result for result, argument in aliased.items()}
        self._producers = {value: unit for unit in units for value in unit.outputs}
        self._readers: dict[int, list[Unit]] = {}
        for unit in units:
            for value in unit.reads:
                self._readers.setdefault(value, []).append(unit)

    def postpone(self, place: int) -> None:
        """Moves the unit at a place to its first reader, if it is better computed late."""
        unit = self.units[place]
        if not self._may_wait(unit):
            return
        target = self._place_of_first_reader(unit)
        if target is not None and all(self._is_there(value, target) for value in unit.reads):
            self._move(place, target - 1)

    def _may_wait(self, unit: Unit) -> bool:
        program = self._graph.program
        equations = [program.equations[index] for index in unit.equations]
        if any(e.is_border or e.is_transfer or e.has_effects for e in equations):
            return False
        return self._aliased.keys().isdisjoint(unit.outputs)

    def _place_of_first_reader(self, unit: Unit) -> int | None:
        """Or of the first of the neighbours up to it that belong together: what is fetched for the
        next one, and what that writes over.

        None where the reader is of another phase or loop.
        """
        readers = [r for value in unit.outputs for r in self._readers.get(value, ())]
        if not readers:
            return None
        first = min(readers, key=self._place)
        if (first.phase, first.loop) != (unit.phase, unit.loop):
            return None
        place = self._place(first)
        while self.units[place - 1] is not unit and self._belongs(place):
            place -= 1
        return place

    def _belongs(self, place: int) -> bool:
        """Whether the unit at a place may write over the result of the one in front of it, or has
        that fetched."""
        unit, reader = self.units[place - 1], self.units[place]
        if self._graph.program.equations[unit.root].name == FETCH:
            return True
        return any(
            value in overwritable(self._graph, reader) and self._last_use(value) == place
            for value in unit.outputs
        )

    def _is_there(self, value: int, place: int) -> bool:
        """Whether a value is held, and not written over, up to a place in any case."""
        result = self._replaced.get(value)
        if result is not None:
            return self._place(self._producers[result]) >= place
        return self._last_use(value) >= place

    def _last_use(self, value: int) -> float:
        """The place of a value's last reader; infinite where nothing frees it."""
        producer = self._producers.get(value)
        readers = self._readers[value]
        program = self._graph.program
        if producer is None or value in program.result_values or value in program.next_values:
            return math.inf
        if any(producer.loop != reader.loop for reader in readers):
            return math.inf
        return max(self._place(reader) for reader in readers)

    def _place(self, unit: Unit) -> int:
        return self._places[unit.root]

    def _move(self, start: int, end: int) -> None:
        self.units.insert(end, self.units.pop(start))
        for place in range(start, end + 1):
            self._places[self.units[place].root] = place
