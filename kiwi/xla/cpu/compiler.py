"""XLA:CPU, which compiles for virtual devices.

A step is compiled in this process if it has enough CPU devices, and otherwise in a separate
process. The separate process ends before code is generated, which saves much of the time.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax

from kiwi.mesh import DeviceMesh
from kiwi.xla.compile.worker import begun_elsewhere, process_ahead
from kiwi.xla.compiler import Compiler
from kiwi.xla.read.compiled_program import CompiledProgram, read_compiled
from kiwi.xla.step import ExportedStep, Step

CPU_COMPILER_OPTIONS = {
    "xla_disable_hlo_passes": "cse_barrier_expander,cpu-all-reduce-combiner,"
    "dot-library-rewriter,small-while-loop-hoisting"
}
"""Options of a run. They disable four passes, so that XLA:CPU treats memory as accelerators do.

- `cse_barrier_expander` removes barriers before the last common-subexpression elimination. The
  elimination would then merge every recomputation with the original (jax 0.11 runs the expander
  after scheduling).
- `cpu-all-reduce-combiner` merges the all-reduces of all gradients, which keeps every gradient
  alive until then.
- `dot-library-rewriter` hands matmuls and reductions to a CPU library. Its kernels do not fuse the
  elementwise chain in front of a reduction, so that the chain's result is materialised.
- `small-while-loop-hoisting` makes one kernel of a loop on little data. XLA:CPU cannot emit the
  barriers in such a kernel that `cse_barrier_expander` would have removed: it fails, or aborts the
  process.
"""

CPU_CHECK_OPTIONS = {
    **CPU_COMPILER_OPTIONS,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""Options of a check. LLVM's optimisations are off, because the code of a check is never run. They
do not affect memory or collectives."""


class CpuCompiler(Compiler):
    """The compiler XLA:CPU, which every jaxlib contains."""

    def compile(self, step: Step) -> CompiledProgram:
        """Compiles the step for `step.mesh.size` virtual CPU devices.

        **Raises:** `CompileCheckError` if the compilation fails.
        """
        devices = cpu_devices()
        return compile_elsewhere(step) if len(devices) < step.mesh.size else _read(step, devices)

    def compile_only_devices(self, mesh: DeviceMesh) -> Sequence[Any]:
        """Returns all CPU devices of this process; see `Compiler`."""
        return cpu_devices()

    def ahead(self, mesh: DeviceMesh) -> AbstractContextManager[None]:
        """See `Compiler`. A process starts only if the mesh is larger than the number of CPU
        devices of this process."""
        return process_ahead() if len(cpu_devices()) < mesh.size else nullcontext()


CPU = CpuCompiler(
    "cpu",
    ("cpu",),
    CPU_COMPILER_OPTIONS,
    CPU_CHECK_OPTIONS,
    dump="cpu_after_optimizations",
    has_host_memory=False,
    reads_heap_trace=False,  # A check in this process has no dump, and gives the same figures.
)


def cpu_devices() -> list[Any]:
    """Returns the CPU devices of this process; none if jax runs without its CPU backend."""
    try:
        return list(jax.devices("cpu"))
    except RuntimeError:
        return []


def compile_elsewhere(step: Step) -> CompiledProgram:
    """Compiles the step in a separate process that has as many CPU devices as the mesh; raises as
    `CPU.compile`."""
    begun = begun_elsewhere(compiled_there, step, "cpu")
    return begun.read(partial(CPU.read, step.mesh))


def compiled_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """Runs in the separate process. Compiles the step to `folder`, and returns the seconds that
    this took."""
    devices = virtual_devices(step.mesh.size)
    return CPU.compiled_to_buffers(step, devices, folder)


def virtual_devices(count: int) -> list[Any]:
    """Returns `count` CPU devices. jax must not have been used in this process before."""
    jax.config.update("jax_num_cpu_devices", count)
    return jax.devices()


def _read(step: Step, devices: Sequence[Any]) -> CompiledProgram:
    started = time.monotonic()
    compiled = step.compile(devices, CPU.check_options)
    return read_compiled(compiled, step.mesh, CPU.name, time.monotonic() - started)
