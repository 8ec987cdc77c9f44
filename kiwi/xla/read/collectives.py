"""The collectives of an optimised HLO module: kind, mesh axes, count and bytes.

XLA writes replica groups in three notations:

- As lists of devices: `{{0,1},{2,3}}`.
- As an iota (XLA's `IotaReplicaGroupList`): `[2,4]<=[4,2]T(1,0)`. The devices 0, 1, ... in the
  shape on the right are transposed, and reshaped to the shape on the left. Each row is a group.
- As axes of a mesh that XLA defines: `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}`. Without
  `device_ids` the devices are 0, 1, ...

A permutation lists pairs of devices instead.

The axes of *Kiwi's* mesh along which a collective runs follow from its groups: they are compared
with the groups of every subset of axes. Device k of the module is device k of the mesh, row-major.

**Devices in XLA's text** of replica groups, meshes and tile assignments:

- Lists of integers are written out, or as a transposed iota, `[2,4]T(1,0)`.
- Axes refer to a mesh that XLA defines, `mesh['a'=2,'b'=4]`. `'b'` is a whole axis. `'b':(1)2` is
  a part of the axis: its factor of size 2, with factors of product 1 before it. A position is the
  row-major index of a device in this mesh.
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
"""The opcodes of collectives, in the order of tables."""

_SCATTERS = "all-reduce-scatter"
"""The prefix of the names of computations in which XLA:TPU fuses an all-reduce with a slice. Such a
fusion is XLA:TPU's reduce-scatter."""

Groups = frozenset[frozenset[int]]
"""The groups of devices of a collective."""

Axes = tuple[str, ...] | None
"""The names of the mesh axes of a collective; None if its groups follow no axes."""

_LIST = re.compile(r"replica_groups=\{(?P<groups>(?:\{[\d,]*\},?)*)\}")

IOTA = r"\[(?P<from>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
"""The pattern of an iota. `iota` reads the matches of patterns that contain it."""

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
    """The number of collectives of one kind, and their bytes.

    - `count`: the number of collectives.
    - `bytes`: the sum of the larger buffer of each collective on one device: the result of an
      all-gather, the operand of a reduce-scatter, the local buffer of the other kinds.
    """

    count: int = 0
    bytes: int = 0

    def __add__(self, other: "CollectiveUse") -> "CollectiveUse":
        return CollectiveUse(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True)
class AxisUse:
    """The collectives of one kind along the same mesh axes.

    - `kind`: a member of `COLLECTIVE_KINDS`.
    - `axes`: the names of the axes in the order of the mesh; None if the groups follow no axes.
    - `count`, `bytes`: as in `CollectiveUse`.
    """

    kind: str
    axes: Axes
    count: int
    bytes: int


def read_axis_uses(
    module: Module, mesh_shape: Sequence[int], axis_names: Sequence[str]
) -> tuple[AxisUse, ...]:
    """Returns the collectives of an optimised HLO module, largest first.

    - A collective inside a loop counts once per iteration, if XLA states the trip count
      (`kiwi.xla.read.hlo_text`).
    - An asynchronous collective counts at its start instruction.
    - A collective over groups of a single device does not count.
    - A collective that several kernels move in parts (async collective fusion) counts once.
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
    """Returns the number of a collective's channel as text; None if it has none."""
    match = _CHANNEL.search(instruction.attributes)
    return None if match is None else match[1]


def _fused(module: Module) -> frozenset[str]:
    """Returns the names of the computations of all fusions."""
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
    """Reads the collective instructions of a module.

    - `mesh_shape`, `axis_names`: the mesh whose devices the module names. A collective runs along
      the axes along which the devices of its groups differ.
    """

    def __init__(self, mesh_shape: Sequence[int], axis_names: Sequence[str]) -> None:
        self._shape, self._names = tuple(mesh_shape), tuple(axis_names)
        self._device_count = prod(mesh_shape)
        self._known: dict[Groups, tuple[str, ...]] = {}
        real = [axis for axis, size in enumerate(mesh_shape) if size > 1]
        for count in range(len(real) + 1):
            for axes in itertools.combinations(real, count):
                self._known[self._groups(axes)] = tuple(axis_names[number] for number in axes)

    def __call__(self, instruction: Instruction, computation: str) -> AxisUse | None:
        """Returns the collective that an instruction starts.

        The result is None if the instruction is no collective, the done of an asynchronous one, or
        a collective over groups of a single device.

        - `computation`: the name of the computation that contains the instruction.
        """
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
    """Returns the pairs of source and target devices of a permutation; None if the text lists
    none."""
    match = _PAIRS.search(line)
    pairs = None if match is None else re.findall(r"\{(\d+,\d+)\}", match["pairs"])
    return None if pairs is None else list(map(integers, pairs))


