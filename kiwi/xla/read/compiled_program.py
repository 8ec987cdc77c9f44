"""Memory and collectives of a plan's compiled program."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from kiwi.mesh import DeviceMesh
from kiwi.xla.compile.dump import Dump
from kiwi.xla.read.buffer_assignment import (
    HOST_ONLY,
    BufferSizes,
    CompiledMemory,
    read_elsewhere,
    read_memory,
    read_sizes,
)
from kiwi.xla.read.collectives import AxisUse, CollectiveUse, by_kind, read_axis_uses
from kiwi.xla.read.hlo_text import parse_module
from kiwi.xla.read.schedule import Schedule, read_schedule
from kiwi.xla.simulated import SimulatedTime

_REMATERIALIZED = re.compile(r"^ *(?:ROOT )?%[\w.-]+\.remat\d*(?:\.\d+)? = ", re.MULTILINE)
"""Names of the instructions that XLA's `HloRematerialization` has added."""

_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")


@dataclass(frozen=True)
class CompiledProgram(BufferSizes):
    """Memory of one device and collectives of a compiled step.

    - `target`: the target that it was compiled for, e.g. "cpu".
    - `peak_bytes`: arguments + outputs + temporaries - aliased.
    - `collective_uses`: by kind and mesh axes, largest first.
    - `compile_seconds`: wall time of the compilation.
    - `memory`: the live buffers over time; None if the compiler does not report them.
    - `rematerialized`: instructions that the compiler's own rematerialisation recomputes.
    - `overlapping_peak_bytes`: `peak_bytes` with `Compiler.overlapping_options`, if the budget has
      room for that. `overlap`: the number of these options.
    - `time`: the time of its schedule, run with the prices of the mesh (`kiwi.xla.simulated`).
      Collectives overlap if there is room for that. None if it was not priced.
    - `schedule`: the schedule, until it is priced.
    - `bytes_elsewhere`: by name, the bytes in memories other than the device's, e.g. "host".
    """

    target: str
    peak_bytes: int
    collective_uses: tuple[AxisUse, ...]
    compile_seconds: float
    memory: CompiledMemory | None = None
    bytes_elsewhere: Mapping[str, int] = field(default_factory=dict, hash=False)
    rematerialized: int = 0
    overlapping_peak_bytes: int | None = None
    overlap: int = 0
    time: SimulatedTime | None = None
    schedule: Schedule | None = field(default=None, repr=False)

    @property
    def step_seconds(self) -> float | None:
        """The seconds of `time`."""
        return None if self.time is None else self.time.step_seconds

    @property
    def host_peak_bytes(self) -> int:
        """Bytes in the host's memory for one device, those of arguments and results included."""
        return self.bytes_elsewhere.get("host", 0)

    @property
    def is_overlapping(self) -> bool:
        """Whether it has room for collectives that overlap with computation."""
        return self.overlapping_peak_bytes is not None

    @property
    def collectives(self) -> Mapping[str, CollectiveUse]:
        """By kind, over all axes."""
        return by_kind(self.collective_uses)

    @property
    def collective_bytes(self) -> int:
        """Bytes of all collectives together."""
        return sum(use.bytes for use in self.collective_uses)


def read_compiled(
    compiled: Any, mesh: DeviceMesh, target: str, compile_seconds: float
) -> CompiledProgram:
    """Reads a `jax.stages.Compiled` for devices in the order of `mesh`. On CPU
    `peak_memory_in_bytes` leaves temporaries out, so the peak is summed here."""
    stats = compiled.memory_analysis()
    sizes = BufferSizes(
        int(stats.argument_size_in_bytes),
        int(stats.output_size_in_bytes),
        int(stats.temp_size_in_bytes),
        int(stats.alias_size_in_bytes),
    )
    memory = _memory(compiled, stats)
    return _program(compiled.as_text(), sizes, memory, mesh, target, compile_seconds)


def read_dump(
    dump: Dump,
    mesh: DeviceMesh,
    target: str,
    compile_seconds: float,
    other_memories: Mapping[int, str] = HOST_ONLY,
) -> CompiledProgram:
    """Reads XLA's output for a program, for devices in the order of `mesh`. `other_memories`: as in
    `Compiler`."""
    memory = read_memory(dump.module, dump.assignment, other_memories)
    sizes = read_sizes(dump.assignment, other_memories)
    program = _program(dump.text, sizes, memory, mesh, target, compile_seconds)
    return replace(program, bytes_elsewhere=read_elsewhere(dump.assignment, other_memories))


def _program(
    text: str,
    sizes: BufferSizes,
    memory: CompiledMemory | None,
    mesh: DeviceMesh,
    target: str,
    compile_seconds: float,
) -> CompiledProgram:
    module, shape = parse_module(text), _shape_in(text, mesh)
    held_bytes = sizes.argument_bytes + sizes.output_bytes + sizes.temporary_bytes
    return CompiledProgram(
        target=target,
        peak_bytes=held_bytes - sizes.alias_bytes,
        **vars(sizes),
        collective_uses=read_axis_uses(module, shape, mesh.axis_names),
        compile_seconds=compile_seconds,
        memory=memory,
        rematerialized=len(_REMATERIALIZED.findall(text)),
        schedule=read_schedule(module, shape, mesh.axis_names),
    )


def _shape_in(text: str, mesh: DeviceMesh) -> tuple[int, ...]:
    """The mesh whose devices a program names. Each of several TPU slices runs a program
    of its own."""
    partitions = _PARTITIONS.search(text)
    is_slice = partitions is not None and int(partitions[1]) == prod(mesh.slice_shape)
    return mesh.slice_shape if is_slice else mesh.shape


def _memory(compiled: Any, stats: Any) -> CompiledMemory | None:
    assignment = getattr(stats, "serialized_buffer_assignment_proto", b"")
    modules = compiled.runtime_executable().hlo_modules()
    if not assignment or len(modules) != 1:
        return None
    return read_memory(modules[0].as_serialized_hlo_module_proto(), assignment)
