"""A parser of XLA's text of an HLO module.

It reads the computations, their instructions in the order of the schedule, and how often each
computation runs in a step: once per iteration of the loops around it.

XLA:CPU and XLA:GPU state the trip count of a `while` if they know it (`known_trip_count`). XLA:TPU
states none. For XLA:TPU the trip count follows from the constant at which the loop's counter
starts, the constant that the condition compares it with, and the increment in the body, as
`jax.lax.scan` writes them. The body of any other loop counts as running once, and so does each
branch of a conditional.
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
"""The number (color) of host memory: `Layout::kHostMemorySpace` of `xla/layout.h`."""

OUTSIDE = "outside of any computation"
"""The name under which instructions outside of any computation are collected. No computation of
XLA has it."""

_ITEM_BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}
_COMPUTATION = re.compile(
    r"\b(?P<role>body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{(?P<names>[^}]*)\}")


@dataclass(frozen=True)
class Array:
    """The type of an array.

    - `dtype`: XLA's name of the element type.
    - `shape`: the sizes of the dimensions.
    - `space`: the number (color) of the memory that holds the array.
    - `layout`: XLA's text of the layout; "" if there is none.
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
        """The bytes without the padding of tiles."""
        return self.elements * item_bits(self.dtype) // 8

    @property
    def stored_bytes(self) -> int:
        """The bytes with the padding of tiles. The minor dimensions are padded to multiples of the
        layout's first tile."""
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
    """One instruction.

    - `operands`: the names of the operands. A parameter has its number instead, a constant its
      value.
    - `attributes`: the text behind the operands.
    - `result_type`: XLA's text of the result's type.
    - `is_root`: whether the result is the computation's.
    """

    name: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    result_type: str
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the result: one, or the elements of a tuple."""
        return tuple(arrays_of(self.result_type))

    @property
    def bytes(self) -> int:
        """The bytes of the result without the padding of tiles."""
        return sum(array.bytes for array in self.arrays)

    @property
    def stored_bytes(self) -> int:
        """The bytes of the result with the padding of tiles."""
        return sum(array.stored_bytes for array in self.arrays)

    def computation(self, role: str) -> str:
        """Returns the name of the computation that the instruction runs in a role such as `body` or
        `calls`; "" if there is none."""
        return self._computations.get(role, "")

    @functools.cached_property
    def _computations(self) -> Mapping[str, str]:
        """The first computation of each role. It is cached, because attributes may be long."""
        return dict(reversed(_COMPUTATION.findall(self.attributes)))

    @property
    def branches(self) -> tuple[str, ...]:
        """The names of the branches of a conditional; empty for other instructions."""
        match = _BRANCHES.search(self.attributes)
        if match is not None:
            return tuple(name.strip().lstrip("%") for name in match["names"].split(","))
        roles = "true_computation", "false_computation"
        return tuple(name for role in roles if (name := self.computation(role)))


@dataclass(frozen=True, eq=False)
class Computation:
    """A computation, with its instructions in the order of the schedule."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def root(self) -> Instruction:
        """The root instruction, or the last instruction if none is marked as root."""
        return next(
            (instruction for instruction in self.instructions if instruction.is_root),
            self.instructions[-1],
        )

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def readers(self) -> Mapping[str, tuple[Instruction, ...]]:
        """By name of an instruction, the instructions that read its result."""
        readers_of: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                readers_of.setdefault(operand, []).append(instruction)
        return {name: tuple(readers) for name, readers in readers_of.items()}

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameters, in the order of their numbers."""
        parameters = [
            instruction for instruction in self.instructions if instruction.opcode == "parameter"
        ]
        return tuple(sorted(parameters, key=lambda instruction: int(instruction.operands[0])))


@dataclass(frozen=True, eq=False)
class Module:
    """A module.

    - `computations`: the computations by name, each after those that it calls.
    - `entry`: the entry computation.
    """

    computations: Mapping[str, Computation]
    entry: Computation


def parse_module(text: str) -> Module:
    """Returns the module that XLA's text describes."""
    computations: dict[str, Computation] = {}
    entry = Computation("", ())
    for name, is_entry, lines in _blocks(text):
        computations[name] = Computation(name, tuple(_instructions(lines)))
        entry = computations[name] if is_entry or not entry.instructions else entry
    return Module(computations, entry)