def axis_uses(found: Iterable[AxisUse]) -> tuple[AxisUse, ...]:
    """Returns the sum of all uses of the same kind and axes, largest first."""
    sums: defaultdict[tuple[str, Axes], CollectiveUse] = defaultdict(CollectiveUse)
    for use in found:
        sums[use.kind, use.axes] += CollectiveUse(use.count, use.bytes)
    uses = [AxisUse(*key, use.count, use.bytes) for key, use in sums.items()]
    return tuple(
        sorted(uses, key=lambda axis_use: (-axis_use.bytes, axis_use.kind, axis_use.axes or ()))
    )


def by_kind(uses: Sequence[AxisUse]) -> dict[str, CollectiveUse]:
    """Returns, for each kind that occurs, the sum over all axes, in the order of
    `COLLECTIVE_KINDS`."""
    sums: defaultdict[str, CollectiveUse] = defaultdict(CollectiveUse)
    for use in uses:
        sums[use.kind] += CollectiveUse(use.count, use.bytes)
    return {kind: sums[kind] for kind in COLLECTIVE_KINDS if kind in sums}


def replica_groups(line: str, device_count: int) -> Groups:
    """Returns the groups of devices of one instruction.

    An instruction that names no groups has one group of all devices. The result is empty if the
    notation is unknown.
    """
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
    """Yields the groups of devices whose positions differ along the named axes only."""
    sizes = mesh_sizes(match["mesh"])
    position = np.arange(prod(sizes.values()))
    group = position.copy()
    for part in axis_parts(match["axes"], sizes):
        group -= part.stride * part.of(position)
    devices = _mesh_devices(match["devices"], len(position))
    for number in np.unique(group):
        yield frozenset(devices[group == number].tolist())


def _mesh_devices(text: str | None, count: int) -> np.ndarray:
    """Returns the devices of a mesh in row-major order: from a list or an iota, else 0, 1, ..."""
    if text is None:
        return np.arange(count)
    iota_match = _DEVICES.search(text)
    return np.array(integers(text)) if iota_match is None else iota(iota_match).ravel()


def _buffer_bytes(kind: str, instruction: Instruction, device_count: int) -> int:
    """Returns the bytes of the larger buffer of a collective on one device, see `CollectiveUse`."""
    arrays = [array.bytes for array in instruction.arrays]
    if instruction.opcode.endswith("-start") and kind != "all-reduce":
        return _start_bytes(kind, arrays)
    if kind == "reduce-scatter":
        sizes = map(len, replica_groups(instruction.attributes, device_count))
        return sum(arrays) * max(sizes, default=1)
    return sum(arrays)


def _start_bytes(kind: str, arrays: Sequence[int]) -> int:
    """Returns the bytes of the larger buffer of an asynchronous collective, other than an
    all-reduce. The result of its start is a tuple (operands..., results..., contexts...), whose
    arrays have the sizes `arrays`."""
    if kind == "collective-permute":
        return max(arrays, default=0)
    half = len(arrays) // 2
    return sum(arrays[:half]) if kind == "reduce-scatter" else sum(arrays[half:])


def iota(match: re.Match[str]) -> np.ndarray:
    """Returns the integers 0, 1, ... in the shape `from` of a match, transposed by its `order`."""
    source = integers(match["from"])
    order = integers(match["order"]) if match["order"] else range(len(source))
    return np.arange(prod(source)).reshape(source).transpose(tuple(order))


def integers(text: str) -> list[int]:
    """Returns the integers of a text like `1,2,3`."""
    return [int(number) for number in text.split(",") if number]


@dataclass(frozen=True)
class AxisPart:
    """A part of an axis: `size` places, with `stride` positions from one place to the next."""

    stride: int
    size: int

    def of(self, position: np.ndarray) -> np.ndarray:
        """Returns the place of each position along the part."""
        return position // self.stride % self.size


def mesh_sizes(text: str) -> dict[str, int]:
    """Returns the size of each axis that a mesh's text names, in the order of the mesh."""
    return {name: int(size) for name, size in _AXIS.findall(text)}


def axis_parts(text: str, sizes: dict[str, int]) -> Iterator[AxisPart]:
    """Yields the axes, or parts of axes, that a text names. `sizes`: the axes of the mesh."""
    strides, behind = {}, 1
    for name in reversed(sizes):
        strides[name], behind = behind, behind * sizes[name]
    for match in _PART.finditer(text):
        whole = sizes[match["axis"]]
        before, size = int(match["before"] or 1), int(match["size"] or whole)
        yield AxisPart(strides[match["axis"]] * (whole // (before * size)), size)
