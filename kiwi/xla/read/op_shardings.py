"""The shardings of a program's instructions, in XLA's text after Shardy has propagated them.

    %add.7 = f32[64,256]{1,0} add(%a, %b), sharding={devices=[8,1]<=[8]}, metadata={op_name="…"}

A tile assignment `devices=[t0,t1,…]<=[d0,d1,…]T(p0,p1,…)` cuts dimension k of the tensor into `tk`
parts; which device gets which part is the iota of all devices, reshaped to `d`, transposed by `p`
and reshaped to `t` (`xla/hlo/ir/tile_assignment.h`). Trailing tile dimensions replicate.

XLA of jax 0.11 writes names instead (`xla/hlo/ir/named_sharding.h`):

    sharding={mesh['x'=2,'y'=4], [{'y'}, {'x':(1)2}]}

for each dimension the axes that cut it, or parts of them, major first.
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
    """An instruction with one array as its result. `position` is the number of a parameter, or of
    the element taken from a tuple."""

    opcode: str
    shape: tuple[int, ...]
    op_name: str
    sharding: str
    position: int | None


def instructions(text: str) -> Iterator[ShardedInstruction]:
    """The instructions of a module's computations, in order, with those of the entry computation
    last. Tuples are left out.

    A value that Shardy leaves without a sharding is replicated.
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
    """A sharding's text in axes of the mesh; None if it cannot be expressed in them."""
    named = _NAMED.match(sharding)
    if sharding.startswith("replicated") or (named and named["dims"] == "replicated"):
        return TensorSharding(((),) * rank)
    parts = _named_parts(named, mesh) if named else _tiled_parts(_TILES.match(sharding), mesh)
    if parts is None or parts.shape[-1] < rank:
        return None
    dims = [_axes_of(parts[..., k], mesh) for k in range(rank)]
    whole_axes = tuple(axes for axes in dims if axes is not None)
    return TensorSharding(whole_axes) if len(whole_axes) == rank else None


def _tiled_parts(found: re.Match[str] | None, mesh: DeviceMesh) -> np.ndarray | None:
    """For each device, in the mesh's shape, its part along each tile dimension."""
    if found is None:
        return None
    tiles, written = integers(found["tiles"]), found["devices"]
    devices = iota(found).ravel() if written is None else np.array(integers(written))
    parts = np.empty((mesh.size, len(tiles)), int)
    parts[devices] = np.indices(tiles).reshape(len(tiles), -1).T
    return parts.reshape(*mesh.shape, len(tiles))


def _named_parts(found: re.Match[str], mesh: DeviceMesh) -> np.ndarray | None:
    """`_tiled_parts` from names of axes; None if they are of another number of devices."""
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
    """The mesh axes along which a dimension is cut, major first, from every device's part of it.
    None if no sequence of whole axes cuts it so."""
    origin = (0,) * part.ndim
    steps = {}
    for axis in mesh.nontrivial_axes:
        step = int(part[(*origin[:axis], 1, *origin[axis + 1 :])] - part[origin])
        if step:
            steps[axis] = step
    axes = tuple(sorted(steps, key=lambda axis: -abs(steps[axis])))
    expected = np.zeros_like(part)
    for axis in axes:
        shape = [-1 if k == axis else 1 for k in range(part.ndim)]
        expected = expected * mesh.shape[axis] + np.arange(mesh.shape[axis]).reshape(shape)
    return axes if np.array_equal(expected, part) else None
