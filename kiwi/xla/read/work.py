"""The computation and memory traffic of a compiled program's instructions, read from XLA's text.

Operations are counted as in XLA's `HloCostAnalysis`. A matmul or convolution has two for each
product, without products of padding. An elementwise function has one for each element.

The traffic of a kernel is the bytes of its operands and results. If the kernel slices an operand,
only the slice counts, also if maps precede the slice. If the kernel updates a result in place (also
by a scatter), only the update counts.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

import numpy as np

from kiwi.hlo.costs import FREE_OPCODES
from kiwi.xla.read.collectives import COLLECTIVE_KINDS
from kiwi.xla.read.hlo_text import Array, Computation, Instruction, Module

RUNS_NOTHING = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "opt-barrier",
        "partition-id",
        "replica-id",
        "add-dependency",
    }
)
"""Opcodes of instructions that run no kernel."""

_SCALARS, _SCALARS_BYTES = 3, 64
"""The most elements of a result, and the most bytes moved, of an instruction that computes scalars.
Beyond either limit the instruction counts as a kernel."""

_SECTOR_BYTES = 32
"""The smallest transfer of device memory: a sector on GPUs, a burst on TPUs."""

_FREE = RUNS_NOTHING | {opcode.replace("_", "-") for opcode in FREE_OPCODES}
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_UPDATE, _SCATTER = "dynamic-update-slice", "scatter"
_UPDATED_BY = {_UPDATE: 1, _SCATTER: 2}
"""By opcode, the position of the operand that an update in place writes into the result."""

_READ_ELSEWHERE = frozenset(
    {
        *_UPDATED_BY,
        "call",
        "conditional",
        "convolution",
        "custom-call",
        "dot",
        "fft",
        "fusion",
        "reduce-window",
        "sort",
        "while",
    }
)
"""Opcodes of instructions whose result elements depend on more than the corresponding element of an
operand of the same size."""

_NUMPY = {"f": "float", "s": "int", "u": "uint", "c": "complex"}
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)(?P<dims>[\d,"]*)')
_WINDOW = re.compile(r"window=\{(?P<window>[^}]*)\}")
_LABELS = re.compile(r"dim_labels=(?P<lhs>\w+)_(?P<rhs>\w+)->(?P<out>\w+)")
_GROUPS = re.compile(r"(?P<kind>feature|batch)_group_count=(?P<count>\d+)")
_TARGET = re.compile(r'custom_call_target="(?P<target>[^"]*)"')
_TILE = re.compile(r'"output_tiles":\[\{"sizes":\["(?P<sizes>[^\]]*)"\]')
_STRIDED = 150.0
"""The operations charged for each element of a row reduction whose tile in XLA:GPU spans several
matrices, divided by the number of rows of the tile. Such kernels are softmaxes under a causal mask,
whose tiles span the heads. They take longer than their traffic."""
_MATMUL_CALLS, _CONVOLUTION_CALLS = ("__cublas",), ("__cudnn$conv",)
_KERNEL_CALLS = ("tpu_custom_call", "__cudnn$fmha", "__gpu$xla.gpu.triton", "mosaic_gpu")
_IDLE_CALLS = frozenset({"AllocateBuffer", "AsyncCollectiveStart", "AsyncCollectiveDone"})


@dataclass(frozen=True)
class Work:
    """The work of one run of an instruction.

    - `matmul_flops`, `convolution_flops`: FLOPs by numpy's name of the operands' dtype. XLA:TPU
      writes matmuls as convolutions, too.
    - `operations`: the operations of elementwise functions and reductions, by numpy's name of the
      dtype of their largest array.
    - `moved_bytes`: the bytes read and written.
    - `kernels`: the number of library kernels whose work XLA does not know.
    - `elements`: the number of elements of the largest result.
    """

    matmul_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    convolution_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    operations: Mapping[str, float] = field(default_factory=dict, hash=False)
    moved_bytes: int = 0
    kernels: int = 0
    elements: int = 0

    @property
    def is_scalar(self) -> bool:
        """Whether the instruction does not count as a kernel: it computes nothing, or a few
        scalars, which XLA:TPU computes one by one and XLA:GPU together with others."""
        is_small = self.moved_bytes <= _SCALARS_BYTES and self.elements <= _SCALARS
        return not self.kernels and is_small


NO_WORK = Work()
"""The work of an instruction that runs no kernel."""


class ModuleWork:
    """Computes the work of a module's instructions, and caches the work of each fusion."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, Work] = {}
        self._shares: dict[str, float] = {}

    def of(self, instruction: Instruction, computation: Computation) -> Work:
        """Returns the work of an instruction that runs as a kernel.

        The result has no meaning for loops, collectives and instructions inside a fusion.

        - `computation`: the computation that contains the instruction.
        """
        if instruction.opcode in RUNS_NOTHING or _is_idle(instruction):
            return NO_WORK
        moved_bytes = self._moved_bytes(instruction, computation)
        elements = max((array.elements for array in instruction.arrays), default=0)
        computed = self._computed(instruction, computation)
        return replace(computed, moved_bytes=moved_bytes, elements=elements)

    def _computed(self, instruction: Instruction, computation: Computation) -> Work:
        called = instruction.computation("calls")
        if called in self._module.computations:
            fused_work = self._inside(called)
            strided_operations = _strided(instruction, self._module.computations[called])
            return replace(
                fused_work, operations=_summed((fused_work.operations, strided_operations))
            )
        flops = matmul_flops(instruction, computation)
        if flops:
            counted = {_multiplied_dtype(instruction, computation): flops}
            is_convolution = _is_convolution(instruction)
            return Work(convolution_flops=counted) if is_convolution else Work(counted)
        if _target(instruction).startswith(_KERNEL_CALLS):
            return Work(kernels=1)
        if instruction.opcode in _FREE or instruction.opcode == "custom-call":
            return NO_WORK
        largest = max(_all_arrays(instruction, computation), key=lambda array: array.elements)
        return Work(operations={numpy_name(largest.dtype): float(largest.elements)})

    def _inside(self, name: str) -> Work:
        """Returns the work of all instructions of a fusion's computation, without traffic."""
        if name not in self._known:
            computation = self._module.computations[name]
            parts = [
                self._computed(instruction, computation)
                for instruction in computation.instructions
                if instruction.opcode not in _FREE and not is_collective(instruction)
            ]
            self._known[name] = Work(
                _summed(part.matmul_flops for part in parts),
                _summed(part.convolution_flops for part in parts),
                _summed(part.operations for part in parts),
                kernels=sum(part.kernels for part in parts),
            )
        return self._known[name]

    def _moved_bytes(self, instruction: Instruction, computation: Computation) -> int:
        operands = [computation.by_name.get(name) for name in instruction.operands]
        sizes = [0 if operand is None else operand.stored_bytes for operand in operands]
        called = instruction.computation("calls") if instruction.opcode == "fusion" else ""
        if called in self._module.computations:
            inner = self._module.computations[called]
            read = (
                min(size, self.read_bytes(inner, parameter, size))
                for parameter, size in zip(inner.parameters, sizes, strict=False)
            )
            return self._written_bytes(inner, inner.root) + sum(read)
        if instruction.opcode in _UPDATED_BY:
            return 2 * _update_bytes(computation, instruction)
        if instruction.opcode in _SLICES:
            return 2 * instruction.stored_bytes
        return instruction.stored_bytes - _workspace_bytes(instruction) + sum(sizes)

    def read_bytes(self, inner: Computation, value: Instruction, size: int) -> int:
        """Returns the bytes that a fusion reads of a value inside it.

        - `inner`: the computation of the fusion.
        - `value`: a parameter of `inner`, or a map or bitcast of one.
        - `size`: the bytes of the whole value. The result may exceed it, if several instructions
          read the value.
        """
        total = 0
        for reader in inner.readers.get(value.name, ()):
            is_first = reader.operands[0] == value.name
            called = reader.computation("calls")
            is_passed = is_collective(reader) or reader.opcode == "tuple" or _is_idle(reader)
            if is_passed or (reader.opcode == _UPDATE and is_first):
                continue
            if reader.opcode == "bitcast":
                total += self.read_bytes(inner, reader, size)
            elif reader.opcode in _SLICES and is_first:
                total += int(self._read_share(inner, reader) * reader.stored_bytes)
            elif called in self._module.computations:
                nested = self._module.computations[called]
                parameter = nested.parameters[reader.operands.index(value.name)]
                total += self.read_bytes(nested, parameter, size)
                if _is_result(nested, parameter):  # The nested fusion only forwards the operand.
                    total += self.read_bytes(inner, reader, size)
            elif reader.opcode == _SCATTER and is_first:
                total += _update_bytes(inner, reader)
            elif _is_mapped(reader, value):
                elements = self._read_share(inner, reader) * reader.arrays[0].elements
                total += int(size * min(1.0, elements / max(1, value.arrays[0].elements)))
            else:
                return size
        return total

    def _read_share(self, inner: Computation, value: Instruction) -> float:
        """Returns the share of a value that a fusion computes, between 0 and 1. It is less than 1
        if the fusion slices the value afterwards."""
        if value.name not in self._shares:
            self._shares[value.name] = 1.0
            if not _is_result(inner, value):
                read = self.read_bytes(inner, value, value.stored_bytes)
                self._shares[value.name] = min(1.0, read / max(1, value.stored_bytes))
        return self._shares[value.name]

    def _written_bytes(self, inner: Computation, root: Instruction) -> int:
        """Returns the bytes that a fusion writes for `root`, its root or an element of it. A fusion
        that ends with an update in place writes only the update."""
        if root.opcode == "tuple":
            elements = (inner.by_name[name] for name in root.operands)
            return sum(self._written_bytes(inner, element) for element in elements)
        first = inner.by_name.get(root.operands[0]) if root.operands else None
        is_passed = root.opcode in ("parameter", "get-tuple-element")
        if is_passed or is_collective(root) or _is_idle(root):
            return 0
        if root.opcode in ("bitcast", "convert", "copy") and first is not None:
            return (
                self._written_bytes(inner, first)
                if first.opcode in _UPDATED_BY
                else root.stored_bytes
            )
        return _update_bytes(inner, root)


