"""XLA:TPU, which compiles for TPUs that need not be attached.

The wheel libtpu (the extra `aot-tpu`) contains the whole compiler. A check ends after the buffer
assignment, because generating code takes most of the time.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import prod
from typing import Any

from kiwi.errors import CompileCheckError, CompilerUnavailableError
from kiwi.mesh import DeviceMesh, Hardware
from kiwi.mesh.topology import Interconnect, Topology
from kiwi.messages import topics
from kiwi.xla.compile.worker import Answer, Begun, begun_elsewhere
from kiwi.xla.compiler import CompilerElsewhere
from kiwi.xla.read.buffer_assignment import HOST_ONLY
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.read.stated_times import tpu_cycles
from kiwi.xla.step import ExportedStep, Step

TPU_OVERLAPPING_OPTIONS = {
    "xla_jf_rematerialization_percent_shared_memory_limit": 100_000,
    "xla_tpu_run_space_to_batch": False,
    "xla_tpu_run_space_to_batch_on_new_platforms": False,
    "xla_jf_crs_combiner_threshold_in_bytes": 1 << 20,
    "xla_tpu_buffer_assignment_enable_fast_merge_fallback": False,
}
"""Options under which collectives overlap with computation, as by default. They switch off four
features of XLA:TPU:

- Rematerialisation near the memory limit, which recomputes values that the plan keeps. The limit is
  set to a percentage that no program reaches.
- Space-to-batch, which turns parts of images into a larger batch, and holds several copies of them.
- Combined all-reduces, which hold all summands until the last one is computed. On slices without
  reduce-scatter (`kiwi.targets.rules.tpu.tpu_scattered_sums`) these are all gradients of a step.
  All-reduces below the threshold are still combined.
- Fast merge, which places buffers on the heap in the order of their definition if that fits the
  chip, and wastes part of the heap. Without fast merge XLA:TPU places buffers as
  `kiwi.memory.heap` does.
"""

TPU_ASYNCHRONOUS_OPTIONS = {
    **TPU_OVERLAPPING_OPTIONS,
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000,
}
"""`TPU_OVERLAPPING_OPTIONS` without windowed einsums.

A windowed einsum turns the collectives around a matmul into chains of permutations, which hold
other buffers. The threshold is a size that no einsum reaches.
"""

TPU_REDUCING_OPTIONS = {
    **TPU_ASYNCHRONOUS_OPTIONS,
    "xla_enable_async_all_reduce": True,
    "xla_enable_async_reduce_scatter_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter": True,
    "xla_tpu_scoped_vmem_limit_kib": 20 * 1024,
}
"""`TPU_ASYNCHRONOUS_OPTIONS`, with reductions that overlap with computation as well, as in
MaxDiffusion's recipes. By default the device waits for reductions, and the reductions of gradients
are most of a step's communication. A kernel that also moves a reduction may need more VMEM than
XLA:TPU reserves. XLA:TPU then fails to generate code."""

TPU_COMPILER_OPTIONS = {**TPU_ASYNCHRONOUS_OPTIONS, "xla_tpu_enable_async_collective_fusion": False}
"""Options of a run, under which XLA:TPU keeps the plan's order and its collectives.

