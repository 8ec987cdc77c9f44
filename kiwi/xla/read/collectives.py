"""The collectives of an optimised HLO module: kind, mesh axes, count and bytes.

Replica groups come in three spellings: as lists of devices, `{{0,1},{2,3}}`; as an iota,
`[2,4]<=[4,2]T(1,0)` (XLA's `IotaReplicaGroupList`: 0, 1, ... in the shape on the right,
transposed, read as the shape on the left, one group a row); and as axes of a mesh of XLA's own,
`mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}`, with the devices 0, 1, ... where none are
listed. A permutation lists pairs of devices.

What axes of *our* mesh a collective runs along follows from its groups: those are compared with
the groups of every subset of axes. Device k of the module is device k of the mesh, row-major.

**Devices in XLA's text**, of replica groups, meshes and tile assignments:

- Lists of integers, written out, or as a transposed iota, `[2,4]T(1,0)`.
- Axes of meshes of XLA's own: `mesh['a'=2,'b'=4]`, with `'b'` for a whole axis and `'b':(1)2` for a
  part: the one of size 2 that has 1 before it when the axis is split. A position is a device's
  place in the mesh, row-major.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from kiwi.xla.read.hlo_text import Instruction, Module, runs

COLLECTIVE_KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)

_SCATTERS = "all-reduce-scatter"
"""Names of the computations into which XLA:TPU fuses an all-reduce and a slice: its
reduce-scatter."""

Groups = frozenset[frozenset[int]]
Axes = tuple[str, ...] | None

_LIST = re.compile(r"replica_groups=\{(?P<groups>(?:\{[\d,]*\},?)*)\}")

IOTA = r"\[(?P<from>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
"""The pattern of an iota, for patterns whose matches `iota` reads."""


_IOTA = re.compile(r"replica_groups=\[(?P<shape>[\d,]+)\]<=" + IOTA)
_MESH = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\((?P<devices>[^{]*)\))?"
    r"\s*\{(?P<axes>[^}]*)\}"
)
_DEVICES = re.compile(IOTA)
_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>(?:\{\d+,\d+\},?)*)\}")
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")

_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PART = re.compile(r"'(?P<axis>[^']*)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")


@dataclass(frozen=True)
class CollectiveUse:
    """How often one kind of collective occurs, and its bytes.

    `bytes` sums the larger buffer of one device over all occurrences: the result of an
    all-gather, the input of a reduce-scatter, the local buffer of the others.
    """

    count: int = 0
    bytes: int = 0

    def __add__(self, other: "CollectiveUse") -> "CollectiveUse":
        return CollectiveUse(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True)
class AxisUse:
    """The collectives of one kind along the same mesh axes. `axes` are names in the order of the
    mesh; None if the groups follow no axes."""

    kind: str
    axes: Axes
    count: int
    bytes: int


def read_axis_uses(
    module: Module, mesh_shape: Sequence[int], axis_names: Sequence[str]
) -> tuple[AxisUse, ...]:
    """The collectives of an optimised HLO module, largest first.

    One inside a loop counts once for each iteration that XLA knows of (`kiwi.xla.read.hlo_text`),
    an asynchronous one at its start, one over groups of a single device not at all, and one that
    stands in several kernels, each of which moves a part of it (async collective fusion), once.
    """
    read, times = CollectiveReader(mesh_shape, axis_names), runs(module)
    uses, fusions, seen_channels = [], _fused(module), set[str]()
    for name, computation in module.computations.items():
        for instruction in computation.instructions:
            use = read(instruction, name)
            channel = channel_of(instruction) if name in fusions else None
            if use is None or channel in seen_channels:
                continue
            seen_channels |= {channel} - {None}
            uses.append(AxisUse(use.kind, use.axes, times[name], times[name] * use.bytes))
    return axis_uses(uses)


def channel_of(instruction: Instruction) -> str | None:
    """The number of a collective's channel; None if it has none."""
    match = _CHANNEL.search(instruction.attributes)
    return None if match is None else match[1]


