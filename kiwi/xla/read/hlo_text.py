"""XLA's text of an HLO module: its computations, their instructions in the order of the schedule,
and how often these run: once for each iteration of the loops around them.

XLA:CPU and XLA:GPU write the trip count of a `while` if they found it (`known_trip_count`). XLA:TPU
writes none. There it is computed from the constants with which a loop's counter starts and is
compared, and from the increment in its body, as `jax.lax.scan` counts. A loop without either, and
each branch of a conditional, counts as running once.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(
    r"^ *(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.*?) ?\b(?P<opcode>[a-z][\w\-]*)"
    r"\((?P<operands>[^()]*(?:\([^()]*\)[^()]*)*)\)(?P<attributes>.*)$"
)
_NAMES = re.compile(r"%([\w.\-]+(?:#\d+)?)")
_BARE_NAMES = re.compile(r"[\w.\-]+")
_ARRAY = re.compile(r"(?P<dtype>[a-z]+\d*[a-z0-9]*)\[(?P<shape>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_TILED = re.compile(r"(?P<minor_to_major>[\d,]+):T\((?P<tile>[\d,]+)\)")
HOST_SPACE = 5
"""The number (color) of the host's memory: `Layout::kHostMemorySpace` of `xla/layout.h`."""

OUTSIDE = "outside of any computation"
"""A name that no computation has."""

_ITEM_BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}
_COMPUTATION = re.compile(
    r"\b(?P<role>body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{(?P<names>[^}]*)\}")


@dataclass(frozen=True)
class Array:
    """The type of an array.

    - `space`: the number (color) of its memory.
    - `layout`: as XLA writes it.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0
    layout: str = ""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Without the padding of tiles."""
        return self.elements * item_bits(self.dtype) // 8

    @property
    def stored_bytes(self) -> int:
        """Bytes with the padding of tiles: the minor dimensions are filled up to multiples of the
        first tile."""
        tiled = _TILED.match(self.layout)
        if tiled is None:
            return self.bytes
        order, tile = ([*map(int, tiled[name].split(","))] for name in tiled.groupdict())
        shape = list(self.shape)
        for dimension, size in zip(order, reversed(tile), strict=False):
            shape[dimension] = -(-shape[dimension] // size) * size
        return math.prod(shape) * item_bits(self.dtype) // 8


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction. `attributes` is the text after its operands."""

    name: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    result_type: str
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result, which is a tuple or one array."""
        return tuple(arrays_of(self.result_type))

    @property
    def bytes(self) -> int:
        """Bytes of its result."""
        return sum(array.bytes for array in self.arrays)

    @property
    def stored_bytes(self) -> int:
        """Bytes of its result with the padding of tiles."""
        return sum(array.stored_bytes for array in self.arrays)

    def computation(self, role: str) -> str:
        """The name of the computation that it runs as `body`, `calls` and so on; "" if none."""
        return self._computations.get(role, "")

    @functools.cached_property
    def _computations(self) -> Mapping[str, str]:
        """The first computation of each role. Attributes may be long."""
        return dict(reversed(_COMPUTATION.findall(self.attributes)))

    @property
    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional."""
        match = _BRANCHES.search(self.attributes)
        if match is not None:
            return tuple(name.strip().lstrip("%") for name in match["names"].split(","))
        roles = "true_computation", "false_computation"
        return tuple(name for role in roles if (name := self.computation(role)))


@dataclass(frozen=True, eq=False)
class Computation:
    """A computation's instructions, in the order of the schedule."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return next(
            (instruction for instruction in self.instructions if instruction.is_root),
            self.instructions[-1],
        )

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """Its instructions."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def readers(self) -> Mapping[str, tuple[Instruction, ...]]:
        """The instructions that read an instruction's result, by its name."""
        readers_of: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                readers_of.setdefault(operand, []).append(instruction)
        return {name: tuple(readers) for name, readers in readers_of.items()}

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """In the order of their numbers."""
        parameters = [
            instruction for instruction in self.instructions if instruction.opcode == "parameter"
        ]
        return tuple(sorted(parameters, key=lambda instruction: int(instruction.operands[0])))


@dataclass(frozen=True, eq=False)
class Module:
    """The computations of a module, by name; `entry` is the one that it runs."""

    computations: Mapping[str, Computation]
    entry: Computation


def parse_module(text: str) -> Module:
    """Reads XLA's text of a module."""
    computations: dict[str, Computation] = {}
    entry = Computation("", ())
    for name, is_entry, lines in _blocks(text):
        computations[name] = Computation(name, tuple(_instructions(lines)))
        entry = computations[name] if is_entry or not entry.instructions else entry
    return Module(computations, entry)


def arrays_of(text: str) -> Iterator[Array]:
    """The arrays of a type, in order."""
    for match in _ARRAY.finditer(text):
        shape = tuple(int(size) for size in match["shape"].split(",") if size)
        layout = match["layout"] or ""
        space = _SPACE.search(layout)
        yield Array(match["dtype"], shape, 0 if space is None else int(space[1]), layout)


