"""Units that run just before their first reader.

JAX traces the recomputation of `jax.checkpoint` before all gradients that read its results. In this
order, all recomputed results would be live at once. XLA's schedulers run an operator late if that
lowers the peak. Kiwi's barriers allow this: a barrier ties a unit to its operands, not to a point
of time.
"""

import math

from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.in_place import overwritable
from kiwi.hlo.units import Unit, UnitGraph


def delay_to_first_reader(graph: UnitGraph) -> list[Unit]:
    """Returns the units in a new order: each unit stands just before its first reader, unless the
    move would extend an operand's live range.

    So the peak does not rise. No unit leaves its loop or its phase: to compute a forward result in
    the backward pass is recomputation, which the plan decides. Borders of loops, transfers, units
    with side effects, and units that write a donated argument's buffer do not move. The indices of
    units stay the old ones.
    """
    order = _Order(graph)
    for place in reversed(range(len(graph.units))):
        order.delay(place)
    return order.units


class _Order:
    """An order of units. Units are delayed from the last one to the first.

    `_places`: by index of a unit, its place in the order. `_replaced`: donated argument → the
    result that takes over its buffer.
    """

    def __init__(self, graph: UnitGraph) -> None:
        self.units = list(graph.units)
        self._graph, self._program = graph, graph.graph.program
        self._places = list(range(len(graph.units)))
        self._replaced = {argument: result for result, argument in graph.aliased_results.items()}

    def delay(self, place: int) -> None:
        """Moves the unit at a place to just before its first reader, if its operands are live there
        anyway."""
        unit = self.units[place]
        if not self._may_move(unit):
            return
        target = self._place_of_first_reader(unit)
        if target is not None and all(self._lives_until(value, target) for value in unit.reads):
            self._move(place, target - 1)

    def _may_move(self, unit: Unit) -> bool:
        equations = [self._program.equations[index] for index in unit.equations]
        if any(
            equation.is_border or equation.is_transfer or equation.has_effects
            for equation in equations
        ):
            return False
        return self._graph.aliased_results.keys().isdisjoint(unit.outputs)

    def _place_of_first_reader(self, unit: Unit) -> int | None:
        """Returns the place of the first reader, or of the run of units that must stay before it.

        Such a run consists of fetches for the next unit, and of units whose result the next unit
        overwrites. None if nothing reads the unit, or if the first reader is in another phase or
        loop.
        """
        readers = (index for value in unit.outputs for index in self._graph.readers.get(value, ()))
        place = min((self._places[reader] for reader in readers), default=None)
        if place is None:
            return None
        first_reader = self.units[place]
        if (first_reader.phase, first_reader.loop) != (unit.phase, unit.loop):
            return None
        while self.units[place - 1] is not unit and self._belongs(place):
            place -= 1
        return place

    def _belongs(self, place: int) -> bool:
        """Whether the unit before a place is a fetch, or the unit at the place overwrites its
        result."""
        unit, reader = self.units[place - 1], self.units[place]
        if self._program.equations[unit.root].name == FETCH:
            return True
        return any(
            value in overwritable(self._graph.graph, reader) and self._last_use(value) == place
            for value in unit.outputs
        )

    def _lives_until(self, value: int, place: int) -> bool:
        """Whether a value is live at a place even if no unit moves there."""
        result = self._replaced.get(value)
        if result is not None:
            return self._places[self._graph.producer[result]] >= place
        return self._last_use(value) >= place

    def _last_use(self, value: int) -> float:
        """Returns the place of a value's last reader; infinity for arguments, results, carries and
        values that another loop reads, which live longer."""
        producer, readers = self._graph.producer.get(value), self._graph.readers[value]
        program, units = self._program, self._graph.units
        if producer is None or value in program.result_values or value in program.next_values:
            return math.inf
        if any(units[producer].loop != units[reader].loop for reader in readers):
            return math.inf
        return max(self._places[reader] for reader in readers)

    def _move(self, start: int, end: int) -> None:
        self.units.insert(end, self.units.pop(start))
        for place in range(start, end + 1):
            self._places[self.units[place].index] = place
