"""`InspectedModule`: a compiled module's kernels with their opcodes, its buffers and collectives.

Witnesses of rules (`kiwi.targets.witness`) query it: for example how many kernels compute an
exponential, or how many buffers of a given size exist.
"""

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiwi.xla.read.buffer_assignment import HOST_ONLY, LiveBuffer, read_buffers, read_elsewhere
from kiwi.xla.read.collectives import CollectiveUse, by_kind, read_axis_uses
from kiwi.xla.read.hlo_text import Array, Computation, Instruction, Module, parse_module
from kiwi.xla.read.work import RUNS_NOTHING

_CALLS = frozenset({"while", "call", "conditional"})
_ROLES = ("body", "condition", "calls", "to_apply")
_TARGET = re.compile(r'custom_call_target="(?P<target>[^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_MOST_LISTED = 24
"""The most kernels, and the most buffers, that `InspectedModule.summary` lists."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """An instruction outside of fusions that runs as a kernel.

    - `instruction`: the instruction.
    - `computation`: the computation that contains it.
    - `opcodes`: the number of instructions of each opcode: the instruction itself, and those of a
      fusion's computation. A custom call also counts under the name of its target.
    - `inner`: the computation of a fusion; None for other instructions.
    """

    instruction: Instruction
    computation: Computation
    opcodes: Counter[str]
    inner: Computation | None

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return self.instruction.name

    @property
    def results(self) -> tuple[Array, ...]:
        """The arrays that the kernel writes."""
        return self.instruction.arrays

    @property
    def operands(self) -> tuple[Instruction, ...]:
        """The instructions whose results the kernel reads."""
        by_name = self.computation.by_name
        return tuple(by_name[name] for name in self.instruction.operands if name in by_name)

    @property
    def cycles(self) -> int | None:
        """The cycles that XLA:TPU states; None before it has generated code, or if it states
        none."""
        stated = _CYCLES.search(self.instruction.attributes)
        return None if stated is None else int(stated[1])

    @property
    def reads_nothing(self) -> bool:
        """Whether the kernel reads nothing but constants."""
        return all(operand.opcode == "constant" for operand in self.operands)

    def computes(self, *opcodes: str) -> bool:
        """Returns whether the kernel contains instructions of all these opcodes."""
        return all(self.opcodes[opcode] for opcode in opcodes)

    def writes(self, elements: int, dtype: str | None = None) -> bool:
        """Returns whether one of the kernel's results has `elements` elements, and the dtype
        `dtype` (XLA's name) unless that is None."""
        return any(
            array.elements == elements and dtype in (None, array.dtype) for array in self.results
        )

    @property
    def sources(self) -> frozenset[str]:
        """The names of the instructions whose results the kernel reads, directly or through
        instructions that run nothing, such as bitcasts."""
        pending, seen = list(self.instruction.operands), set()
        while pending:
            name = pending.pop()
            source = self.computation.by_name.get(name)
            if name not in seen and source is not None and source.opcode in RUNS_NOTHING:
                pending += source.operands
            seen.add(name)
        return frozenset(seen)


@dataclass(frozen=True, eq=False)
class InspectedModule:
    """XLA's output for a program on a mesh.

    - `text`: XLA's text of the optimised module. It states the cycles of kernels if code was
      generated.
    - `buffers`: the buffers in the memory of one device.
    - `bytes_elsewhere`: the bytes in other memories by name, e.g. "host".
    - `mesh_shape`, `axis_names`: the mesh that the program was compiled for.
    """

    text: str
    buffers: tuple[LiveBuffer, ...]
    bytes_elsewhere: Mapping[str, int]
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...]

    @classmethod
    def read(
        cls,
        text: str,
        module: bytes,
        assignment: bytes,
        mesh_shape: Sequence[int],
        axis_names: Sequence[str],
        other_memories: Mapping[int, str] = HOST_ONLY,
    ) -> "InspectedModule":
        """Returns the module that XLA's output describes.

        - `text`: XLA's text of the optimised module.
        - `module`, `assignment`: its serialised `HloModuleProto` and `BufferAssignmentProto`.
        - `mesh_shape`, `axis_names`: the mesh that the program was compiled for.
        - `other_memories`: as in `Compiler`.
        """
        return cls(
            text,
            read_buffers(module, assignment, other_memories),
            read_elsewhere(assignment, other_memories),
            tuple(mesh_shape),
            tuple(axis_names),
        )

    @functools.cached_property
    def module(self) -> Module:
        """The computations and their instructions."""
        return parse_module(self.text)

    @functools.cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels in the order of the schedule. The kernels of a loop or branch stand at the
        place of the instruction that runs it."""
        return tuple(self._kernels(self.module.entry))

    def _kernels(self, computation: Computation) -> Iterator[Kernel]:
        for instruction in computation.instructions:
            if instruction.opcode in RUNS_NOTHING:
                continue
            if instruction.opcode in _CALLS:
                for called in self._called(instruction):
                    yield from self._kernels(called)
                continue
            inner = self.module.computations.get(instruction.computation("calls"))
            yield Kernel(instruction, computation, self._opcodes(instruction), inner)

    def _called(self, instruction: Instruction) -> Iterator[Computation]:
        names = (*(instruction.computation(role) for role in _ROLES), *instruction.branches)
        for name in names:
            if name in self.module.computations:
                yield self.module.computations[name]

    def _opcodes(self, instruction: Instruction) -> Counter[str]:
        counts = Counter([instruction.opcode])
        call_target = _TARGET.search(instruction.attributes)
        if call_target is not None:
            counts[call_target["target"]] += 1
        called = self.module.computations.get(instruction.computation("calls"))
        for inner_instruction in () if called is None else called.instructions:
            counts += self._opcodes(inner_instruction)
        return counts

    def with_opcodes(self, *opcodes: str) -> tuple[Kernel, ...]:
        """Returns the kernels that contain instructions of all these opcodes."""
        return tuple(kernel for kernel in self.kernels if kernel.computes(*opcodes))

    @property
    def temporaries(self) -> tuple[LiveBuffer, ...]:
        """The buffers that are neither arguments nor results."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == "temporary")

    def temporaries_of(self, size_bytes: int) -> int:
        """Returns the largest number of temporaries of exactly `size_bytes` that are live at the
        same time."""
        alike = [buffer for buffer in self.temporaries if buffer.bytes == size_bytes]
        return max(
            (sum(other.start <= started.start < other.end for other in alike) for started in alike),
            default=0,
        )

    def is_in_place(self, kernel: Kernel) -> bool:
        """Returns whether a kernel's largest result takes over the buffer of an operand: a
        temporary of the same size that ends where the result begins."""
        results = [
            live_buffer for live_buffer in self.buffers if live_buffer.instruction == kernel.name
        ]
        result = max(results, key=lambda buffer: buffer.bytes)
        read = kernel.sources
        return any(
            live_buffer.instruction in read
            and live_buffer.end == result.start
            and live_buffer.bytes == result.bytes
            for live_buffer in self.temporaries
        )

    @functools.cached_property
    def temporary_bytes(self) -> int:
        """The most bytes of temporaries that are live at the same time."""
        starts = {buffer.start for buffer in self.temporaries}
        return max((self._alive_bytes(start) for start in starts), default=0)

    def _alive_bytes(self, position: int) -> int:
        alive_sizes = (
            buffer.bytes for buffer in self.temporaries if buffer.start <= position < buffer.end
        )
        return sum(alive_sizes)

    @property
    def argument_bytes(self) -> int:
        """The bytes of all arguments."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.kind == "argument")

    @functools.cached_property
    def collectives(self) -> Mapping[str, CollectiveUse]:
        """The collectives by kind."""
        return by_kind(read_axis_uses(self.module, self.mesh_shape, self.axis_names))

    def is_before(self, first: Kernel, other: Kernel) -> bool:
        """Returns whether kernel `first` stands before kernel `other` in `kernels`."""
        return self.kernels.index(first) < self.kernels.index(other)

    def summary(self) -> str:
        """Returns a text of the kernels, the largest buffers and the collectives, for people."""
        lines = ["kernels:", *map(_described, self.kernels[:_MOST_LISTED])]
        if len(self.kernels) > _MOST_LISTED:
            lines.append(f"  and {len(self.kernels) - _MOST_LISTED} more")
        largest = sorted(self.buffers, key=lambda buffer: -buffer.bytes)[:_MOST_LISTED]
        lines.append("buffers:")
        lines += [
            f"  {live.bytes} bytes, {live.kind}, {live.instruction} ({live.opcode}), "
            f"[{live.start}, {live.end})"
            for live in largest
        ]
        used = (f"{use.count} {kind} of {use.bytes} bytes" for kind, use in self._uses())
        lines.append("collectives: " + (", ".join(used) or "none"))
        if self.bytes_elsewhere:
            lines.append(f"elsewhere: {dict(self.bytes_elsewhere)}")
        return "\n".join(lines)

    def _uses(self) -> Collection[tuple[str, CollectiveUse]]:
        return self.collectives.items()


def _described(kernel: Kernel) -> str:
    """Returns the line of a kernel in the summary."""
    inner_opcodes = ", ".join(
        f"{opcode}" if count == 1 else f"{count} {opcode}"
        for opcode, count in sorted(kernel.opcodes.items())
        if opcode not in RUNS_NOTHING and opcode != kernel.instruction.opcode
    )
    cycles = "" if kernel.cycles is None else f", {kernel.cycles} cycles"
    kernel_text = f"  {kernel.name} = {kernel.instruction.result_type} {kernel.instruction.opcode}"
    return (
        f"{kernel_text} of {inner_opcodes}{cycles}" if inner_opcodes else f"{kernel_text}{cycles}"
    )
