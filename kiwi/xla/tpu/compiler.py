"""XLA:TPU compiles for TPUs that need not be attached.

The wheel libtpu (the extra `aot-tpu`) holds the whole compiler. It reaches the buffer assignment in
seconds, and would generate code for minutes.
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
"""Options of XLA:TPU under which collectives overlap with computation, as by default. The options
switch off four things:

- Its own rematerialisation, which recomputes values that the plan keeps, near the limit. It never
  begins under a limit of this many per cent.
- Space to batch, which turns parts of images into a larger batch, and holds several copies of them.
- Combined all-reduces, which hold all summands until the last is computed: on slices without
  reduce-scatter (`kiwi.targets.rules.tpu.tpu_scattered_sums`) all gradients of a step. Small ones
  are still combined.
- Fast merge, which places buffers on the heap in the order of their definition as long as that fits
  the chip, and wastes part of it. Without it the heap is that of `kiwi.memory.heap`.
"""

TPU_ASYNCHRONOUS_OPTIONS = {
    **TPU_OVERLAPPING_OPTIONS,
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000,
}
"""`TPU_OVERLAPPING_OPTIONS` without windowed einsums, which turn the collectives around a matmul
into chains of permutations, and hold other buffers. No einsum reaches this size."""

TPU_REDUCING_OPTIONS = {
    **TPU_ASYNCHRONOUS_OPTIONS,
    "xla_enable_async_all_reduce": True,
    "xla_enable_async_reduce_scatter_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter": True,
    "xla_tpu_scoped_vmem_limit_kib": 20 * 1024,
}
"""`TPU_OVERLAPPING_OPTIONS` with sums beside computation as well. By default the device waits for
them, and those of gradients are most of a step's communication. (MaxDiffusion's recipes run so.) A
kernel that also moves a sum may take more VMEM than XLA:TPU reserves. It then generates no code."""

TPU_COMPILER_OPTIONS = {**TPU_ASYNCHRONOUS_OPTIONS, "xla_tpu_enable_async_collective_fusion": False}
"""Options under which it runs a plan as it was made, with the plan's collectives.

Asynchronous collective fusion runs a collective beside a matmul, and holds the result longer. A
plan with room for that runs with `TPU_OVERLAPPING_OPTIONS`, `TPU_ASYNCHRONOUS_OPTIONS` or
`TPU_REDUCING_OPTIONS` instead, whichever schedule is fastest.
"""

TPU_CHECK_OPTIONS = {**TPU_COMPILER_OPTIONS, "xla_msa_enable": "DISABLED"}
"""Options of a check: every buffer is in HBM. A run also places some in VMEM, which is not part of
the budget."""

TPU_HEAPS = (
    {"xla_tpu_buffer_assignment_enable_fast_merge_fallback": True},
    *({"xla_tpu_buffer_assignment_randomization_salt": seed} for seed in (1, 2, 3)),
)
"""Options for other placements of buffers: by fast merge, and with other seeds. Their heaps differ
by several per cent."""

_INSTALL = 'pip install "kiwi-planner[aot-tpu]"'

_WITHOUT_A_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # Its lock is for one TPU; there is none.
    "TPU_SKIP_MDS_QUERY": "1",  # A machine in the cloud would be asked what TPU it has.
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # Any: the topology is given.
}
"""Environment variables under which libtpu writes nothing and asks no server."""

_HOST_BOUNDS = (2, 2, 1)
"""The chips of one host, for topologies that consist of several hosts."""


class TpuCompiler(CompilerElsewhere):
    """XLA:TPU, from libtpu."""

    @property
    def compiled_there(self) -> Answer:
        """See `CompilerElsewhere`."""
        return compiled_there

    def begin(self, step: Step) -> Callable[[], CompiledProgram]:
        """See `CompilerElsewhere`."""
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
        """By number of a `timed_scope` the cycles of its kernels over the clock; raises as
        `compile`, and `CompilerUnavailableError` for TPUs without a clock."""
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
        """Raises `CompilerUnavailableError` if libtpu is missing, or the hardware is no TPU."""
        _interconnect(hardware)
        check_libtpu()


TPU = TpuCompiler(
    "tpu",
    ("tpu",),
    TPU_COMPILER_OPTIONS,
    TPU_CHECK_OPTIONS,
    dump="after_optimizations",
    other_memories={1: "VMEM", **HOST_ONLY},
    # Plan files hold a place among them: others go to the end.
    overlapping_options=(TPU_OVERLAPPING_OPTIONS, TPU_ASYNCHRONOUS_OPTIONS, TPU_REDUCING_OPTIONS),
    ways_without_sums=frozenset({0, 1}),
    # Its own takes the best of `list`, `dfs` and `post_order`. `bfs` is seldom better than
    # `local_order`, `ilp` takes minutes (docs/evidence/tpu.md).
    schedulers=("local_order",),
    scheduler_option="xla_memory_scheduler",
    heaps=TPU_HEAPS,
    # Matmuls agree with what published steps reach (docs/evidence/profiles.md). Reductions count as
    # if they wrote what they read, bfloat16 as if it were float32, gathers as next to nothing.
    stated_kinds=frozenset({"matmul", "elementwise", "stream"}),
    distributions=("libtpu",),
)


def compiled_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """The answer of the process: the seconds in which it compiles to `folder`."""
    devices = devices_of(step.mesh)
    return TPU.asked(options).compiled_to_buffers(step, devices, folder)


def cycles_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """The answer of the process: `tpu_cycles`, once code is generated."""
    return tpu_cycles(step.compile(devices_of(step.mesh), TPU.check_options).as_text())


def devices_of(mesh: DeviceMesh) -> Sequence[Any]:
    """The devices that a process compiles for, which `mesh` orders."""
    wiring = _interconnect(mesh.hardware)
    return compile_only_devices(wiring, mesh.topology or Topology.of_devices(mesh.size, wiring))


def compile_only_devices(wiring: Interconnect, topology: Topology) -> Sequence[Any]:
    """The devices of a topology in the order of their coordinates; nothing can run on them."""
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
    """How the hardware's chips are connected; raises `CompilerUnavailableError` if it is no TPU."""
    if hardware.interconnect is None:
        raise CompilerUnavailableError(
            f"XLA:TPU does not compile for the profile {hardware.name!r}.",
            topic=topics.COMPILER_PROFILE,
            cause="It is no TPU of the catalogue, and describes no chips of its own.",
            suggestion="profile='v5e' or another TPU; or verify='cpu'.",
        )
    return hardware.interconnect
