"""The kernels of an optimised program, read from XLA's text: how often each runs, and its traffic.

A kernel is an instruction of the entry computation or of a loop's body that computes or moves more
than a scalar, and no collective. Its traffic is what it reads and writes: results and operands, and
of an operand that it slices, or a result that it updates in place, the slice alone.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kiwi.xla.read.collectives import COLLECTIVE_KINDS
from kiwi.xla.read.name_scopes import scope_of
from kiwi.xla.read.trip_counts import lines_with_runs

_NO_WORK = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "while",
        "conditional",
        "call",
        "after-all",
        "opt-barrier",
        "partition-id",
        "replica-id",
        "async-start",
        "async-update",
        "async-done",
        "add-dependency",
        "copy-done",
        "slice-done",
    }
)
_COLLECTIVES = frozenset(
    f"{kind}{end}" for kind in COLLECTIVE_KINDS for end in ("", "-start", "-done")
)
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_UPDATE = "dynamic-update-slice"
_SCALARS_BYTES = 64
"""Two or three scalars: XLA:TPU computes an optimiser's step count and the like one by one."""
_BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}

_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*?)\)")
_ARRAY = re.compile(r"\b(pred|token|[a-z]+\d+)[a-z0-9]*\[([0-9,]*)\]")
_FUSED = re.compile(r"\b(?:calls|to_apply)=%([\w.\-]+)")
_METADATA = re.compile(r", metadata=\{[^}]*\}")
_NAME = re.compile(r"%[\w.\-]+")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_MATMULS = re.compile(r" (?:dot|convolution)\(|__cublas|__cudnn")


@dataclass(frozen=True)
class Instruction:
    """One line of XLA's text; `operands` are names."""

    name: str
    opcode: str
    result_bytes: int
    operands: tuple[str, ...]
    is_root: bool
    line: str

    @property
    def called(self) -> str | None:
        """The computation of a fusion."""
        found = _FUSED.search(self.line) if self.opcode == "fusion" else None
        return None if found is None else found[1]


@dataclass(frozen=True)
class Kernel:
    """What one kernel does in a step: `runs` times `traffic_bytes`, in `cycles` where XLA says."""

    instruction: Instruction
    runs: int
    traffic_bytes: int

    @property
    def is_recomputed(self) -> bool:
        """Whether it ends with something that the plan computes a second time."""
        scope = scope_of(self.instruction.line)
        return scope is not None and scope.is_recomputed

    @property
    def cycles(self) -> int:
        """Of one run, by XLA:TPU's cost model."""
        found = _CYCLES.search(self.instruction.line)
        return 0 if found is None else int(found[1])


def kernels(text: str) -> Iterator[Kernel]:
    """All kernels of a module."""
    runs, computations = {}, {}
    for line, count, computation in lines_with_runs(text):
        found = _instruction(line)
        if found is not None:
            runs[computation] = count
            computations.setdefault(computation, []).append(found)
    inside = _inside_of_kernels(computations)
    for computation, instructions in computations.items():
        if computation in inside:
            continue
        sizes = {each.name: each.result_bytes for each in instructions}
        for each in instructions:
            if each.opcode in _NO_WORK | _COLLECTIVES:
                continue
            traffic = _traffic_bytes(each, sizes, computations)
            if traffic > _SCALARS_BYTES:
                yield Kernel(each, runs[computation], traffic)


def totals(text: str) -> dict[str, int]:
    """Kernels, their traffic, that of recomputation, cycles where XLA says, and matmuls."""
    found = list(kernels(text))
    again = [each for each in found if each.is_recomputed]
    return {
        "kernels": sum(k.runs for k in found),
        "traffic_bytes": sum(k.runs * k.traffic_bytes for k in found),
        "recomputed_traffic_bytes": sum(k.runs * k.traffic_bytes for k in again),
        "cycles": sum(k.runs * k.cycles for k in found),
        "recomputed_cycles": sum(k.runs * k.cycles for k in again),
        "matmuls": len(_MATMULS.findall(text)),
    }


def fingerprint(text: str) -> str:
    """Equal for programs that differ in names and metadata alone."""
    numbers: dict[str, str] = {}
    lines = (line for line, _, computation in lines_with_runs(text) if computation)
    bare = _METADATA.sub("", "\n".join(lines))
    told = _NAME.sub(lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), bare)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if found is None:
        return None
    root, name, shape, opcode, operands = found.groups()
    read = tuple(re.split(r"[ %]", each.strip())[-1] for each in operands.split(",") if each)
    return Instruction(name, opcode, _bytes(shape), read, root is not None, line)


def _inside_of_kernels(computations: Mapping[str, Sequence[Instruction]]) -> set[str]:
    """The computations of fusions, reductions and the like, and those that they call."""
    found: set[str] = set()
    # A computation stands behind those that it calls.
    for name, instructions in reversed(computations.items()):
        for each in instructions:
            if name in found or each.opcode not in ("call", "async-start"):
                found.update(_FUSED.findall(each.line))
    return found


def _traffic_bytes(
    kernel: Instruction,
    sizes: Mapping[str, int],
    computations: Mapping[str, Sequence[Instruction]],
) -> int:
    operands = [sizes.get(each, 0) for each in kernel.operands]
    if kernel.called is None:
        return _unfused_bytes(kernel, operands, sizes)
    inner = computations.get(kernel.called, ())
    return _written_bytes(kernel, inner) + sum(
        min(size, _read_bytes(inner, number, size)) for number, size in enumerate(operands)
    )


def _unfused_bytes(kernel: Instruction, operands: Sequence[int], sizes: Mapping[str, int]) -> int:
    if kernel.opcode == _UPDATE:
        return 2 * sizes.get(kernel.operands[1], 0)
    if kernel.opcode in _SLICES:
        return 2 * kernel.result_bytes
    return kernel.result_bytes + sum(operands)


def _written_bytes(kernel: Instruction, inner: Sequence[Instruction]) -> int:
    """Of a fusion that ends with an update in place, the update alone."""
    by_name = {each.name: each for each in inner}
    root = next((each for each in inner if each.is_root), None)
    while root is not None and root.opcode in ("bitcast", "convert", "copy"):
        root = by_name.get(root.operands[0])
    if root is None or root.opcode != _UPDATE or root.operands[1] not in by_name:
        return kernel.result_bytes
    return by_name[root.operands[1]].result_bytes


def _read_bytes(inner: Sequence[Instruction], number: int, size: int) -> int:
    """What a fusion reads of an operand."""
    parameter = re.compile(rf" parameter\({number}\)")
    names = {each.name for each in inner if parameter.search(each.line)}
    total = 0
    for each in inner:
        if names.isdisjoint(each.operands):
            continue
        if each.opcode == "bitcast":
            names.add(each.name)
        elif each.opcode in _SLICES and each.operands[0] in names:
            total += each.result_bytes
        elif each.opcode != _UPDATE or each.operands[0] not in names:
            return size
    return total


def _bytes(shape: str) -> int:
    total = 0
    for dtype, dims in _ARRAY.findall(shape):
        bits = _BITS[dtype] if dtype in _BITS else int(re.sub(r"\D", "", dtype))
        total += prod(int(dim) for dim in dims.split(",") if dim) * bits // 8
    return total