def item_bits(dtype: str) -> int:
    """Bits of an element, by XLA's name of a type."""
    digits = re.search(r"\d+", dtype)
    return _ITEM_BITS.get(dtype, 0 if digits is None else int(digits.group()))


def _blocks(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Each computation's name, whether it is the entry, and its lines. Lines outside of any
    computation have the name `OUTSIDE`."""
    name, is_entry, lines = "", False, []
    outside: list[str] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            name, is_entry, lines = header["name"], header["entry"] is not None, []
        elif line == "}" and name:
            yield name, is_entry, lines
            name = ""
        elif name and lines and not line.startswith(" "):  # JSON of a kernel that XLA breaks
            lines[-1] += line
        else:
            (lines if name else outside).append(line)
    if any(_INSTRUCTION.match(line) for line in outside):
        yield OUTSIDE, False, outside


def _instructions(lines: list[str]) -> Iterator[Instruction]:
    types: dict[str, str] = {}
    for match in filter(None, map(_INSTRUCTION.match, lines)):
        name, opcode, operands = match.group("name", "opcode", "operands")
        names = (operands,) if opcode in ("parameter", "constant") else _names(operands)
        yield from _elements(names, types)
        types[name] = match["type"]
        rest = match["attributes"], match["type"], match["root"] is not None
        yield Instruction(name, opcode, names, *rest)


def _elements(names: Sequence[str], types: dict[str, str]) -> Iterator[Instruction]:
    """The instructions that XLA leaves out if it writes an element of a tuple as `tuple#0`."""
    for name in names:
        source, _, place = name.partition("#")
        if source in types and name not in types:
            arrays = [array.group() for array in _ARRAY.finditer(types[source])]
            types[name] = element_type = "".join(arrays[int(place) :][:1])
            yield Instruction(
                name, "get-tuple-element", (source,), f"index={place}", element_type, False
            )


def _names(operands: str) -> tuple[str, ...]:
    """The names of operands. XLA leaves the signs out in programs that are not optimised."""
    return tuple((_NAMES if "%" in operands else _BARE_NAMES).findall(operands))


_TRIPS = re.compile(r'"known_trip_count":\{"n":"(?P<count>\d+)"\}')
_POSITION = re.compile(r"\bindex=(?P<position>\d+)")
_ROLES = ("body", "condition", "calls", "to_apply")


def runs(module: Module) -> Mapping[str, int]:
    """By computation, how often it runs in a step."""
    called = {
        name: [
            pair
            for instruction in computation.instructions
            for pair in _called(module, computation, instruction)
        ]
        for name, computation in module.computations.items()
    }
    callees = {callee for pairs in called.values() for callee, _ in pairs}
    times: dict[str, int] = {name: 1 for name in called if name not in callees}
    # A computation comes after those that it calls.
    for name in reversed(list(module.computations)):
        for callee, trips in called[name]:
            times[callee] = times.get(callee, 0) + trips * times.get(name, 1)
    return {name: times.get(name, 1) for name in called}


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int:
    """How often the body of a `while` runs; 1 if the text does not say."""
    return known_trip_count(module, computation, loop) or 1


def known_trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often the body of a `while` runs; None if the text does not say."""
    stated = _TRIPS.search(loop.attributes)
    return int(stated["count"]) if stated is not None else _counted(module, computation, loop)


def _called(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs, and how often each."""
    for role in _ROLES:
        name = instruction.computation(role)
        if name in module.computations:
            yield name, trip_count(module, computation, instruction) if role == "body" else 1
    for name in instruction.branches:
        if name in module.computations:
            yield name, 1


def _counted(module: Module, computation: Computation, loop: Instruction) -> int | None:
    condition = module.computations.get(loop.computation("condition"))
    compare = None if condition is None else condition.root
    if condition is None or compare is None or "direction=LT" not in compare.attributes:
        return None
    counter, limit = (condition.by_name.get(name) for name in compare.operands)
    started = computation.by_name.get(loop.operands[0])
    position = None if counter is None else _POSITION.search(counter.attributes)
    if position is None or started is None or started.opcode != "tuple":
        return None
    place = int(position["position"])
    first = _constant(computation, started.operands[place])
    last = _constant(condition, "" if limit is None else limit.name)
    if first is None or last is None:
        return None
    return -(-(last - first) // _increment(module, loop, place))


def _increment(module: Module, loop: Instruction, place: int) -> int:
    """The increment of a loop's counter in its body; 1 if the text does not say. XLA
    unrolls loops."""
    body = module.computations.get(loop.computation("body"))
    if body is None or not body.instructions or body.root.opcode != "tuple":
        return 1
    added = body.by_name.get(body.root.operands[place])
    if added is None or added.opcode != "add":
        return 1
    steps = (_constant(body, name) for name in added.operands)
    return next((step for step in steps if step is not None and step > 0), 1)


def _constant(computation: Computation, name: str) -> int | None:
    instruction = computation.by_name.get(name)
    while instruction is not None and instruction.opcode == "copy":
        instruction = computation.by_name.get(instruction.operands[0])
    return (
        None
        if instruction is None or instruction.opcode != "constant"
        else int(instruction.operands[0])
    )
