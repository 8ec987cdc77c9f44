"""XLA:GPU compiles for NVIDIA GPUs that need not be attached.

The wheels jax-cuda12-plugin and jax-cuda12-pjrt (the extra `aot-cuda`; no other library of
NVIDIA's) compile for devices that are described to them, see `kiwi.xla.gpu.target_config`.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

from kiwi.errors import CompilerUnavailableError, KiwiError
from kiwi.mesh import DeviceMesh, Hardware
from kiwi.messages import topics
from kiwi.xla.compile.dump import dump_options, dumped
from kiwi.xla.compile.worker import Answer, Begun, begun_elsewhere
from kiwi.xla.compiler import CompilerElsewhere
from kiwi.xla.gpu.target_config import target_config
from kiwi.xla.read.stated_times import gpu_seconds
from kiwi.xla.step import ExportedStep, Step

_LIBRARY_MATMULS = {"xla_gpu_enable_triton_gemm": False}
"""Makes all matmuls cuBLAS's, in the check and in the run. By default XLA:GPU times kernels on the
device to decide which matmuls it generates code for. Such a matmul is fused with operators around
it, whose results then take no memory. Without a device it would fuse all of them, and the check
would be of another program than runs (docs/evidence/gpu.md)."""

GPU_COMPILER_OPTIONS = {"xla_gpu_disable_async_collectives": "ALLCOLLECTIVES", **_LIBRARY_MATMULS}
"""Options of XLA:GPU under which it keeps the plan's order.

By default asynchronous collectives start as early as they can, and their operands and results are
held longer (`benchmarks/paper/gpu_options.py`). A plan with room for that runs with
`GPU_OVERLAPPING_OPTIONS` instead.
"""

_COMBINED_BYTES = 32 * 2**20
_DEVICES_OF_A_NODE = 8

GPU_OVERLAPPING_OPTIONS = {
    **_LIBRARY_MATMULS,
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_all_gather_combine_threshold_bytes": _COMBINED_BYTES,
    "xla_gpu_all_reduce_combine_threshold_bytes": _COMBINED_BYTES,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": _COMBINED_BYTES // _DEVICES_OF_A_NODE,
}
"""Options under which collectives overlap with computation.

By default XLA:GPU combines collectives as far as it thinks that memory allows. All gradients are
then held until the last is computed, and reduced after all computation. Combined to 32 MiB (of the
result as well, for a reduce-scatter) they overlap, and latencies stay small
(docs/evidence/time.md).
"""

GPU_CHECK_OPTIONS = {**GPU_COMPILER_OPTIONS, "xla_gpu_autotune_level": 0}
"""Options of a check. Nothing is timed on a device, so kernels are not tuned. Convolutions get no
workspace, although the tuned program may ask for some."""

GPU_STATING_OPTIONS = {
    "xla_gpu_collect_cost_model_stats": True,
    "xla_gpu_experimental_force_split_k": 1,
}
"""Options under which it states the time of kernels. Its table has no matmuls that are split along
the summed dimension."""

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
"""Distributions that contain the compiler, each with a "-pjrt" of the same version."""

_INSTALL = 'pip install "kiwi-planner[aot-cuda]"'


class GpuCompiler(CompilerElsewhere):
    """XLA:GPU, as jax's CUDA plugin brings it."""

    @property
    def compiled_there(self) -> Answer:
        """See `CompilerElsewhere`."""
        return compiled_there

    def begun(self, step: Step, answer: Answer) -> Begun:
        """See `CompilerElsewhere`."""
        config = target_config(step.mesh.hardware)
        options = {"target_config": config, **self.request(step)}
        check_plugin()
        return begun_elsewhere(answer, step, "cuda", options, explain_failure)

    def compile_only_devices(self, mesh: DeviceMesh) -> Sequence[Any]:
        """See `Compiler`."""
        return compile_only_devices(target_config(mesh.hardware), mesh.size)

    def stated_seconds(self, step: Step) -> Mapping[int, float]:
        """By number of a `timed_scope` the seconds of its kernels; raises as `compile`, and
        `CompilerUnavailableError` for GPUs that XLA:GPU has no tables of."""
        seconds_by_number = self.answer(step, seconds_there)
        return {int(number): seconds for number, seconds in seconds_by_number.items()}

    def check_available(self, hardware: Hardware) -> None:
        """Raises `CompilerUnavailableError` if the compiler is missing or of another version than
        jax, or if the hardware is no NVIDIA GPU."""
        target_config(hardware)
        check_plugin()


GPU = GpuCompiler(
    "cuda",
    ("gpu", "cuda"),
    GPU_COMPILER_OPTIONS,
    GPU_CHECK_OPTIONS,
    dump="gpu_after_optimizations",
    overlapping_options=(GPU_OVERLAPPING_OPTIONS,),
    stated_kinds=frozenset({"matmul", "operator", "stream", "collective"}),
    distributions=PLUGINS,
)


def compiled_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """The answer of the process: the seconds in which it compiles to `folder`."""
    devices = compile_only_devices(options["target_config"], step.mesh.size)
    with step.memories_stated:
        return GPU.asked(options).compiled_to_buffers(step, devices, folder)


def seconds_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """The answer of the process: `gpu_seconds`, before any code is generated."""
    devices = compile_only_devices(options["target_config"], step.mesh.size)
    compiler_options = {**GPU.check_options, **GPU_STATING_OPTIONS, **dump_options(folder)}
    with step.memories_stated:
        return gpu_seconds(
            dumped(lambda: step.compile(devices, compiler_options), folder, GPU.dump).text
        )


def check_plugin() -> None:
    """Raises `CompilerUnavailableError` unless the plugin is installed in jax's version."""
    installed = next((name for name in PLUGINS if _version(name) is not None), None)
    if installed is None:
        raise CompilerUnavailableError(
            "XLA:GPU's compiler is not installed.",
            topic=topics.COMPILER_MISSING,
            cause=f"None of the distributions {', '.join(PLUGINS)} is there.",
            suggestion=f"{_INSTALL}, or verify='cpu'.",
        )
    for part in (installed, installed.replace("plugin", "pjrt")):
        version = _version(part)
        if version != jax.__version__:
            state = "not installed" if version is None else f"of version {version}"
            raise CompilerUnavailableError(
                f"{part} is {state}, jax is of version {jax.__version__}.",
                topic=topics.COMPILER_VERSION,
                suggestion=f"pip install \"{part}=={jax.__version__}\", or verify='cpu'.",
            )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def explain_failure(printed: str) -> KiwiError | None:
    """The typed error for the output of a failed compilation; None if it is unknown."""
    if "Cannot find key: sm_" in printed:
        return CompilerUnavailableError(
            "XLA:GPU states no times for these GPUs.",
            topic=topics.NO_STATED_TIMES,
            cause="Its tables are of compute capability 9.0 and later (H100, H200).",
        )
    if "target_config" in printed or "GpuTargetConfigProto" in printed:
        return CompilerUnavailableError(
            "XLA:GPU does not accept the description of the device.",
            topic=topics.COMPILER_PROFILE,
            cause=printed.strip().splitlines()[-1],
        )
    return None


def compile_only_devices(config: str, count: int) -> list[Any]:
    """Devices that programs can be compiled for, and not run on."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=config, topology=f"1x1x{count}"
    )
    return list(topology.devices)
