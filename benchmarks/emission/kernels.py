"""The kernels of an optimised program, read from XLA's text: how often each runs, and its traffic.

A kernel is an instruction of the entry computation or of a loop's body that computes or moves more
than a scalar, and no collective. Its traffic is that of `kiwi.xla.read.work`. Recomputed is that of
kernels that end with something recomputed, and what others read for nothing else: XLA fuses what is
recomputed with its reader.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kiwi.xla.read.hlo_text import Computation, Instruction, Module, parse_module, runs
from kiwi.xla.read.name_scopes import scope_of
from kiwi.xla.read.work import ModuleWork, is_collective

_NO_WORK = frozenset(
    {
        "while",
        "conditional",
        "call",
        "async-start",
        "async-update",
        "async-done",
        "copy-done",
        "slice-done",
    }
)
_PASSED = frozenset(
    {"bitcast", "copy", "copy-start", "copy-done", "custom-call", "slice-start", "slice-done"}
)
"""Opcodes through which XLA:TPU copies an operand to its vector memory."""
_BARRIER = "/optimization_barrier"
_METADATA = re.compile(r", metadata=\{[^}]*\}")
_NAME = re.compile(r"%[\w.\-]+")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_MATMULS = re.compile(r" (?:dot|convolution)\(|__cublas|__cudnn")


@dataclass(frozen=True)
class Kernel:
    """What one kernel does in a step: `runs` times `traffic_bytes`, in `cycles` where XLA says.

    - `is_behind_barrier`: whether it reads nothing but what has passed a barrier, or converts what
      was converted before: the generated code has no barriers.
    - `read_again_bytes`: what it reads for nothing but what is recomputed in it.
    """

    instruction: Instruction
    runs: int
    traffic_bytes: int
    is_behind_barrier: bool
    read_again_bytes: int

    @property
    def is_recomputed(self) -> bool:
        """Whether it ends with something that the plan computes a second time, or converts an
        operand, for which XLA names no operator, that is brought into a layout once more."""
        scope = scope_of(self.instruction.attributes)
        return self.is_behind_barrier if scope is None else scope.is_recomputed

    @property
    def recomputed_bytes(self) -> int:
        """The part of its traffic that is recomputation's."""
        return self.traffic_bytes if self.is_recomputed else self.read_again_bytes

    @property
    def cycles(self) -> int:
        """Of one run, by XLA:TPU's cost model."""
        found = _CYCLES.search(self.instruction.attributes)
        return 0 if found is None else int(found[1])


def kernels(text: str) -> Iterator[Kernel]:
    """All kernels of a module."""
    module = parse_module(text)
    work, times, inside = ModuleWork(module), runs(module), _inside_of_kernels(module)
    for name, computation in module.computations.items():
        if name in inside:
            continue
        converted: set[str] = set()
        for instruction in computation.instructions:
            if instruction.opcode in _NO_WORK or is_collective(instruction):
                continue
            found = work.of(instruction, computation)
            if not found.is_scalar:
                read = [computation.by_name[o] for o in instruction.operands]
                is_behind = bool(read) and all(_BARRIER in each.attributes for each in read)
                if instruction.opcode == "convert":
                    source = _source(computation, read[0]).name
                    is_behind |= source in converted
                    converted.add(source)
                again = sum(_read_again(module, work, instruction, computation))
                yield Kernel(instruction, times[name], found.moved_bytes, is_behind, again)


def totals(text: str) -> dict[str, int]:
    """Kernels, their traffic, that of recomputation, cycles where XLA says, and matmuls."""
    found = list(kernels(text))
    again = [each for each in found if each.is_recomputed]
    return {
        "kernels": sum(k.runs for k in found),
        "traffic_bytes": sum(k.runs * k.traffic_bytes for k in found),
        "recomputed_traffic_bytes": sum(k.runs * k.recomputed_bytes for k in found),
        "cycles": sum(k.runs * k.cycles for k in found),
        "recomputed_cycles": sum(k.runs * k.cycles for k in again),
        "matmuls": len(_MATMULS.findall(text)),
    }


def fingerprint(text: str) -> str:
    """Equal for programs that differ in names and metadata alone."""
    numbers: dict[str, str] = {}
    lines = (line for line in text.splitlines() if line.startswith("  "))
    bare = _METADATA.sub("", "\n".join(lines))
    told = _NAME.sub(lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), bare)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _source(computation: Computation, value: Instruction) -> Instruction:
    """What a value is a copy of."""
    while value.opcode in _PASSED and value.operands[0] in computation.by_name:
        value = computation.by_name[value.operands[0]]
    return value


def _read_again(
    module: Module, work: ModuleWork, instruction: Instruction, computation: Computation
) -> Iterator[int]:
    """Bytes of each operand that a fusion reads for nothing but what is recomputed in it."""
    inner = module.computations.get(instruction.computation("calls"))
    if instruction.opcode != "fusion" or inner is None:
        return
    for parameter, name in zip(inner.parameters, instruction.operands, strict=False):
        if _is_for_recomputation(inner, parameter):
            size_bytes = computation.by_name[name].stored_bytes
            yield min(size_bytes, work.read_bytes(inner, parameter, size_bytes))


def _is_for_recomputation(inner: Computation, value: Instruction) -> bool:
    """Whether all that read a value are recomputed, or are of no operator and read by such."""
    readers = inner.readers.get(value.name, ())
    return bool(readers) and all(_is_again(inner, reader) for reader in readers)


def _is_again(inner: Computation, reader: Instruction) -> bool:
    scope = scope_of(reader.attributes)
    return _is_for_recomputation(inner, reader) if scope is None else scope.is_recomputed


def _inside_of_kernels(module: Module) -> set[str]:
    """The computations of fusions, reductions and the like, and those that they call."""
    found: set[str] = set()
    # A computation stands behind those that it calls.
    for name, computation in reversed(list(module.computations.items())):
        for each in computation.instructions:
            if name in found or each.opcode not in ("call", "async-start"):
                called = (each.computation(role) for role in ("calls", "to_apply"))
                found.update(called)
    return found