def _summed(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the sum of amounts by dtype."""
    sums: dict[str, float] = {}
    for amounts_of in amounts:
        for dtype, amount in amounts_of.items():
            sums[dtype] = sums.get(dtype, 0.0) + amount
    return sums


def _strided(instruction: Instruction, inner: Computation) -> Mapping[str, float]:
    """Returns the extra operations, by dtype, of a fusion whose tiles span several matrices, see
    `_STRIDED`; empty for other fusions."""
    operands = [
        inner.by_name[reduction.operands[0]]
        for reduction in inner.instructions
        if reduction.opcode == "reduce"
    ]
    tile = _TILE.search(instruction.attributes)
    if not operands or tile is None:
        return {}
    sizes = [int(size) for size in tile["sizes"].split('","')]
    sizes += [1] * (len(operands[0].arrays[0].shape) - len(sizes))  # Tiles omit reduced rows.
    *outer, rows, _ = (1, *sizes)
    elements = sum(operand.arrays[0].elements for operand in operands)
    return {} if set(outer) == {1} else {"float32": _STRIDED * elements / rows}


def _is_result(inner: Computation, value: Instruction) -> bool:
    """Returns whether a fusion yields a value, or a bitcast of the value, as a result."""
    readers = inner.readers.get(value.name, ())
    through = (reader for reader in readers if reader.opcode in ("bitcast", "tuple"))
    return value is inner.root or any(_is_result(inner, reader) for reader in through)


def _is_mapped(reader: Instruction, value: Instruction) -> bool:
    """Returns whether each element of the reader's result depends on at most one element of
    `value`, as in an elementwise function, a permutation, a concatenation or a pad."""
    if reader.opcode in _READ_ELSEWHERE or len(reader.arrays) != 1 or len(value.arrays) != 1:
        return False
    is_as_large = reader.arrays[0].elements == value.arrays[0].elements
    return is_as_large or reader.opcode in ("concatenate", "pad")


def _update_bytes(inner: Computation, instruction: Instruction) -> int:
    """Returns the bytes that an instruction writes. An update in place writes only the update. A
    scatter writes each window in whole sectors."""
    operands, position = instruction.operands, _UPDATED_BY.get(instruction.opcode)
    if position is None or position >= len(operands) or operands[position] not in inner.by_name:
        return instruction.stored_bytes
    update_bytes = inner.by_name[operands[position]].stored_bytes
    if instruction.opcode == _SCATTER and operands[1] in inner.by_name:
        (indices,) = inner.by_name[operands[1]].arrays
        windows = prod(indices.shape[:-1])
        update_bytes = max(update_bytes, windows * _SECTOR_BYTES)
    return min(instruction.stored_bytes, update_bytes)


def is_collective(instruction: Instruction) -> bool:
    """Returns whether an instruction is a collective, or the start or done of one."""
    return instruction.opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVE_KINDS


def matmul_flops(instruction: Instruction, computation: Computation) -> float:
    """Returns the FLOPs of a matmul or convolution, written as an HLO instruction or as a library
    call; 0 for other instructions.

    - `computation`: the computation that contains the instruction.
    """
    target = _target(instruction)
    if instruction.opcode == "dot" or target.startswith(_MATMUL_CALLS):
        return _dot_flops(instruction, computation)
    if _is_convolution(instruction):
        return _convolution_flops(instruction, computation)
    return 0.0


def _multiplied_dtype(instruction: Instruction, computation: Computation) -> str:
    """Returns numpy's name of the dtype in which a matmul or convolution multiplies: the dtype of
    the first operand that is not a mask. XLA:TPU multiplies a mask in the dtype of the other
    operand."""
    operands = [computation.by_name.get(name) for name in instruction.operands[:2]]
    arrays = [operand.arrays[0] for operand in operands if operand is not None and operand.arrays]
    names = [numpy_name(array.dtype) for array in arrays or instruction.arrays]
    return next((name for name in names if name != "bool"), names[0])


def _is_convolution(instruction: Instruction) -> bool:
    is_call = _target(instruction).startswith(_CONVOLUTION_CALLS)
    return instruction.opcode == "convolution" or is_call


def numpy_name(dtype: str) -> str:
    """Returns numpy's name of a dtype, from XLA's name."""
    if dtype == "pred":
        return "bool"
    if dtype == "bf16":
        return "bfloat16"
    if dtype.startswith("f8"):
        return "float8_" + dtype[2:]
    return _NUMPY.get(dtype[0], dtype[0]) + dtype[1:]


def _is_idle(instruction: Instruction) -> bool:
    """Returns whether an instruction is a custom call that runs no kernel."""
    return instruction.opcode == "custom-call" and _target(instruction) in _IDLE_CALLS


def _workspace_bytes(instruction: Instruction) -> int:
    """Returns the bytes of the workspace that is lent to a library's matmul or convolution: the
    last of its results. The workspace is no traffic, because the library reads and writes little of
    it."""
    is_library = _target(instruction).startswith(_MATMUL_CALLS + _CONVOLUTION_CALLS)
    return instruction.arrays[-1].stored_bytes if is_library and len(instruction.arrays) > 1 else 0


def _target(instruction: Instruction) -> str:
    match = _TARGET.search(instruction.attributes) if instruction.opcode == "custom-call" else None
    return "" if match is None else match["target"]


def _all_arrays(instruction: Instruction, computation: Computation) -> Iterator[Array]:
    yield Array("f32", (0,))
    yield from instruction.arrays
    for name in instruction.operands:
        if name in computation.by_name:
            yield from computation.by_name[name].arrays


def _shape(instruction: Instruction, computation: Computation, operand: int) -> tuple[int, ...]:
    source = computation.by_name.get(instruction.operands[operand])
    return source.arrays[0].shape if source is not None and source.arrays else ()


def _dot_flops(instruction: Instruction, computation: Computation) -> float:
    contracted, lhs = (
        _CONTRACTED.search(instruction.attributes),
        _shape(instruction, computation, 0),
    )
    dims = (
        []
        if contracted is None
        else [int(dimension) for dimension in re.findall(r"\d+", contracted["dims"])]
    )
    return (
        2.0
        * instruction.arrays[0].elements
        * prod(lhs[dimension] for dimension in dims if dimension < len(lhs))
    )


def _convolution_flops(instruction: Instruction, computation: Computation) -> float:
    """Returns the FLOPs of a convolution as `HloCostAnalysis::HandleConvolution`: without products
    of padding and dilation holes."""
    labels = _LABELS.search(instruction.attributes)
    if labels is None:
        return 0.0
    lhs, rhs = (_shape(instruction, computation, operand) for operand in (0, 1))
    out = instruction.arrays[0].shape
    if "__cudnn$convBackwardInput" in instruction.attributes:
        lhs, out = out, lhs
    elif "__cudnn$convBackwardFilter" in instruction.attributes:
        rhs, out = out, rhs
    spatial = [label for label in labels["out"] if label.isdigit()]
    groups = {
        match["kind"]: int(match["count"]) for match in _GROUPS.finditer(instruction.attributes)
    }
    positions = 1.0
    for number, window in zip(spatial, _windows(instruction, len(spatial)), strict=True):
        sizes = lhs[labels["lhs"].index(number)], out[labels["out"].index(number)]
        positions *= valid_positions(*sizes, **window)
    features = lhs[labels["lhs"].index("f")] / groups.get("feature", 1)
    batch = lhs[labels["lhs"].index("b")] / groups.get("batch", 1)
    return 2.0 * features * rhs[labels["rhs"].index("o")] * batch * positions


def _windows(instruction: Instruction, rank: int) -> Iterator[dict[str, int]]:
    """Yields, for each of `rank` spatial dimensions of a convolution, its window as keyword
    arguments of `valid_positions`."""
    match = _WINDOW.search(instruction.attributes)
    parts = dict(part.split("=") for part in ("" if match is None else match["window"]).split())

    def numbers(name: str, default: str) -> Sequence[str]:
        return parts[name].split("x") if name in parts else [default] * rank

    columns = (
        numbers("size", "1"),
        numbers("stride", "1"),
        numbers("pad", "0_0"),
        numbers("lhs_dilate", "1"),
        numbers("rhs_dilate", "1"),
    )
    for size, stride, pad, lhs_dilate, rhs_dilate in zip(*columns, strict=True):
        yield {
            "window": int(size),
            "stride": int(stride),
            "pad": int(pad.split("_")[0]),
            "lhs_dilate": int(lhs_dilate),
            "rhs_dilate": int(rhs_dilate),
        }


@functools.cache
def valid_positions(
    lhs: int, out: int, window: int, stride: int, pad: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """Returns the number of pairs of an output position and a window position at which a
    convolution reads an element of the input, along one spatial dimension.

    Output position `o` and window position `w` read an element if
    `o * stride - pad + w * rhs_dilate` is a multiple of `lhs_dilate` inside the dilated input. For
    each `o`, the window positions that do are one residue class inside an interval.

    - `lhs`, `out`: the sizes of the input and of the output.
    - `window`, `stride`, `pad`: the size of the window, its stride, and the padding in front of the
      input.
    - `lhs_dilate`, `rhs_dilate`: the dilation of the input and of the window.
    """
    first = np.arange(out) * stride - pad
    low = np.maximum(-(first // rhs_dilate), 0)
    high = np.minimum(((lhs - 1) * lhs_dilate - first) // rhs_dilate, window - 1)
    common = gcd(rhs_dilate, lhs_dilate)
    period = lhs_dilate // common
    residue = -(first // common) * pow(rhs_dilate // common, -1, period) % period
    met = (high - residue) // period - (low - 1 - residue) // period
    return int(met[(high >= low) & (first % common == 0)].sum())