def _fused(module: Module) -> frozenset[str]:
    """The computations of fusions."""
    instructions = (
        instruction
        for computation in module.computations.values()
        for instruction in computation.instructions
    )
    return frozenset(
        instruction.computation("calls")
        for instruction in instructions
        if instruction.opcode == "fusion"
    )


class CollectiveReader:
    """Reads collective instructions of a module for the devices of a mesh, with the axes along
    which the devices of their groups differ."""

    def __init__(self, mesh_shape: Sequence[int], axis_names: Sequence[str]) -> None:
        self._shape, self._names = tuple(mesh_shape), tuple(axis_names)
        self._device_count = prod(mesh_shape)
        self._known: dict[Groups, tuple[str, ...]] = {}
        real = [axis for axis, size in enumerate(mesh_shape) if size > 1]
        for count in range(len(real) + 1):
            for axes in itertools.combinations(real, count):
                self._known[self._groups(axes)] = tuple(axis_names[number] for number in axes)

    def __call__(self, instruction: Instruction, computation: str) -> AxisUse | None:
        """One use; None for an instruction that is no collective, is the end of one, or is over
        single devices."""
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVE_KINDS:
            return None
        axes = self._axes_of(kind, instruction.attributes)
        if axes == ():
            return None
        size = _buffer_bytes(kind, instruction, self._device_count)
        if kind == "all-reduce" and computation.startswith(_SCATTERS):
            kind = "reduce-scatter"
        return AxisUse(kind, axes, 1, size)

    def _axes_of(self, kind: str, line: str) -> Axes:
        if kind == "collective-permute":
            return self._of_pairs(line)
        return self._known.get(replica_groups(line, self._device_count))

    def _groups(self, axes: Sequence[int]) -> Groups:
        other_axes = [axis for axis in range(len(self._shape)) if axis not in axes]
        devices = np.arange(self._device_count).reshape(self._shape).transpose([*other_axes, *axes])
        rows = devices.reshape(-1, prod(self._shape[axis] for axis in axes))
        return frozenset(frozenset(row) for row in rows.tolist())

    def _of_pairs(self, line: str) -> Axes:
        pairs = device_pairs(line)
        if pairs is None:
            return None
        moved: set[int] = set()
        for pair in pairs:
            source, target = (np.unravel_index(device, self._shape) for device in pair)
            moved |= {
                axis
                for axis, (source_place, target_place) in enumerate(
                    zip(source, target, strict=True)
                )
                if source_place != target_place
            }
        return tuple(self._names[axis] for axis in sorted(moved))


def device_pairs(line: str) -> list[list[int]] | None:
    """The devices that a permutation sends from and to; None if it lists none."""
    match = _PAIRS.search(line)
    pairs = None if match is None else re.findall(r"\{(\d+,\d+)\}", match["pairs"])
    return None if pairs is None else list(map(integers, pairs))


def axis_uses(found: Iterable[AxisUse]) -> tuple[AxisUse, ...]:
    """The sum of all uses of equal kind and axes, largest first."""
    sums: defaultdict[tuple[str, Axes], CollectiveUse] = defaultdict(CollectiveUse)
    for use in found:
        sums[use.kind, use.axes] += CollectiveUse(use.count, use.bytes)
    uses = [AxisUse(*key, use.count, use.bytes) for key, use in sums.items()]
    return tuple(
        sorted(uses, key=lambda axis_use: (-axis_use.bytes, axis_use.kind, axis_use.axes or ()))
    )


def by_kind(uses: Sequence[AxisUse]) -> dict[str, CollectiveUse]:
    """The sum over axes, in the order of `COLLECTIVE_KINDS`."""
    sums: defaultdict[str, CollectiveUse] = defaultdict(CollectiveUse)
    for use in uses:
        sums[use.kind] += CollectiveUse(use.count, use.bytes)
    return {kind: sums[kind] for kind in COLLECTIVE_KINDS if kind in sums}