def arrays_of(text: str) -> Iterator[Array]:
    """Yields the arrays of a type's text, in order."""
    for match in _ARRAY.finditer(text):
        shape = tuple(int(size) for size in match["shape"].split(",") if size)
        layout = match["layout"] or ""
        space = _SPACE.search(layout)
        yield Array(match["dtype"], shape, 0 if space is None else int(space[1]), layout)


def item_bits(dtype: str) -> int:
    """Returns the bits of an element, from XLA's name of its type."""
    digits = re.search(r"\d+", dtype)
    return _ITEM_BITS.get(dtype, 0 if digits is None else int(digits.group()))


def _blocks(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Yields each computation's name, whether it is the entry, and its lines. Instructions outside
    of any computation come last, under the name `OUTSIDE`."""
    name, is_entry, lines = "", False, []
    outside: list[str] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            name, is_entry, lines = header["name"], header["entry"] is not None, []
        elif line == "}" and name:
            yield name, is_entry, lines
            name = ""
        elif name and lines and not line.startswith(" "):  # XLA breaks the JSON of a kernel.
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
    """Yields a `get-tuple-element` for each operand that XLA writes as an element of a tuple, such
    as `tuple#0`, and records its type in `types`."""
    for name in names:
        source, _, place = name.partition("#")
        if source in types and name not in types:
            arrays = [array.group() for array in _ARRAY.finditer(types[source])]
            types[name] = element_type = "".join(arrays[int(place) :][:1])
            yield Instruction(
                name, "get-tuple-element", (source,), f"index={place}", element_type, False
            )


def _names(operands: str) -> tuple[str, ...]:
    """Returns the names of the operands. XLA writes them without "%" in unoptimised programs."""
    return tuple((_NAMES if "%" in operands else _BARE_NAMES).findall(operands))


_TRIPS = re.compile(r'"known_trip_count":\{"n":"(?P<count>\d+)"\}')
_POSITION = re.compile(r"\bindex=(?P<position>\d+)")
_INTEGER = re.compile(r"-?\d+")
_ROLES = ("body", "condition", "calls", "to_apply")


def runs(module: Module) -> Mapping[str, int]:
    """Returns how often each computation runs in a step, by its name."""
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
    """Returns the trip count of a `while`; 1 if the text does not state it. Parameters as of
    `known_trip_count`."""
    return known_trip_count(module, computation, loop) or 1


def known_trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Returns the trip count of a `while`; None if the text does not state it.

    - `computation`: the computation that contains the `while`.
    - `loop`: the `while`.
    """
    stated = _TRIPS.search(loop.attributes)
    return int(stated["count"]) if stated is not None else _counted(module, computation, loop)


def _called(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[str, int]]:
    """Yields the name of each computation that an instruction runs, and how often it runs."""
    for role in _ROLES:
        name = instruction.computation(role)
        if name in module.computations:
            yield name, trip_count(module, computation, instruction) if role == "body" else 1
    for name in instruction.branches:
        if name in module.computations:
            yield name, 1


def _counted(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Returns the trip count of a `while` that counts up from a constant to a constant; None for
    other loops."""
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
    """Returns the increment of a loop's counter in the body; 1 if the text does not state it. It
    exceeds 1 in a loop that XLA has unrolled.

    - `place`: the element of the loop's state that holds the counter.
    """
    body = module.computations.get(loop.computation("body"))
    if body is None or not body.instructions or body.root.opcode != "tuple":
        return 1
    added = body.by_name.get(body.root.operands[place])
    if added is None or added.opcode != "add":
        return 1
    steps = (_constant(body, name) for name in added.operands)
    return next((step for step in steps if step is not None and step > 0), 1)


def _constant(computation: Computation, name: str) -> int | None:
    """Returns the value of an integer constant, also through copies; None for other constants and
    other instructions."""
    instruction = computation.by_name.get(name)
    while instruction is not None and instruction.opcode == "copy":
        instruction = computation.by_name.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "constant":
        return None
    is_integer = _INTEGER.fullmatch(instruction.operands[0])
    return int(instruction.operands[0]) if is_integer else None
