"""`Compiler`: the interface of XLA's compilers."""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import Any

import jax

from kiwi.mesh import DeviceMesh, Hardware
from kiwi.xla.compile.dump import dump_in, dump_options, dumped
from kiwi.xla.compile.worker import Answer, Begun, process_ahead
from kiwi.xla.read.buffer_assignment import HOST_ONLY
from kiwi.xla.read.compiled_program import CompiledProgram, read_compiled, read_dump
from kiwi.xla.step import Arrangement, ExportedStep, Step


@dataclass(frozen=True, eq=False)
class Compiler(ABC):
    """One of XLA's compilers: its options, and how it compiles for a check.

    - `name`: the compiler's name in `verify`, e.g. "cuda".
    - `platforms`: jax's names of the devices that the compiler serves. The first name is also
      `Hardware.backend`.
    - `run_options`: the compiler options that a plan runs with.
    - `check_options`: the compiler options of a compile check.
    - `dump`: the common end of the names of the files that XLA writes before it generates code.
    - `has_host_memory`: whether the compiler distinguishes host memory from device memory.
    - `other_memories`: the names of memories that are not device memory, by XLA's number (color).
    - `reads_heap_trace`: whether a check reads from the dump when XLA's heap frees each buffer.
    - `overlapping_options`: replacements for `run_options` with which collectives overlap with
      computation, the best first. They may need more memory. Empty if collectives always or never
      overlap.
    - `ways_without_sums`: the indices of the `overlapping_options` under which the device still
      waits for reductions.
    - `schedulers`: alternatives to the default scheduler, the best first, as values of
      `scheduler_option`.
    - `scheduler_option`: the name of the option that selects a scheduler; None if there is none.
    - `heaps`: options for alternative placements of buffers.
    - `stated_kinds`: the kinds of functions whose stated times are good enough to plan with (values
      of `kiwi.profiling.measure.Kind`).
    - `distributions`: the Python distributions that contain the compiler. Any one of them suffices.
    - `way`: the index into `overlapping_options` of the compiler from which `overlapping` made this
      one; None for all others.
    """

    name: str
    platforms: tuple[str, ...]
    run_options: Mapping[str, Any]
    check_options: Mapping[str, Any]
    dump: str
    has_host_memory: bool = True
    other_memories: Mapping[int, str] = field(default_factory=lambda: HOST_ONLY)
    reads_heap_trace: bool = True
    overlapping_options: tuple[Mapping[str, Any], ...] = ()
    ways_without_sums: frozenset[int] = frozenset()
    schedulers: tuple[str, ...] = ()
    scheduler_option: str | None = None
    heaps: tuple[Mapping[str, Any], ...] = ()
    stated_kinds: frozenset[str] = frozenset()
    distributions: tuple[str, ...] = ("jaxlib",)
    way: int | None = None

    @property
    def version(self) -> str:
        """The name and version of the installed distribution that contains the compiler; only the
        name of the first distribution if none is installed."""
        for name in self.distributions:
            with suppress(metadata.PackageNotFoundError):
                return f"{name} {metadata.version(name)}"
        return self.distributions[0]

    def stated_seconds(self, step: Step) -> Mapping[int, float]:
        """Returns the seconds that the compiler states for the content of each `timed_scope`, by
        the scope's number.

        A scope is left out if the compiler states no time for it or for a part of it. The default
        states nothing.

        **Raises:** as `compile`.
        """
        return {}

    @property
    def overlapping(self) -> "tuple[Compiler, ...]":
        """Copies of the compiler whose collectives overlap with computation: one for each of the
        `overlapping_options`, with its index as `way`."""
        check_only = {
            name: value
            for name, value in self.check_options.items()
            if name not in self.run_options
        }
        return tuple(
            replace(
                self,
                run_options=options,
                check_options={**check_only, **options},
                overlapping_options=(),
                way=way,
            )
            for way, options in enumerate(self.overlapping_options)
        )

    def arranged(self, how: Arrangement) -> "Compiler":
        """Returns the compiler with the scheduler and the heap of `how`. A part of `how` that the
        compiler does not offer is ignored."""
        added = dict(self.heaps[how.heap - 1] if how.heap <= len(self.heaps) and how.heap else {})
        if how.scheduler in self.schedulers and self.scheduler_option is not None:
            added[self.scheduler_option] = how.scheduler
        return replace(
            self,
            run_options={**self.run_options, **added},
            check_options={**self.check_options, **added},
            overlapping_options=tuple({**options, **added} for options in self.overlapping_options),
        )

    def request(self, step: Step) -> dict[str, Any]:
        """Returns the request from which the compiler's own process restores its options with
        `asked`."""
        return {"way": self.way, "arrangement": asdict(step.arrangement)}

    def asked(self, options: Mapping[str, Any]) -> "Compiler":
        """Runs in the compiler's own process. Returns the compiler that a `request` describes: this
        one or an `overlapping` one, with the requested arrangement."""
        arranged = self.arranged(Arrangement(**options["arrangement"]))
        return arranged if options["way"] is None else arranged.overlapping[options["way"]]

    def compiled_to_buffers(self, step: ExportedStep, devices: Sequence[Any], folder: str) -> float:
        """Runs in the compiler's own process. Compiles the step for a check until XLA has written
        its dump to `folder`, and returns the seconds that this took.

        Code is not generated yet at that point. The caller reads the dump with `read`. The process
        then ends at once, which also ends XLA's remaining work.
        """
        compiler_options = {**self.check_options, **dump_options(folder)}
        started = time.monotonic()
        dumped(lambda: step.compile(devices, compiler_options), folder, self.dump)
        return time.monotonic() - started

    def read(self, mesh: DeviceMesh, folder: str, seconds: float) -> CompiledProgram:
        """Returns the program whose dump is in `folder`.

        - `mesh`: the mesh that the program was compiled for.
        - `seconds`: the wall time of the compilation.

        **Raises:** `CompileCheckError` if the folder holds no dump.
        """
        dump = dump_in(folder, self.dump)
        dump = dump if self.reads_heap_trace else dump.without_heap_trace
        return read_dump(dump, mesh, self.name, seconds, self.other_memories)

    @abstractmethod
    def compile(self, step: Step) -> CompiledProgram:
        """Compiles the step for `step.mesh.size` devices, none of which needs to be attached.

        **Raises:** `CompileCheckError` if the compilation fails; `CompilerUnavailableError` as
        `check_available`.
        """

    @abstractmethod
    def compile_only_devices(self, mesh: DeviceMesh) -> Sequence[Any]:
        """Returns the devices of a mesh to compile for. Call this in the compiler's own process.

        **Raises:** as `check_available`.
        """

    def begin(self, step: Step) -> Callable[[], CompiledProgram]:
        """Begins to compile the step. Calling the result waits for the program.

        **Raises:** as `compile`, here and when the result is called.
        """
        return functools.partial(self.compile, step)

    def check_available(self, hardware: Hardware) -> None:
        """Raises `CompilerUnavailableError` unless `compile` works on this machine for the
        hardware."""
        return

    def ahead(self, mesh: DeviceMesh) -> AbstractContextManager[None]:
        """Returns a context manager inside which the processes that `compile` needs for the mesh
        start in the background."""
        return process_ahead()

    def compile_attached(self, step: Step) -> CompiledProgram:
        """Compiles the step for the first `step.mesh.size` attached devices, with `run_options`.

        **Raises:** `NotEnoughDevicesError` if fewer devices are attached; `CompileCheckError` if
        the step cannot be lowered for them.
        """
        started = time.monotonic()
        compiled = step.compile(jax.devices(), self.arranged(step.arrangement).run_options)
        return read_compiled(compiled, step.mesh, "device", time.monotonic() - started)


class CompilerElsewhere(Compiler):
    """A compiler that always compiles in a separate process."""

    @property
    @abstractmethod
    def compiled_there(self) -> Answer:
        """The function that the process runs: it compiles to the process's folder, and returns the
        seconds that this took."""

    @abstractmethod
    def begun(self, step: Step, answer: Answer) -> Begun:
        """Starts a process that runs `answer` on the step. Calling the result waits for the answer.

        **Raises:** as `compile`, here and when the result is called.
        """

    def answer(self, step: Step, answer: Answer) -> Any:
        """Runs `answer` on the step in a separate process, and returns its result. See
        `begun_elsewhere`.

        **Raises:** as `compile`.
        """
        return self.begun(step, answer)()

    def begin(self, step: Step) -> Callable[[], CompiledProgram]:
        """Begins to compile the step; see `Compiler.begin`. Several processes may compile at the
        same time."""
        begun = self.begun(step, self.compiled_there)
        return lambda: begun.read(functools.partial(self.read, step.mesh))

    def compile(self, step: Step) -> CompiledProgram:
        """Compiles the step for the devices that the mesh's profile describes.

        **Raises:** as `check_available`; `CompileCheckError` if the compilation fails, or is known
        to fail when it generates code.
        """
        return self.begin(step)()