def replica_groups(line: str, device_count: int) -> Groups:
    """The groups of devices of one instruction: one group of all devices if it names none; no
    groups if their notation is unknown."""
    if "replica_groups=" not in line:
        return frozenset([frozenset(range(device_count))])
    for pattern, read in ((_IOTA, _iota_groups), (_MESH, _mesh_groups), (_LIST, _list_groups)):
        match = pattern.search(line)
        if match is not None:
            groups = frozenset(read(match))
            return groups or frozenset([frozenset(range(device_count))])
    return frozenset()


def _list_groups(match: re.Match[str]) -> Iterator[frozenset[int]]:
    for group in re.findall(r"\{([\d,]+)\}", match["groups"]):
        yield frozenset(integers(group))


def _iota_groups(match: re.Match[str]) -> Iterator[frozenset[int]]:
    for group in iota(match).reshape(integers(match["shape"])):
        yield frozenset(np.ravel(group).tolist())


def _mesh_groups(match: re.Match[str]) -> Iterator[frozenset[int]]:
    """The groups of devices whose positions differ along the named axes."""
    sizes = mesh_sizes(match["mesh"])
    position = np.arange(prod(sizes.values()))
    group = position.copy()
    for part in axis_parts(match["axes"], sizes):
        group -= part.stride * part.of(position)
    devices = _mesh_devices(match["devices"], len(position))
    for number in np.unique(group):
        yield frozenset(devices[group == number].tolist())


def _mesh_devices(text: str | None, count: int) -> np.ndarray:
    """The devices of a mesh in its row-major order: as an iota, as a list, or 0, 1, ..."""
    if text is None:
        return np.arange(count)
    iota_match = _DEVICES.search(text)
    return np.array(integers(text)) if iota_match is None else iota(iota_match).ravel()


def _buffer_bytes(kind: str, instruction: Instruction, device_count: int) -> int:
    arrays = [array.bytes for array in instruction.arrays]
    if instruction.opcode.endswith("-start") and kind != "all-reduce":
        return _start_bytes(kind, arrays)
    if kind == "reduce-scatter":
        sizes = map(len, replica_groups(instruction.attributes, device_count))
        return sum(arrays) * max(sizes, default=1)
    return sum(arrays)


def _start_bytes(kind: str, arrays: Sequence[int]) -> int:
    """The result of these starts is (operands..., results..., contexts...). That of an all-reduce
    is its results alone."""
    if kind == "collective-permute":
        return max(arrays, default=0)
    half = len(arrays) // 2
    return sum(arrays[:half]) if kind == "reduce-scatter" else sum(arrays[half:])


def iota(match: re.Match[str]) -> np.ndarray:
    """0, 1, ... in the shape `from`, transposed by `order`."""
    source = integers(match["from"])
    order = integers(match["order"]) if match["order"] else range(len(source))
    return np.arange(prod(source)).reshape(source).transpose(tuple(order))


def integers(text: str) -> list[int]:
    """The numbers of a text like `1,2,3`."""
    return [int(number) for number in text.split(",") if number]


@dataclass(frozen=True)
class AxisPart:
    """A part of an axis: `stride` positions lie between two neighbours along it."""

    stride: int
    size: int

    def of(self, position: np.ndarray) -> np.ndarray:
        """The place of each position along the part."""
        return position // self.stride % self.size


def mesh_sizes(text: str) -> dict[str, int]:
    """The size of each axis, in the order of the mesh."""
    return {name: int(size) for name, size in _AXIS.findall(text)}


def axis_parts(text: str, sizes: dict[str, int]) -> Iterator[AxisPart]:
    """The axes that a text names, or parts of axes."""
    strides, behind = {}, 1
    for name in reversed(sizes):
        strides[name], behind = behind, behind * sizes[name]
    for match in _PART.finditer(text):
        whole = sizes[match["axis"]]
        before, size = int(match["before"] or 1), int(match["size"] or whole)
        yield AxisPart(strides[match["axis"]] * (whole // (before * size)), size)
