"""XLA:CPU, which compiles for virtual devices.

It compiles in this process if that has enough CPU devices, and otherwise in a process of its own.
That process ends before code is generated, which would take as long as everything before.
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
"""Passes of XLA:CPU without which it treats memory as accelerators do.

- `cse_barrier_expander` removes barriers before the last common-subexpression elimination,
  which would merge every recomputation with the original (jax 0.11 runs it after scheduling).
- `cpu-all-reduce-combiner` merges all gradients' all-reduces, which keeps every gradient.
- `dot-library-rewriter` hands matmuls and reductions to a library for CPUs, whose kernels do
  not take the elementwise chain in front of a reduction: it is materialised instead.
- `small-while-loop-hoisting` makes one kernel of a loop on little data, in which XLA:CPU cannot
  emit the barriers that the first pass would have removed (it fails, or ends the process).
"""

CPU_CHECK_OPTIONS = {
    **CPU_COMPILER_OPTIONS,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""Options of a check. LLVM optimises nothing, because nothing is run. Memory and collectives are
settled before."""


class CpuCompiler(Compiler):
    """XLA:CPU, which is always installed."""

    def compile(self, step: Step) -> CompiledProgram:
        """Compiles for `step.mesh.size` virtual CPU devices; raises `CompileCheckError` if the
        compilation fails."""
        devices = cpu_devices()
        return compile_elsewhere(step) if len(devices) < step.mesh.size else _read(step, devices)

    def compile_only_devices(self, mesh: DeviceMesh) -> Sequence[Any]:
        """All CPU devices of the process; see `Compiler`."""
        return cpu_devices()

    def ahead(self, mesh: DeviceMesh) -> AbstractContextManager[None]:
        """Starts a process only if more devices are needed than this one has."""
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
    """This process's CPU devices, if it has any."""
    try:
        return list(jax.devices("cpu"))
    except RuntimeError:
        return []


def compile_elsewhere(step: Step) -> CompiledProgram:
    """`CPU.compile` in a process of its own, with as many CPU devices as the mesh needs."""
    begun = begun_elsewhere(compiled_there, step, "cpu")
    return begun.read(partial(CPU.read, step.mesh))


def compiled_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """The answer of the process: the seconds in which it compiles to `folder`."""
    devices = virtual_devices(step.mesh.size)
    return CPU.compiled_to_buffers(step, devices, folder)


def virtual_devices(count: int) -> list[Any]:
    """CPU devices, for a process that has not used any yet."""
    jax.config.update("jax_num_cpu_devices", count)
    return jax.devices()


def _read(step: Step, devices: Sequence[Any]) -> CompiledProgram:
    started = time.monotonic()
    compiled = step.compile(devices, CPU.check_options)
    return read_compiled(compiled, step.mesh, CPU.name, time.monotonic() - started)
