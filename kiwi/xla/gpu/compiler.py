"""XLA:GPU, which compiles for NVIDIA GPUs that need not be attached.

The wheels jax-cuda12-plugin and jax-cuda12-pjrt (the extra `aot-cuda`) contain the compiler. They
need no other library of NVIDIA to compile for a device from its description
(`kiwi.xla.gpu.target_config`).
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
"""Options with which cuBLAS computes all matmuls, in the check and in the run.

By default XLA:GPU times kernels on the device to decide for which matmuls it generates code itself.
It fuses such a matmul with the operators around it, whose results then take no memory. Without a
device XLA:GPU would generate code for all matmuls, so that the check and the run would differ
(docs/evidence/gpu.md).
"""

GPU_COMPILER_OPTIONS = {"xla_gpu_disable_async_collectives": "ALLCOLLECTIVES", **_LIBRARY_MATMULS}
"""Options of a run, under which XLA:GPU keeps the plan's order.

By default asynchronous collectives start as early as they can, so that their operands and results
are held longer (`benchmarks/paper/gpu_options.py`). A plan that has the memory for this runs with
`GPU_OVERLAPPING_OPTIONS` instead.
"""

_COMBINED_BYTES = 32 * 2**20
"""The combined size up to which XLA:GPU merges collectives. Larger ones stay separate."""

_DEVICES_OF_A_NODE = 8

GPU_OVERLAPPING_OPTIONS = {
    **_LIBRARY_MATMULS,
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_all_gather_combine_threshold_bytes": _COMBINED_BYTES,
    "xla_gpu_all_reduce_combine_threshold_bytes": _COMBINED_BYTES,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": _COMBINED_BYTES // _DEVICES_OF_A_NODE,
}
"""Options under which collectives overlap with computation.

By default XLA:GPU combines collectives as far as it estimates that memory allows. It then holds all
gradients until the last one is computed, and reduces them after all computation. With a threshold
of `_COMBINED_BYTES` collectives overlap with computation, while few launches keep the latency small
(docs/evidence/time.md). The threshold of reduce-scatters is smaller, since XLA:GPU compares it with
their results.
"""

GPU_CHECK_OPTIONS = {**GPU_COMPILER_OPTIONS, "xla_gpu_autotune_level": 0}
"""Options of a check. Autotuning is off, since it times kernels on a device. Without autotuning
convolutions have no workspace, which they may have in the program that runs."""

GPU_STATING_OPTIONS = {
    "xla_gpu_collect_cost_model_stats": True,
    "xla_gpu_experimental_force_split_k": 1,
}
"""Options under which XLA:GPU states the times of kernels. Split-K is off, since XLA:GPU's table of
matmuls does not cover it."""

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
"""The distributions that contain the compiler. Each needs its "-pjrt" counterpart of the same
version."""

_INSTALL = 'pip install "kiwi-planner[aot-cuda]"'


class GpuCompiler(CompilerElsewhere):
    """The compiler XLA:GPU, from jax's CUDA plugin."""

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
        """Returns the stated seconds of the kernels of each `timed_scope`, by the scope's number.

        **Raises:** as `compile`; `CompilerUnavailableError` for GPUs that XLA:GPU's tables do not
        cover.
        """
        seconds_by_number = self.answer(step, seconds_there)
        return {int(number): seconds for number, seconds in seconds_by_number.items()}

    def check_available(self, hardware: Hardware) -> None:
        """Raises `CompilerUnavailableError` if the compiler is missing, its version differs from
        jax's, or the hardware has no description for XLA:GPU."""
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
    """Runs in the separate process. Compiles the step to `folder`, and returns the seconds that
    this took."""
    devices = compile_only_devices(options["target_config"], step.mesh.size)
    with step.memories_stated:
        return GPU.asked(options).compiled_to_buffers(step, devices, folder)


def seconds_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """Runs in the separate process. Returns `gpu_seconds` of the step, without generating code."""
    devices = compile_only_devices(options["target_config"], step.mesh.size)
    compiler_options = {**GPU.check_options, **GPU_STATING_OPTIONS, **dump_options(folder)}
    with step.memories_stated:
        return gpu_seconds(
            dumped(lambda: step.compile(devices, compiler_options), folder, GPU.dump).text
        )


def check_plugin() -> None:
    """Raises `CompilerUnavailableError` unless one of `PLUGINS` and its "-pjrt" counterpart are
    installed in jax's version."""
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
    """Returns the typed error for the output of a failed compilation; None if the failure is
    unknown."""
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
    """Returns `count` devices that programs can be compiled for, but not run on.

    - `config`: XLA:GPU's description of one device, see `target_config`.
    """
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=config, topology=f"1x1x{count}"
    )
    return list(topology.devices)