Asynchronous collective fusion, which runs a collective beside a matmul and holds its result longer,
is off. A plan that has the memory for overlap runs with `TPU_OVERLAPPING_OPTIONS`,
`TPU_ASYNCHRONOUS_OPTIONS` or `TPU_REDUCING_OPTIONS` instead, whichever schedule is fastest.
"""

TPU_CHECK_OPTIONS = {**TPU_COMPILER_OPTIONS, "xla_msa_enable": "DISABLED"}
"""Options of a check, which place every buffer in HBM. A run also places some buffers in VMEM,
which does not count towards the budget."""

TPU_HEAPS = (
    {"xla_tpu_buffer_assignment_enable_fast_merge_fallback": True},
    *({"xla_tpu_buffer_assignment_randomization_salt": seed} for seed in (1, 2, 3)),
)
"""Options for alternative placements of buffers: fast merge, and other random seeds. The sizes of
the resulting heaps differ."""

_INSTALL = 'pip install "kiwi-planner[aot-tpu]"'

_WITHOUT_A_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # libtpu's lock protects a TPU; there is none here.
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu would ask a cloud server which TPU the machine has.
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # Any type works: the topology is passed explicitly.
}
"""Environment variables under which libtpu takes no lock and contacts no server."""

_HOST_BOUNDS = (2, 2, 1)
"""The shape of the chips of one host. Topologies that are no multiple of it have one chip per
host."""


class TpuCompiler(CompilerElsewhere):
    """The compiler XLA:TPU, from the distribution libtpu."""

    @property
    def compiled_there(self) -> Answer:
        """See `CompilerElsewhere`."""
        return compiled_there

    def begin(self, step: Step) -> Callable[[], CompiledProgram]:
        """See `CompilerElsewhere`. Raises `CompileCheckError` for overlapping reductions on a v4,
        whose VMEM is too small for them."""
        sums_too = self.check_options.get("xla_enable_async_all_reduce", False)
        if sums_too and _interconnect(step.mesh.hardware).generation == "v4":
            raise CompileCheckError(
                "A v4's VMEM has no room for kernels that also move a sum.", topic=topics.VMEM
            )
        return super().begin(step)

    def begun(self, step: Step, answer: Answer) -> Begun:
        """See `CompilerElsewhere`."""
        _interconnect(step.mesh.hardware)
        check_libtpu()
        return begun_elsewhere(answer, step, "tpu", self.request(step))

    def compile_only_devices(self, mesh: DeviceMesh) -> Sequence[Any]:
        """See `Compiler`."""
        return devices_of(mesh)

    def stated_seconds(self, step: Step) -> Mapping[int, float]:
        """Returns the seconds of the kernels of each `timed_scope`, by the scope's number: the
        stated cycles, divided by the clock of the profile.

        **Raises:** as `compile`; `CompilerUnavailableError` for profiles without a clock.
        """
        clock_hertz = step.mesh.hardware.clock_hertz
        if clock_hertz is None:
            raise CompilerUnavailableError(
                f"The profile {step.mesh.hardware.name!r} does not say what a cycle takes.",
                topic=topics.COMPILER_PROFILE,
                cause="XLA:TPU states cycles.",
                suggestion="A TPU of the catalogue, or clock_hertz=.",
            )
        cycles = self.answer(step, cycles_there)
        return {int(number): count / clock_hertz for number, count in cycles.items()}

    def check_available(self, hardware: Hardware) -> None:
        """Raises `CompilerUnavailableError` if libtpu is missing or the hardware is no TPU."""
        _interconnect(hardware)
        check_libtpu()


TPU = TpuCompiler(
    "tpu",
    ("tpu",),
    TPU_COMPILER_OPTIONS,
    TPU_CHECK_OPTIONS,
    dump="after_optimizations",
    other_memories={1: "VMEM", **HOST_ONLY},
    # Plan files store an index into this tuple: append new options at the end.
    overlapping_options=(TPU_OVERLAPPING_OPTIONS, TPU_ASYNCHRONOUS_OPTIONS, TPU_REDUCING_OPTIONS),
    ways_without_sums=frozenset({0, 1}),
    # The default scheduler takes the best of `list`, `dfs` and `post_order`. Left out: `bfs`, which
    # is seldom better than `local_order`, and `ilp`, which takes minutes (docs/evidence/tpu.md).
    schedulers=("local_order",),
    scheduler_option="xla_memory_scheduler",
    heaps=TPU_HEAPS,
    # The stated times of matmuls agree with published steps (docs/evidence/profiles.md). Those of
    # other operators do not: XLA:TPU prices a reduction as if it wrote its whole operand, bfloat16
    # as float32, and a gather as almost free.
    stated_kinds=frozenset({"matmul", "elementwise", "stream"}),
    distributions=("libtpu",),
)


def compiled_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """Runs in the separate process. Compiles the step to `folder`, and returns the seconds that
    this took."""
    devices = devices_of(step.mesh)
    return TPU.asked(options).compiled_to_buffers(step, devices, folder)


def cycles_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """Runs in the separate process. Returns `tpu_cycles` of the step, after code is generated."""
    return tpu_cycles(step.compile(devices_of(step.mesh), TPU.check_options).as_text())


def devices_of(mesh: DeviceMesh) -> Sequence[Any]:
    """Returns the devices of the mesh's topology to compile for, in the order of their coordinates.
    Call this in a process without a TPU.

    **Raises:** `CompilerUnavailableError` if the hardware of the mesh is no TPU.
    """
    wiring = _interconnect(mesh.hardware)
    return compile_only_devices(wiring, mesh.topology or Topology.of_devices(mesh.size, wiring))


def compile_only_devices(wiring: Interconnect, topology: Topology) -> Sequence[Any]:
    """Returns the devices of a topology in the order of their coordinates. Programs can be compiled
    for them, but not run on them."""
    os.environ.update(_WITHOUT_A_TPU)
    from jax.experimental import topologies

    bounds = (*topology.extents, 1, 1)[:3]
    is_whole = all(extent % host == 0 for extent, host in zip(bounds, _HOST_BOUNDS, strict=True))
    config = {} if wiring.chip_config is None else {"chip_config_name": wiring.chip_config}
    description = topologies.get_topology_desc(
        platform="tpu",
        topology_name=f"{wiring.generation}:{topology}",
        chips_per_host_bounds=_HOST_BOUNDS if is_whole else (1, 1, 1),
        num_slices=topology.slices,
        **config,
    )
    assert len(description.devices) == topology.slices * prod(bounds) * wiring.devices_per_chip
    return topology.ordered(description.devices)


def check_libtpu() -> None:
    """Raises `CompilerUnavailableError` unless libtpu is installed."""
    if find_spec("libtpu") is None:
        raise CompilerUnavailableError(
            "XLA:TPU's compiler is not installed.",
            topic=topics.COMPILER_MISSING,
            cause="The distribution libtpu is not there.",
            suggestion=f"{_INSTALL}, or verify='cpu'.",
        )


def _interconnect(hardware: Hardware) -> Interconnect:
    """Returns the connection of the hardware's chips; raises `CompilerUnavailableError` if the
    hardware is no TPU."""
    if hardware.interconnect is None:
        raise CompilerUnavailableError(
            f"XLA:TPU does not compile for the profile {hardware.name!r}.",
            topic=topics.COMPILER_PROFILE,
            cause="It is no TPU of the catalogue, and describes no chips of its own.",
            suggestion="profile='v5e' or another TPU; or verify='cpu'.",
        )
    return hardware.interconnect
