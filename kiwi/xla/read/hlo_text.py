"""XLA's text of an HLO module: its computations, and their instructions in the order of the
schedule."""

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
    """An array of a type.

    - `space`: the number (color) of the memory that it lies in.
    - `layout`: as XLA writes it.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0
    layout: str = ""

    @property
    def elements(self) -> int:
        """How many it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Without the padding of tiles."""
        return self.elements * item_bits(self.dtype) // 8

    @property
    def stored_bytes(self) -> int:
        """With the padding of tiles: of the minor dimensions, to multiples of the first tile."""
        found = _TILED.match(self.layout)
        if found is None:
            return self.bytes
        order, tile = ([*map(int, found[name].split(","))] for name in found.groupdict())
        shape = list(self.shape)
        for dimension, size in zip(order, reversed(tile), strict=False):
            shape[dimension] = -(-shape[dimension] // size) * size
        return math.prod(shape) * item_bits(self.dtype) // 8


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction. `attributes` is what stands behind its operands."""

    name: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    result_type: str
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Those of its result, which is a tuple or one array."""
        return tuple(arrays_of(self.result_type))

    @property
    def bytes(self) -> int:
        """Those of its result."""
        return sum(array.bytes for array in self.arrays)

    @property
    def stored_bytes(self) -> int:
        """The same with the padding of tiles."""
        return sum(array.stored_bytes for array in self.arrays)

    def computation(self, role: str) -> str:
        """The name of the computation that it runs as `body`, `calls` and so on; "" if none."""
        return self._computations.get(role, "")

    @functools.cached_property
    def _computations(self) -> Mapping[str, str]:
        """The first of each role; attributes may be long."""
        return dict(reversed(_COMPUTATION.findall(self.attributes)))

    @property
    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional."""
        found = _BRANCHES.search(self.attributes)
        if found is not None:
            return tuple(name.strip().lstrip("%") for name in found["names"].split(","))
        roles = "true_computation", "false_computation"
        return tuple(name for role in roles if (name := self.computation(role)))


@dataclass(frozen=True, eq=False)
class Computation:
    """A computation's instructions, in the order of the schedule."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def root(self) -> Instruction:
        """The one whose result is the computation's."""
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """Its instructions."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def readers(self) -> Mapping[str, tuple[Instruction, ...]]:
        """By name, the instructions that read an instruction's result."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return {name: tuple(readers) for name, readers in found.items()}

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """In the order of their numbers."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: int(i.operands[0])))


@dataclass(frozen=True, eq=False)
class Module:
    """The computations of a module, by name; `entry` is the one that it runs."""

    computations: Mapping[str, Computation]
    entry: Computation


def parse_module(text: str) -> Module:
    """Reads XLA's text of a module."""
    found: dict[str, Computation] = {}
    entry = Computation("", ())
    for name, is_entry, lines in _blocks(text):
        found[name] = Computation(name, tuple(_instructions(lines)))
        entry = found[name] if is_entry or not entry.instructions else entry
    return Module(found, entry)


def arrays_of(text: str) -> Iterator[Array]:
    """The arrays of a type, in order."""
    for match in _ARRAY.finditer(text):
        shape = tuple(int(size) for size in match["shape"].split(",") if size)
        layout = match["layout"] or ""
        space = _SPACE.search(layout)
        yield Array(match["dtype"], shape, 0 if space is None else int(space[1]), layout)


def item_bits(dtype: str) -> int:
    """Of an element, by XLA's name of a type."""
    digits = re.search(r"\d+", dtype)
    return _ITEM_BITS.get(dtype, 0 if digits is None else int(digits.group()))


def _blocks(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Each computation's name, whether it is the entry, and its lines; those outside of any
    computation are of `OUTSIDE`."""
    name, is_entry, lines = "", False, []
    outside: list[str] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            name, is_entry, lines = header["name"], header["entry"] is not None, []
        elif line == "}" and name:
            yield name, is_entry, lines
            name = ""
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
    """The instructions that XLA leaves out where it writes an element of a tuple as `tuple#0`."""
    for name in names:
        source, _, place = name.partition("#")
        if source in types and name not in types:
            arrays = [array.group() for array in _ARRAY.finditer(types[source])]
            types[name] = own = "".join(arrays[int(place) :][:1])
            yield Instruction(name, "get-tuple-element", (source,), f"index={place}", own, False)


def _names(operands: str) -> tuple[str, ...]:
    """Those of operands; XLA leaves the signs out where a program is not optimised."""
    return tuple((_NAMES if "%" in operands else _BARE_NAMES).findall(operands))
