"""The kernels of an optimised program, read from XLA's text: how often each runs, and its traffic.

A kernel is an instruction of the entry computation or of a loop's body that computes or moves more
than a scalar and is no collective. Its traffic is the traffic of `kiwi.xla.read.work`. A kernel
counts as recomputed if its last operator is recomputed. In other kernels the bytes that only
recomputed operators read count as recomputed, because XLA fuses recomputed operators with their
readers.
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
"""Opcodes by which XLA:TPU copies an operand to its vector memory."""
_BARRIER = "/optimization_barrier"
_METADATA = re.compile(r", metadata=\{[^}]*\}")
_NAME = re.compile(r"%[\w.\-]+")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_MATMULS = re.compile(r" (?:dot|convolution)\(|__cublas|__cudnn")


@dataclass(frozen=True)
class Kernel:
    """One kernel of a step. It runs `runs` times, and each run moves `traffic_bytes`.

    - `is_behind_barrier`: whether all operands of the kernel have passed a barrier, or the kernel
      converts a value that another kernel converts too. The generated code has no barriers.
    - `read_again_bytes`: the bytes that only recomputed operators inside of the kernel read.
    """

    instruction: Instruction
    runs: int
    traffic_bytes: int
    is_behind_barrier: bool
    read_again_bytes: int

    @property
    def is_recomputed(self) -> bool:
        """Whether the kernel ends with an operator that the plan computes a second time. A
        conversion, for which XLA names no operator, counts if it brings an operand into a layout
        once more."""
        scope = scope_of(self.instruction.attributes)
        return self.is_behind_barrier if scope is None else scope.is_recomputed

    @property
    def recomputed_bytes(self) -> int:
        """The part of the kernel's traffic that recomputation causes."""
        return self.traffic_bytes if self.is_recomputed else self.read_again_bytes

    @property
    def cycles(self) -> int:
        """The cycles of one run by XLA:TPU's cost model; 0 if XLA states none."""
        match = _CYCLES.search(self.instruction.attributes)
        return 0 if match is None else int(match[1])


def kernels(text: str) -> Iterator[Kernel]:
    """Yields all kernels of a module."""
    module = parse_module(text)
    work, times, inside = ModuleWork(module), runs(module), _inside_of_kernels(module)
    for name, computation in module.computations.items():
        if name in inside:
            continue
        converted: set[str] = set()
        for instruction in computation.instructions:
            if instruction.opcode in _NO_WORK or is_collective(instruction):
                continue
            instruction_work = work.of(instruction, computation)
            if not instruction_work.is_scalar:
                read = [computation.by_name[o] for o in instruction.operands]
                is_behind = bool(read) and all(_BARRIER in operand.attributes for operand in read)
                if instruction.opcode == "convert":
                    source = _source(computation, read[0]).name
                    is_behind |= source in converted
                    converted.add(source)
                again = sum(_read_again(module, work, instruction, computation))
                yield Kernel(
                    instruction, times[name], instruction_work.moved_bytes, is_behind, again
                )


def totals(text: str) -> dict[str, int]:
    """Returns the numbers of kernels and matmuls, the traffic of all kernels and of recomputation,
    and cycles where XLA states them."""
    all_kernels = list(kernels(text))
    recomputed_kernels = [kernel for kernel in all_kernels if kernel.is_recomputed]
    return {
        "kernels": sum(kernel_of_step.runs for kernel_of_step in all_kernels),
        "traffic_bytes": sum(
            kernel_of_step.runs * kernel_of_step.traffic_bytes for kernel_of_step in all_kernels
        ),
        "recomputed_traffic_bytes": sum(
            kernel_of_step.runs * kernel_of_step.recomputed_bytes for kernel_of_step in all_kernels
        ),
        "cycles": sum(
            kernel_of_step.runs * kernel_of_step.cycles for kernel_of_step in all_kernels
        ),
        "recomputed_cycles": sum(
            kernel_of_step.runs * kernel_of_step.cycles for kernel_of_step in recomputed_kernels
        ),
        "matmuls": len(_MATMULS.findall(text)),
    }


def fingerprint(text: str) -> str:
    """Returns a digest that is equal for programs that differ only in names and metadata."""
    numbers: dict[str, str] = {}
    lines = (line for line in text.splitlines() if line.startswith("  "))
    bare = _METADATA.sub("", "\n".join(lines))
    numbered_text = _NAME.sub(lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), bare)
    return hashlib.sha256(numbered_text.encode()).hexdigest()[:12]


def _source(computation: Computation, value: Instruction) -> Instruction:
    """Returns the value that a chain of copies copies."""
    while value.opcode in _PASSED and value.operands[0] in computation.by_name:
        value = computation.by_name[value.operands[0]]
    return value


def _read_again(
    module: Module, work: ModuleWork, instruction: Instruction, computation: Computation
) -> Iterator[int]:
    """Yields the bytes of each operand of a fusion that only recomputed operators read."""
    inner = module.computations.get(instruction.computation("calls"))
    if instruction.opcode != "fusion" or inner is None:
        return
    for parameter, name in zip(inner.parameters, instruction.operands, strict=False):
        if _is_for_recomputation(inner, parameter):
            size_bytes = computation.by_name[name].stored_bytes
            yield min(size_bytes, work.read_bytes(inner, parameter, size_bytes))


def _is_for_recomputation(inner: Computation, value: Instruction) -> bool:
    """Returns whether all readers of a value are recomputed. A reader without an operator counts as
    recomputed if its own readers are."""
    readers = inner.readers.get(value.name, ())
    return bool(readers) and all(_is_again(inner, reader) for reader in readers)


def _is_again(inner: Computation, reader: Instruction) -> bool:
    scope = scope_of(reader.attributes)
    return _is_for_recomputation(inner, reader) if scope is None else scope.is_recomputed


def _inside_of_kernels(module: Module) -> set[str]:
    """Returns the computations of fusions, reductions and similar kernels, and the computations
    that these call."""
    inside: set[str] = set()
    # XLA writes a computation after the computations that it calls.
    for name, computation in reversed(list(module.computations.items())):
        for instruction in computation.instructions:
            if name in inside or instruction.opcode not in ("call", "async-start"):
                called = (instruction.computation(role) for role in ("calls", "to_apply"))
                inside.update(called)
    return inside
