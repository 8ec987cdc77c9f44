"""`CompiledProgram`: the memory, collectives and schedule of a compiled step."""

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
"""The names of the instructions that XLA's `HloRematerialization` has added."""

_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")


@dataclass(frozen=True)
class CompiledProgram(BufferSizes):
    """The memory of one device, and the collectives, of a compiled step.

    - `target`: the name of the target, e.g. "cpu".
    - `peak_bytes`: arguments + outputs + temporaries - aliased bytes.
    - `collective_uses`: the collectives by kind and mesh axes, largest first.
    - `compile_seconds`: the wall time of the compilation.
    - `memory`: the live buffers over time; None if the compiler does not report them.
    - `bytes_elsewhere`: the bytes in memories other than the device's, by name, e.g. "host".
    - `rematerialized`: the number of instructions that XLA's own rematerialisation has added.
    - `overlapping_peak_bytes`: `peak_bytes` of the same step with overlapping collectives
      (`Compiler.overlapping_options`); None if the budget has no room for it.
    - `overlap`: the index of the overlapping options that were used.
    - `time`: the simulated time of the schedule (`kiwi.xla.simulated`), with overlapping
      collectives if the budget has room for them; None if the program is not priced.
    - `schedule`: the schedule; None once the program is priced.
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
        """The simulated seconds of a step; None if the program is not priced."""
        return None if self.time is None else self.time.step_seconds

    @property
    def host_peak_bytes(self) -> int:
        """The bytes of host memory for one device, including arguments and results."""
        return self.bytes_elsewhere.get("host", 0)

    @property
    def is_overlapping(self) -> bool:
        """Whether the budget has room for collectives that overlap with computation."""
        return self.overlapping_peak_bytes is not None

    @property
    def collectives(self) -> Mapping[str, CollectiveUse]:
        """The collectives by kind, summed over all axes."""
        return by_kind(self.collective_uses)

    @property
    def collective_bytes(self) -> int:
        """The bytes of all collectives together."""
        return sum(use.bytes for use in self.collective_uses)


def read_compiled(
    compiled: Any, mesh: DeviceMesh, target: str, compile_seconds: float
) -> CompiledProgram:
    """Returns the memory, collectives and schedule of a `jax.stages.Compiled`.

    The peak is summed from the sizes, because on CPUs jax's `peak_memory_in_bytes` leaves
    temporaries out.

    - `mesh`: the mesh that the program was compiled for.
    - `target`: the name of the target.
    - `compile_seconds`: the wall time of the compilation.
    """
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
    """Returns the memory, collectives and schedule of a program from XLA's dump.

    - `other_memories`: as in `Compiler`. The other parameters are those of `read_compiled`.
    """
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
    """Returns the shape of the mesh whose devices a program names. On several TPU slices each slice
    runs its own program, which names the devices of one slice."""
    partitions = _PARTITIONS.search(text)
    is_slice = partitions is not None and int(partitions[1]) == prod(mesh.slice_shape)
    return mesh.slice_shape if is_slice else mesh.shape


def _memory(compiled: Any, stats: Any) -> CompiledMemory | None:
    assignment = getattr(stats, "serialized_buffer_assignment_proto", b"")
    modules = compiled.runtime_executable().hlo_modules()
    if not assignment or len(modules) != 1:
        return None
    return read_memory(modules[0].as_serialized_hlo_module_proto(), assignment)
