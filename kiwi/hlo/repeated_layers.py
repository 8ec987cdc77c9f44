"""Finds repeated layers of an unrolled program by their structure.

A Python loop over layers leaves equal operators in a program, once for each layer and with the
layer's own parameters: in the forward pass, in the backward pass and in the update. The result is a
*shift*, a map from each unit of a layer to the corresponding unit of the next layer.

1. Two units look alike if their operators, shapes, dtypes and sharding rules are the same.
2. A seed is a pair of units of the forward pass that look alike and follow each other among the
   units of their kind. Their neighbours look alike, too.
3. The shift grows from the seed. The producer of one unit's k-th operand maps to the producer of
   the other unit's k-th operand. Readers map to readers that look alike, in order. So one seed
   reaches all layers with their backward passes and updates, in whatever order these stand. A value
   that both units read belongs to no layer.
4. The seed with the largest shift is taken. The units that it leaves out may repeat in another way,
   as an encoder beside a decoder does. So the search begins again with these units.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from kiwi.hlo.graph import Phase
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph

LEAST_UNITS = 4
"""The least number of units of a shift. A smaller shift is dropped."""


@dataclass
class OneToOne:
    """A partial one-to-one map of integers that maps no member to itself."""

    images: dict[int, int] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)

    def add(self, one: int, other: int) -> bool:
        """Maps `one` to `other`, if `one` has no image and `other` is no image yet. Returns whether
        the pair was added."""
        if one == other or one in self.images or other in self._taken:
            return False
        self.images[one] = other
        self._taken.add(other)
        return True

    def chains(self) -> Iterator[list[int]]:
        """Yields the chains of the map. Each begins at a member to which nothing maps."""
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
        """Adds all pairs of another shift that do not contradict this one."""
        for mapping, more in ((self.units, other.units), (self.arguments, other.arguments)):
            for member, image in more.images.items():
                mapping.add(member, image)


def repeated_layers(units: UnitGraph) -> Shift:
    """Returns the shift of a program's units to the next layer; empty if nothing repeats."""
    looks = _looks(units)
    total = Shift()
    while True:
        largest = Shift()
        for unit, next_unit in _seeds(units, looks, total):
            if largest.units.images.get(unit) != next_unit:
                grown = _Growth(units, looks, total).from_seed(unit, next_unit)
                largest = max(largest, grown, key=lambda shift: len(shift.units))
        if len(largest.units) < LEAST_UNITS:
            return total
        total.take(largest)


def _looks(units: UnitGraph) -> list[int]:
    """Returns a number for each unit. Units that look alike have equal numbers."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_look(units, unit), len(numbers)) for unit in units.units]


def _look(units: UnitGraph, unit: Unit) -> Hashable:
    """Returns a key of a unit's computation, which does not depend on the indices of its values."""
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
    """Yields the seeds: for each kind of unit of the forward pass, the two units in the middle.
    Units of the shift `known` are left out."""
    kinds: dict[Hashable, list[int]] = {}
    for unit in units.units:
        if unit.phase is Phase.FORWARD and unit.index not in known.units:
            kinds.setdefault(_kind(units, looks, unit), []).append(unit.index)
    for members in kinds.values():
        if len(members) > 1:
            middle = (len(members) - 1) // 2
            yield members[middle], members[middle + 1]


def _kind(units: UnitGraph, looks: list[int], unit: Unit) -> Hashable:
    """Returns a key of the looks of a unit, of the producers of its operands, and of the readers of
    its results."""
    before = (units.producer.get(value) for value, _ in unit.rule.reads)
    after = (reader for output in unit.outputs for reader in units.readers.get(output, ()))
    return (
        looks[unit.index],
        tuple(None if producer is None else looks[producer] for producer in before),
        tuple(looks[reader] for reader in after),
    )


class _Growth:
    """One shift that grows from a seed. It contains no units of the shift `known`."""

    def __init__(self, units: UnitGraph, looks: list[int], known: Shift) -> None:
        self._units, self._looks, self._known = units, looks, known
        self._shift = Shift()
        self._waiting: deque[tuple[int, int]] = deque()

    def from_seed(self, one: int, other: int) -> Shift:
        """Returns the shift that follows from mapping the unit `one` to the unit `other`."""
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
        """Maps the producer of a value to the producer of its image.

        If both are arguments of the same shape and dtype, maps the argument to its image, and the
        argument's readers to the image's readers.
        """
        producer, image_producer = (self._units.producer.get(key) for key in (value, image))
        if producer is not None and image_producer is not None:
            units = self._units.units
            if units[producer].outputs.index(value) == units[image_producer].outputs.index(image):
                self._take(producer, image_producer)
            return
        program = self._units.graph.program
        are_arguments = value in program.arguments and image in program.arguments
        alike = _type(program.values[value]) == _type(program.values[image])
        if are_arguments and alike and self._shift.arguments.add(value, image):
            self._take_readers(value, image)

    def _take_readers(self, value: int, image: int) -> None:
        """Maps the readers of a value to the readers of its image, in order.

        Readers correspond if they look alike and read the value at the same places. If the two
        values have different numbers of such readers, none of them is mapped.
        """
        readers, image_readers = self._readers(value), self._readers(image)
        for kind, members in readers.items():
            others = image_readers.get(kind, [])
            for reader, image_reader in (
                zip(members, others, strict=False) if len(members) == len(others) else ()
            ):
                self._take(reader, image_reader)

    def _readers(self, value: int) -> dict[Hashable, list[int]]:
        readers_of_kind: dict[Hashable, list[int]] = {}
        for reader in self._units.readers.get(value, ()):
            reads = self._units.units[reader].rule.reads
            places = tuple(k for k, (operand, _) in enumerate(reads) if operand == value)
            readers_of_kind.setdefault((self._looks[reader], places), []).append(reader)
        return readers_of_kind
