"""The shardings of a program's instructions, read from XLA's text after Shardy has propagated them.

    %add.7 = f32[64,256]{1,0} add(%a, %b), sharding={devices=[8,1]<=[8]}, metadata={op_name="…"}

A tile assignment `devices=[t0,t1,…]<=[d0,d1,…]T(p0,p1,…)` cuts dimension k of the tensor into `tk`
parts. The devices 0, 1, … are reshaped to `d`, transposed by `p` and reshaped to `t`; the place of
a device in the result is its part (`xla/hlo/ir/tile_assignment.h`). Tile dimensions beyond the rank
of the tensor replicate it.

XLA of jax 0.11 writes names instead (`xla/hlo/ir/named_sharding.h`):

    sharding={mesh['x'=2,'y'=4], [{'y'}, {'x':(1)2}]}

Each dimension lists the axes that cut it, or parts of axes, major first.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.xla.read.collectives import IOTA, axis_parts, integers, iota, mesh_sizes

_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%\S+ = \w+\[(?P<shape>[\d,]*)\]\S* (?P<opcode>[\w-]+)\((?P<operands>[^)]*)\)"
    r"(?P<rest>.*)$"
)
_SHARDING = re.compile(r"sharding=\{(?P<sharding>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_INDEX = re.compile(r", index=(\d+)")
_OP_NAME = re.compile(r'op_name="(?P<name>[^"]*)"')
_NAMED = re.compile(r"mesh\[(?P<mesh>[^\]]*)\], (?P<dims>replicated|\[.*?\])")
_DIMENSION = re.compile(r"\{([^{}]*)\}")
_TILES = re.compile(r"devices=\[(?P<tiles>[\d,]+)\](?:<=" + IOTA + r"|(?P<devices>[\d,]+))")


@dataclass(frozen=True)
class ShardedInstruction:
    """An instruction whose result is one array.

    - `opcode`, `shape`: the opcode of the instruction, and the global shape of its result.
    - `op_name`: the metadata of the instruction; "" if there is none.
    - `sharding`: XLA's text of the sharding.
    - `position`: the number of a parameter, or the index of a `get-tuple-element`; else None.
    """

    opcode: str
    shape: tuple[int, ...]
    op_name: str
    sharding: str
    position: int | None


def instructions(text: str) -> Iterator[ShardedInstruction]:
    """Yields the instructions of a module's text in order. The entry computation comes last.

    Instructions with a tuple as their result are left out, and so are the parameters of other
    computations than the entry. An instruction without a sharding counts as replicated.
    """
    is_entry = False
    for line in text.splitlines():
        is_entry = is_entry or line.startswith("ENTRY ")
        match = _INSTRUCTION.match(line)
        if match is not None and (is_entry or match["opcode"] != "parameter"):
            name, sharding = _OP_NAME.search(match["rest"]), _SHARDING.search(match["rest"])
            yield ShardedInstruction(
                match["opcode"],
                tuple(integers(match["shape"])),
                "" if name is None else name["name"],
                "replicated" if sharding is None else sharding["sharding"],
                _position(match),
            )


def _position(found: re.Match[str]) -> int | None:
    if found["opcode"] == "parameter":
        return int(found["operands"])
    index = _INDEX.search(found["rest"]) if found["opcode"] == "get-tuple-element" else None
    return None if index is None else int(index[1])


def tensor_sharding(sharding: str, rank: int, mesh: DeviceMesh) -> TensorSharding | None:
    """Returns the sharding that a text describes, in axes of the mesh; None if whole axes cannot
    express it.

    - `sharding`: XLA's text of the sharding.
    - `rank`: the rank of the tensor.
    """
    named = _NAMED.match(sharding)
    if sharding.startswith("replicated") or (named and named["dims"] == "replicated"):
        return TensorSharding(((),) * rank)
    parts = _named_parts(named, mesh) if named else _tiled_parts(_TILES.match(sharding), mesh)
    if parts is None or parts.shape[-1] < rank:
        return None
    dims = [_axes_of(parts[..., dimension], mesh) for dimension in range(rank)]
    whole_axes = tuple(axes for axes in dims if axes is not None)
    return TensorSharding(whole_axes) if len(whole_axes) == rank else None


def _tiled_parts(found: re.Match[str] | None, mesh: DeviceMesh) -> np.ndarray | None:
    """Returns the part of each device along each tile dimension, from a tile assignment. The shape
    is (*mesh.shape, tile dimensions), the dtype int; None without a match."""
    if found is None:
        return None
    tiles, written = integers(found["tiles"]), found["devices"]
    devices = iota(found).ravel() if written is None else np.array(integers(written))
    parts = np.empty((mesh.size, len(tiles)), int)
    parts[devices] = np.indices(tiles).reshape(len(tiles), -1).T
    return parts.reshape(*mesh.shape, len(tiles))


def _named_parts(found: re.Match[str], mesh: DeviceMesh) -> np.ndarray | None:
    """Returns the same array as `_tiled_parts`, from names of axes; None if their mesh has another
    number of devices."""
    sizes = mesh_sizes(found["mesh"])
    if prod(sizes.values()) != mesh.size:
        return None
    position = np.arange(mesh.size).reshape(mesh.shape)
    parts = []
    for cuts in _DIMENSION.findall(found["dims"]):
        along = np.zeros_like(position)
        for part in axis_parts(cuts, sizes):
            along = along * part.size + part.of(position)
        parts.append(along)
    return np.stack(parts, axis=-1)


def _axes_of(part: np.ndarray, mesh: DeviceMesh) -> tuple[int, ...] | None:
    """Returns the mesh axes that cut a dimension, major first; None if no sequence of whole axes
    yields these parts.

    - `part`: the part of each device along the dimension, in the shape of the mesh.
    """
    origin = (0,) * part.ndim
    steps = {}
    for axis in mesh.nontrivial_axes:
        step = int(part[(*origin[:axis], 1, *origin[axis + 1 :])] - part[origin])
        if step:
            steps[axis] = step
    axes = tuple(sorted(steps, key=lambda axis: -abs(steps[axis])))
    expected = np.zeros_like(part)
    for axis in axes:
        shape = [-1 if dimension == axis else 1 for dimension in range(part.ndim)]
        expected = expected * mesh.shape[axis] + np.arange(mesh.shape[axis]).reshape(shape)
    return axes if np.array_equal(expected, part) else None
