"""A compiled module for inspection: its kernels with their operators, its buffers, its collectives.

Witnesses of rules (`kiwi.targets.witness`) ask it short questions: how many kernels compute an
exponential, how many buffers of this size there are.
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
"""Kernels and buffers that `InspectedModule.summary` lists."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """An instruction that runs, outside of fusions.

    - `computation`: the computation that it is in.
    - `opcodes`: the opcodes of itself and of its computation's instructions, with their number. A
      custom call also counts under the name of its target.
    - `inner`: the computation of a fusion; None for others.
    """

    instruction: Instruction
    computation: Computation
    opcodes: Counter[str]
    inner: Computation | None

    @property
    def name(self) -> str:
        """XLA's name of it."""
        return self.instruction.name

    @property
    def results(self) -> tuple[Array, ...]:
        """The arrays that it writes."""
        return self.instruction.arrays

    @property
    def operands(self) -> tuple[Instruction, ...]:
        """The instructions whose results it reads."""
        by_name = self.computation.by_name
        return tuple(by_name[name] for name in self.instruction.operands if name in by_name)

    @property
    def cycles(self) -> int | None:
        """The cycles that XLA:TPU states, once it has generated code."""
        stated = _CYCLES.search(self.instruction.attributes)
        return None if stated is None else int(stated[1])

    @property
    def reads_nothing(self) -> bool:
        """Whether it reads at most constants."""
        return all(operand.opcode == "constant" for operand in self.operands)

    def computes(self, *opcodes: str) -> bool:
        """Whether it computes all of these opcodes."""
        return all(self.opcodes[opcode] for opcode in opcodes)

    def writes(self, elements: int, dtype: str | None = None) -> bool:
        """Whether one of its results has so many elements, of this dtype (XLA's name)."""
        return any(
            array.elements == elements and dtype in (None, array.dtype) for array in self.results
        )

    @property
    def sources(self) -> frozenset[str]:
        """The instructions whose results it reads, by name, followed through aliases."""
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
    """XLA's output for a program for the devices of a mesh.

    - `text`: after all optimisations; with the cycles of kernels if code was generated.
    - `buffers`: those of one device's memory.
    - `bytes_elsewhere`: by name, bytes in other memories, e.g. "host".
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
        """Reads a module's text, `HloModuleProto` and `BufferAssignmentProto`."""
        return cls(
            text,
            read_buffers(module, assignment, other_memories),
            read_elsewhere(assignment, other_memories),
            tuple(mesh_shape),
            tuple(axis_names),
        )

    @functools.cached_property
    def module(self) -> Module:
        """Its computations and their instructions."""
        return parse_module(self.text)

    @functools.cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels in the order of the schedule. Those of loops and branches come
        before these."""
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
        """The kernels that compute all of these."""
        return tuple(kernel for kernel in self.kernels if kernel.computes(*opcodes))

    @property
    def temporaries(self) -> tuple[LiveBuffer, ...]:
        """The buffers that are neither arguments nor results."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == "temporary")

    def temporaries_of(self, size_bytes: int) -> int:
        """The largest number of temporaries of this size that are alive at the same time."""
        alike = [buffer for buffer in self.temporaries if buffer.bytes == size_bytes]
        return max(
            (sum(other.start <= started.start < other.end for other in alike) for started in alike),
            default=0,
        )

    def is_in_place(self, kernel: Kernel) -> bool:
        """Whether a kernel's largest result takes the place of an operand of the same size that
        ends as the result begins."""
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
        """The most that temporaries take at one time."""
        starts = {buffer.start for buffer in self.temporaries}
        return max((self._alive_bytes(start) for start in starts), default=0)

    def _alive_bytes(self, position: int) -> int:
        alive_sizes = (
            buffer.bytes for buffer in self.temporaries if buffer.start <= position < buffer.end
        )
        return sum(alive_sizes)

    @property
    def argument_bytes(self) -> int:
        """Bytes of all arguments."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.kind == "argument")

    @functools.cached_property
    def collectives(self) -> Mapping[str, CollectiveUse]:
        """The collectives by kind."""
        return by_kind(read_axis_uses(self.module, self.mesh_shape, self.axis_names))

    def is_before(self, first: Kernel, other: Kernel) -> bool:
        """Whether a kernel runs before another one."""
        return self.kernels.index(first) < self.kernels.index(other)

    def summary(self) -> str:
        """Its kernels, buffers and collectives in a few lines, largest buffers first."""
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
