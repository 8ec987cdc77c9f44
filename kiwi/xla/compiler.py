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

    - `name`: its name in `verify`, e.g. "cuda".
    - `platforms`: jax's names of the devices that it compiles for. The first one is also
      `Hardware.backend`.
    - `run_options`: compiler options that a plan runs with. `check_options`: those that a check
      compiles with.
    - `overlapping_options`: replacements for `run_options` with which collectives overlap with
      computation, possibly for more memory; the best first. Empty if collectives always or never
      overlap. `ways_without_sums`: the positions of those under which the device waits for
      reductions.
    - `schedulers`: schedulers beside its own, the best first, for `scheduler_option`. `heaps`:
      options for other placements of buffers.
    - `has_host_memory`: whether it distinguishes host memory from device memory.
    - `other_memories`: memories whose bytes are not device memory, by XLA's number (color).
    - `stated_kinds`: the kinds of functions whose stated times are good enough to plan with (values
      of `kiwi.profiling.measure.Kind`).
    - `distributions`: the distributions that contain it, of which any may be installed.
    - `dump`: the end of the names of the files that it writes before it generates code.
    - `reads_heap_trace`: whether a check reads when XLA's heap frees each buffer, which only a dump
      tells.
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
        """The installed distribution with it, and its version; the first distribution's name if
        none is installed."""
        for name in self.distributions:
            with suppress(metadata.PackageNotFoundError):
                return f"{name} {metadata.version(name)}"
        return self.distributions[0]

    def stated_seconds(self, step: Step) -> Mapping[int, float]:
        """By number of a `timed_scope`, the seconds that it states for the scope's content. Scopes
        for which it states nothing, or only a part, are left out. Raises as `compile`."""
        return {}

    @property
    def overlapping(self) -> "tuple[Compiler, ...]":
        """The compiler with overlapping collectives, in each of its ways. `way` is the number of
        each."""
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
        """The compiler with another arrangement of programs, as far as it can be told to."""
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
        """The information for its process."""
        return {"way": self.way, "arrangement": asdict(step.arrangement)}

    def asked(self, options: Mapping[str, Any]) -> "Compiler":
        """In its process: this compiler or an `overlapping` one, according to a `request`."""
        arranged = self.arranged(Arrangement(**options["arrangement"]))
        return arranged if options["way"] is None else arranged.overlapping[options["way"]]

    def compiled_to_buffers(self, step: ExportedStep, devices: Sequence[Any], folder: str) -> float:
        """In its process: compiles the program of a check until its files are in `folder`, before
        code is generated; returns the seconds. The caller reads them there (`read`). The process
        ends at once, and with it XLA's further work."""
        compiler_options = {**self.check_options, **dump_options(folder)}
        started = time.monotonic()
        dumped(lambda: step.compile(devices, compiler_options), folder, self.dump)
        return time.monotonic() - started

    def read(self, mesh: DeviceMesh, folder: str, seconds: float) -> CompiledProgram:
        """The program in a folder, compiled in so many seconds for a mesh."""
        dump = dump_in(folder, self.dump)
        dump = dump if self.reads_heap_trace else dump.without_heap_trace
        return read_dump(dump, mesh, self.name, seconds, self.other_memories)

    @abstractmethod
    def compile(self, step: Step) -> CompiledProgram:
        """Compiles for `step.mesh.size` devices, none of which needs to be attached; raises
        `CompileCheckError` if the compilation fails, `CompilerUnavailableError` as
        `check_available`."""

    @abstractmethod
    def compile_only_devices(self, mesh: DeviceMesh) -> Sequence[Any]:
        """In a process of its own: the devices of a mesh to compile for; raises as
        `check_available`."""

    def begin(self, step: Step) -> Callable[[], CompiledProgram]:
        """Begins to compile. Calling the result waits for the program. Both raise as `compile`."""
        return functools.partial(self.compile, step)

    def check_available(self, hardware: Hardware) -> None:
        """Raises `CompilerUnavailableError` unless `compile` works here for the hardware."""
        return

    def ahead(self, mesh: DeviceMesh) -> AbstractContextManager[None]:
        """Inside this context manager, whatever `compile` has to start for the mesh starts in the
        background."""
        return process_ahead()

    def compile_attached(self, step: Step) -> CompiledProgram:
        """Compiles for the first `step.mesh.size` attached devices, with the options of a run;
        raises `NotEnoughDevicesError` if there are fewer."""
        started = time.monotonic()
        compiled = step.compile(jax.devices(), self.arranged(step.arrangement).run_options)
        return read_compiled(compiled, step.mesh, "device", time.monotonic() - started)


class CompilerElsewhere(Compiler):
    """A compiler that works in a process of its own."""

    @property
    @abstractmethod
    def compiled_there(self) -> Answer:
        """The answer of its process: the seconds in which it compiles to its folder."""

    @abstractmethod
    def begun(self, step: Step, answer: Answer) -> Begun:
        """The process in which a function answers. It raises as `compile`, and so does
        its result."""

    def answer(self, step: Step, answer: Answer) -> Any:
        """The answer of a function in a process of its own, see `begun_elsewhere`; raises as
        `compile`."""
        return self.begun(step, answer)()

    def begin(self, step: Step) -> Callable[[], CompiledProgram]:
        """As `compile`; several processes may work at the same time."""
        begun = self.begun(step, self.compiled_there)
        return lambda: begun.read(functools.partial(self.read, step.mesh))

    def compile(self, step: Step) -> CompiledProgram:
        """Compiles for the devices of the mesh's profile.

        **Raises:** as `check_available`; `CompileCheckError` if the compilation fails, or would
        fail when it generates code.
        """
        return self.begin(step)()
