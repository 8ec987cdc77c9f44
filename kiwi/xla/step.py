"""The compile check: the planned function, compiled for virtual CPU devices.

In this process where it has enough CPU devices, else in a process of its own.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export
from jax.sharding import NamedSharding

from kiwi.errors import CompileCheckError
from kiwi.hlo.host_memory import HOST_MEMORY
from kiwi.mesh import DeviceMesh
from kiwi.xla.compiled_program import CompiledProgram, read_compiled
from kiwi.xla.worker import Request, compile_elsewhere

CPU_COMPILER_OPTIONS = {
    "xla_disable_hlo_passes": "cse_barrier_expander,cpu-all-reduce-combiner,"
    "dot-library-rewriter,small-while-loop-hoisting"
}
"""Passes of XLA:CPU without which it treats memory as accelerators do.

- `cse_barrier_expander` removes barriers before the last common-subexpression elimination,
  which would merge every recomputation with the original.
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
"""Of a check: LLVM optimises nothing, because nothing is run. What XLA keeps in memory and sends is
settled before: `gpt-13b-4l` as planned, and a U-Net, a convnet and an MLP on (2, 4), compiled to
the same bytes, in 10 to 40 % less time."""


@dataclass(frozen=True, eq=False)
class Step:
    """A flat function ready to be compiled: what `jax.jit` needs to know.

    `in_specs` and `out_specs` are `PartitionSpec`s, None where XLA may choose; `donated` are
    argument positions; `host_arguments` and `host_results` are those in host memory.
    """

    function: Callable[..., Any]
    arguments: Sequence[jax.ShapeDtypeStruct]
    mesh: DeviceMesh
    in_specs: Sequence[Any]
    out_specs: Sequence[Any]
    donated: tuple[int, ...]
    host_arguments: frozenset[int] = frozenset()
    host_results: frozenset[int] = frozenset()

    def jit(self, mesh: Any, compiler_options: dict[str, Any] | None = None) -> Any:
        """The jitted function over a concrete or abstract jax mesh."""
        return jax.jit(
            self.function,
            in_shardings=tuple(self.argument_shardings(mesh)),
            out_shardings=_shardings(mesh, self.out_specs, self.host_results),
            donate_argnums=self.donated,
            keep_unused=True,
            compiler_options=compiler_options,
        )

    def argument_shardings(self, mesh: Any) -> list[Any]:
        """The sharding of each argument over a concrete or abstract jax mesh."""
        return _shardings(mesh, self.in_specs, self.host_arguments)


def _shardings(mesh: Any, specs: Sequence[Any], on_host: Collection[int]) -> list[Any]:
    kinds = (HOST_MEMORY if k in on_host else None for k in range(len(specs)))
    return [
        None if spec is None else NamedSharding(mesh, spec, memory_kind=kind)
        for spec, kind in zip(specs, kinds, strict=True)
    ]


def verify_on_cpu(step: Step) -> CompiledProgram:
    """Compiles for `step.mesh.size` virtual CPU devices.

    **Raises:** `CompileCheckError` if the compilation fails.
    """
    devices = cpu_devices()
    if len(devices) >= step.mesh.size:
        return compile_here(step, devices)
    return compile_on_cpu_elsewhere(step)


def cpu_devices() -> list[Any]:
    """This process's CPU devices, if it has any."""
    try:
        return list(jax.devices("cpu"))
    except RuntimeError:
        return []


def compile_here(step: Step, devices: Sequence[Any]) -> CompiledProgram:
    """Compiles on the given CPU devices."""
    started = time.monotonic()
    jitted = step.jit(step.mesh.jax_mesh(devices), CPU_CHECK_OPTIONS)
    compiled = jitted.lower(*step.arguments).compile()
    return read_compiled(compiled, step.mesh, "cpu", time.monotonic() - started)


def compile_on_cpu_elsewhere(step: Step) -> CompiledProgram:
    """`verify_on_cpu` in a process of its own, with as many CPU devices as the mesh needs."""
    mesh = step.mesh
    request = Request("cpu", mesh.shape, mesh.axis_names, step.donated, {})
    return compile_elsewhere(export_step(step, "cpu"), request, lambda printed: None)


def export_step(step: Step, platform: str) -> bytes:
    """The step as a serialised `jax.export.Exported` for "cpu" or "cuda".

    **Raises:** `CompileCheckError` if it calls something that cannot be serialised.
    """
    jitted = step.jit(step.mesh.abstract_mesh())
    try:
        return bytes(export.export(jitted, platforms=[platform])(*step.arguments).serialize())
    except (ValueError, NotImplementedError, TypeError) as error:
        raise CompileCheckError(
            f"The planned function cannot be sent to a process of its own: {error}",
            cause="It calls something that jax.export cannot serialise, e.g. a callback.",
            suggestion=f"Start this process with {step.mesh.size} virtual CPU devices "
            '(jax.config.update("jax_num_cpu_devices", ...)), or pass verify=None.',
        ) from error
