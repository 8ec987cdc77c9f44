"""A function that is ready to be compiled, in this process or in a separate one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax import export
from jax.sharding import NamedSharding

from kiwi.errors import CompileCheckError
from kiwi.hlo import jax_internals
from kiwi.hlo.host_memory import HOST_MEMORY
from kiwi.mesh import DeviceMesh
from kiwi.messages import topics
from kiwi.timings import timed
from kiwi.xla.read.hlo_text import HOST_SPACE


@dataclass(frozen=True)
class Arrangement:
    """How a compiler arranges a program in time and memory (`Compiler.arranged`).

    - `scheduler`: the member of `Compiler.schedulers` that orders the program; None for the default
      scheduler.
    - `heap`: the position in `Compiler.heaps`, counted from 1, of the options that place its
      buffers; 0 for the default placement.
    """

    scheduler: str | None = None
    heap: int = 0


XLAS_OWN = Arrangement()
"""The default scheduler and the default placement of buffers."""


@dataclass(frozen=True, eq=False)
class Step:
    """A function over flat arguments, with all that `jax.jit` needs to compile it.

    - `function`: takes the arguments by position and returns the results in order.
    - `arguments`: the global shapes and dtypes of the arguments.
    - `mesh`: the mesh that the function runs on.
    - `in_specs`, `out_specs`: the `PartitionSpec` of each argument and result; None lets XLA
      choose.
    - `donated`: the positions of donated arguments.
    - `host_arguments`, `host_results`: the positions of arguments and results in host memory.
    - `kernel_seconds`: by unit of a plan, the time of one run of each of its library kernels.
    - `unit_runs`: by unit of a plan, how often it runs in a step.
    - `arrangement`: how the compiler arranges the function in time and memory.
    """

    function: Callable[..., Any]
    arguments: Sequence[jax.ShapeDtypeStruct]
    mesh: DeviceMesh
    in_specs: Sequence[Any]
    out_specs: Sequence[Any]
    donated: tuple[int, ...]
    host_arguments: frozenset[int] = frozenset()
    host_results: frozenset[int] = frozenset()
    kernel_seconds: Mapping[int, float] = field(default_factory=dict)
    unit_runs: Mapping[int, float] = field(default_factory=dict)
    arrangement: Arrangement = XLAS_OWN

    def jit(self, mesh: Any, compiler_options: Mapping[str, Any] | None = None) -> Any:
        """Returns the jitted function over a concrete or abstract jax mesh."""
        return jax.jit(
            self.function,
            in_shardings=tuple(self.argument_shardings(mesh)),
            out_shardings=self.result_shardings(mesh),
            donate_argnums=self.donated,
            keep_unused=True,
            compiler_options=None if compiler_options is None else dict(compiler_options),
        )

    def compile(self, devices: Sequence[Any], compiler_options: Mapping[str, Any]) -> Any:
        """Returns the `jax.stages.Compiled` for the first `mesh.size` of the devices.

        **Raises:** `NotEnoughDevicesError` if there are fewer devices; `CompileCheckError` if the
        function cannot be lowered for them, for example because it calls a kernel for another
        platform.
        """
        jitted = self.jit(self.mesh.jax_mesh(devices), compiler_options)
        try:
            lowered = jitted.lower(*self.arguments)
        except (ValueError, NotImplementedError) as error:
            raise CompileCheckError(
                f"The planned step cannot be lowered for {devices[0].platform}: {error}",
                topic=topics.CANNOT_LOWER,
            ) from error
        return lowered.compile()

    def argument_shardings(self, mesh: Any) -> list[Any]:
        """Returns the sharding of each argument over a concrete or abstract jax mesh."""
        return _shardings(mesh, self.in_specs, self.host_arguments)

    def result_shardings(self, mesh: Any) -> list[Any]:
        """Returns the sharding of each result over a concrete or abstract jax mesh."""
        return _shardings(mesh, self.out_specs, self.host_results)

    @timed("emit")
    def exported(self, platform: str) -> bytes:
        """Returns the step as a serialised `jax.export.Exported` for one of jax's platforms.

        Callbacks without results, such as `jax.debug.print`, are left out.

        **Raises:** `CompileCheckError` if the step cannot be serialised.
        """
        jitted = self.jit(self.mesh.abstract_mesh())
        lowering = (
            jax_internals.custom_partitioning_without_devices,
            jax_internals.assumed_gpu,
            jax_internals.callbacks_without_results_left_out,
        )
        try:
            exporting = export.export(jitted, platforms=[platform], disabled_checks=_KERNEL_CALLS)
            with ExitStack() as stack:
                for entered in lowering:
                    stack.enter_context(entered())
                exported = exporting(*self.arguments)
            # Drops the effects of the callbacks that are left out: jax cannot serialise all of
            # them.
            return bytes(replace(exported, unordered_effects=()).serialize())
        except (ValueError, NotImplementedError, TypeError) as error:
            raise CompileCheckError(
                f"The planned function cannot be sent to a process of its own: {error}",
                topic=topics.CANNOT_SEND,
                suggestion=f'verify="cpu" with {self.mesh.size} virtual CPU devices '
                '(jax.config.update("jax_num_cpu_devices", ...)), or verify=None.',
            ) from error


@dataclass(frozen=True, eq=False)
class ExportedStep:
    """A step as a separate process receives it.

    - `exported`: the serialised function.
    - `mesh`: the mesh that the function runs on. Its hardware figures are placeholders.
    - `donated`: the positions of donated arguments.
    """

    exported: export.Exported
    mesh: DeviceMesh
    donated: tuple[int, ...]

    @property
    def memories_stated(self) -> AbstractContextManager[None]:
        """A context manager inside which `compile` tells XLA which arguments and results lie in
        host memory."""
        exported, mesh = self.exported, self.mesh.abstract_mesh()
        ends = (
            (exported.in_avals, exported.in_shardings_jax),
            (exported.out_avals, exported.out_shardings_jax),
        )
        colors: dict[str | None, int] = {HOST_MEMORY: HOST_SPACE}
        stated = [
            [
                (aval, colors.get(getattr(sharding, "memory_kind", None), 0))
                for aval, sharding in pairs
            ]
            for pairs in (
                zip(avals, shardings_over(mesh), strict=True) for avals, shardings_over in ends
            )
        ]
        is_any = any(color for end in stated for _, color in end)
        return jax_internals.memories_stated(*stated) if is_any else nullcontext()

    def compile(
        self,
        devices: Sequence[Any],
        compiler_options: Mapping[str, Any],
        beside: Callable[[], Any] | None = None,
    ) -> Any:
        """Compiles as `Step.compile`. If `beside` is given, its result becomes one more result of
        the program."""
        jax_mesh, extra_results = self.mesh.jax_mesh(devices), [] if beside is None else [beside]
        jitted = jax.jit(
            lambda *arguments: [
                *self.exported.call(*arguments),
                *(make() for make in extra_results),
            ],
            in_shardings=tuple(self.exported.in_shardings_jax(jax_mesh)),
            out_shardings=[
                *self.exported.out_shardings_jax(jax_mesh),
                *(None for _ in extra_results),
            ],
            donate_argnums=self.donated,
            keep_unused=True,
            compiler_options=dict(compiler_options),
        )
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self.exported.in_avals]
        return jitted.lower(*shapes).compile()


_KERNEL_CALLS = [
    export.DisabledSafetyCheck.custom_call(name)
    for name in (
        "__gpu$xla.gpu.triton",
        "__cudnn$fmhaSoftmax",
        "__cudnn$fmhaSoftmaxBackward",
        "LayoutConstraint",
        "mosaic_gpu_v2",
        "tpu_custom_call",
    )
]
"""Custom calls of kernels that an export may contain. jax refuses them by default, since they may
change from one version to the next. The same jax writes and reads these exports."""


def _shardings(mesh: Any, specs: Sequence[Any], on_host: Collection[int]) -> list[Any]:
    kinds = (HOST_MEMORY if position in on_host else None for position in range(len(specs)))
    return [
        None if spec is None else NamedSharding(mesh, spec, memory_kind=kind)
        for spec, kind in zip(specs, kinds, strict=True)
    ]
