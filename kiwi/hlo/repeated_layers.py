"""Repeated layers of an unrolled program, found by structure.

A Python loop over layers leaves the same operators in a program again and again, in the forward
pass, in the backward pass and in the update, with parameters of their own. They are found as a
*shift*, a map from each unit of a layer to the corresponding unit of the next layer.

1. Two units look alike if their operators, shapes, types and sharding rules are the same.
2. A seed is a pair of successive units of the forward pass that look alike, with neighbours that
   look alike. The shift grows from it. The producer of one unit's k-th operand maps to the producer
   of the other's, and readers map to readers that look alike, in order. So one seed reaches all
   layers with their backward passes and updates, in whatever order they stand. A value that both
   read belongs to no layer.
3. The seed with the largest shift counts. The units that it leaves out may repeat in another way,
   as an encoder beside a decoder does: the search begins again with them.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from kiwi.hlo.graph import Phase
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph

LEAST_UNITS = 4
"""A shift of fewer units is no layer."""


@dataclass
class OneToOne:
    """A partial one-to-one map that maps nothing to itself."""

    images: dict[int, int] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)

    def add(self, one: int, other: int) -> bool:
        """Maps one to the other, if both are free."""
        if one == other or one in self.images or other in self._taken:
            return False
        self.images[one] = other
        self._taken.add(other)
        return True

    def chains(self) -> Iterator[list[int]]:
        """The chains of the map, each from a member that nothing maps to."""
        for start in self.images:
            if start not in self._taken:
                chain = [start]
                while chain[-1] in self.images:
                    chain.append(self.images[chain[-1]])
                yield chain

    def __contains__(self, one: int) -> bool:
        return one in self.images or one in self._taken

    def __len__(self) -> int:
        return len(self.images)


@dataclass
class Shift:
    """The map to the next layer: unit → unit, by index, and argument → argument, by value index."""

    units: OneToOne = field(default_factory=OneToOne)
    arguments: OneToOne = field(default_factory=OneToOne)

    def take(self, other: "Shift") -> None:
        """Adds the part of another shift that does not contradict this one."""
        for mapping, more in ((self.units, other.units), (self.arguments, other.arguments)):
            for one, image in more.images.items():
                mapping.add(one, image)


def repeated_layers(units: UnitGraph) -> Shift:
    """The shift of a program's units to the next layer; empty if nothing repeats."""
    looks = _looks(units)
    total = Shift()
    while True:
        largest = Shift()
        for one, other in _seeds(units, looks, total):
            if largest.units.images.get(one) != other:
                grown = _Growth(units, looks, total).from_seed(one, other)
                largest = max(largest, grown, key=lambda shift: len(shift.units))
        if len(largest.units) < LEAST_UNITS:
            return total
        total.take(largest)


def _looks(units: UnitGraph) -> list[int]:
    """For each unit a number: the same for units that look alike."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_look(units, unit), len(numbers)) for unit in units.units]


def _look(units: UnitGraph, unit: Unit) -> Hashable:
    """The computation of a unit, without the names of its values."""
    graph, rule = units.graph, unit.rule
    values, results = graph.program.values, graph.program.result_values
    return (
        tuple(
            (graph.program.equations[equation].name, graph.opcodes[equation])
            for equation in unit.equations
        ),
        tuple((*_type(values[value]), dims) for value, dims in rule.reads),
        tuple((*_type(values[output]), output in results) for output in unit.outputs),
        (rule.factor_sizes, rule.results, rule.reduction, rule.blocked),
        (unit.phase, unit.may_recompute, unit.loop),
    )


def _type(value: Value) -> tuple[Hashable, ...]:
    return value.shape, str(value.dtype)


def _seeds(units: UnitGraph, looks: list[int], known: Shift) -> Iterator[tuple[int, int]]:
    """For each kind of unit of the forward pass that is not known yet, the two in the middle."""
    kinds: dict[Hashable, list[int]] = {}
    for unit in units.units:
        if unit.phase is Phase.FORWARD and unit.index not in known.units:
            kinds.setdefault(_kind(units, looks, unit), []).append(unit.index)
    for members in kinds.values():
        if len(members) > 1:
            middle = (len(members) - 1) // 2
            yield members[middle], members[middle + 1]


def _kind(units: UnitGraph, looks: list[int], unit: Unit) -> Hashable:
    """The looks of a unit and its neighbours."""
    before = (units.producer.get(value) for value, _ in unit.rule.reads)
    after = (reader for output in unit.outputs for reader in units.readers.get(output, ()))
    return (
        looks[unit.index],
        tuple(None if producer is None else looks[producer] for producer in before),
        tuple(looks[reader] for reader in after),
    )


class _Growth:
    """One shift that grows from a seed, separate from the known ones."""

    def __init__(self, units: UnitGraph, looks: list[int], known: Shift) -> None:
        self._units, self._looks, self._known = units, looks, known
        self._shift = Shift()
        self._waiting: deque[tuple[int, int]] = deque()

    def from_seed(self, one: int, other: int) -> Shift:
        """Everything that follows from mapping one unit to another."""
        self._take(one, other)
        while self._waiting:
            one, other = self._waiting.popleft()
            unit, image_unit = (self._units.units[index] for index in (one, other))
            reads = zip(unit.rule.reads, image_unit.rule.reads, strict=True)
            for (value, _), (image, _) in reads:
                if value != image:
                    self._take_value(value, image)
            for value, image in zip(unit.outputs, image_unit.outputs, strict=True):
                self._take_readers(value, image)
        return self._shift

    def _take(self, one: int, other: int) -> None:
        is_free = one not in self._known.units and other not in self._known.units
        if is_free and self._looks[one] == self._looks[other] and self._shift.units.add(one, other):
            self._waiting.append((one, other))

    def _take_value(self, value: int, image: int) -> None:
        """Maps the producer of one value to the producer of the other, or an argument to an
        argument."""
        one, other = (self._units.producer.get(key) for key in (value, image))
        if one is not None and other is not None:
            units = self._units.units
            if units[one].outputs.index(value) == units[other].outputs.index(image):
                self._take(one, other)
            return
        program = self._units.graph.program
        are_arguments = value in program.arguments and image in program.arguments
        alike = _type(program.values[value]) == _type(program.values[image])
        if are_arguments and alike and self._shift.arguments.add(value, image):
            self._take_readers(value, image)

    def _take_readers(self, value: int, image: int) -> None:
        """Maps readers to readers that look alike and read at the same places, in order, if their
        numbers are equal."""
        readers, image_readers = self._readers(value), self._readers(image)
        for kind, members in readers.items():
            others = image_readers.get(kind, [])
            for one, other in (
                zip(members, others, strict=False) if len(members) == len(others) else ()
            ):
                self._take(one, other)

    def _readers(self, value: int) -> dict[Hashable, list[int]]:
        readers_of_kind: dict[Hashable, list[int]] = {}
        for reader in self._units.readers.get(value, ()):
            reads = self._units.units[reader].rule.reads
            places = tuple(k for k, (operand, _) in enumerate(reads) if operand == value)
            readers_of_kind.setdefault((self._looks[reader], places), []).append(reader)
        return readers_of_kind
