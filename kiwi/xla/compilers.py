"""The registry of compilers, by their names in `verify` and by the platforms of devices."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import jax

from kiwi.errors import CompilerUnavailableError, InvalidArgumentError
from kiwi.mesh import DeviceMesh, Hardware
from kiwi.messages import Note, topics
from kiwi.timings import stage, timed
from kiwi.xla.compiler import Compiler
from kiwi.xla.cpu.compiler import CPU
from kiwi.xla.gpu.compiler import GPU
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.simulated import simulated
from kiwi.xla.step import Step
from kiwi.xla.tpu.compiler import TPU

COMPILERS = {compiler.name: compiler for compiler in (CPU, GPU, TPU)}
"""All compilers, by name."""

ATTACHED = "device"
"""The name in `verify` that compiles for jax's default devices, with their own compiler."""

AUTO = "auto"
"""The name in `verify` for the compiler of the profile's hardware. XLA:CPU stands in for a compiler
that is not installed; see `resolved`."""

TARGETS = (*COMPILERS, ATTACHED)
"""The names that `verify` accepts beside `AUTO`."""


def named(target: str) -> Compiler:
    """Returns the compiler that one of the names `TARGETS` stands for.

    **Raises:** `InvalidArgumentError` for another name; `CompilerUnavailableError` as
    `of_platform`, for `ATTACHED`.
    """
    if target == ATTACHED:
        return of_platform(jax.devices()[0].platform)
    if target not in COMPILERS:
        raise InvalidArgumentError(
            f"verify={target!r} is not a target of the compile check.",
            topic=topics.TARGET,
            suggestion="One of "
            + ", ".join(repr(name) for name in (AUTO, *TARGETS))
            + ", or None.",
        )
    return COMPILERS[target]


def of_platform(platform: str) -> Compiler:
    """Returns the compiler for devices of a platform, named as jax or a profile names it.

    **Raises:** `CompilerUnavailableError` if no compiler of `COMPILERS` serves the platform.
    """
    for compiler in COMPILERS.values():
        if platform in compiler.platforms:
            return compiler
    known_platforms = ", ".join(
        repr(name) for compiler in COMPILERS.values() for name in compiler.platforms
    )
    raise CompilerUnavailableError(
        f"Kiwi does not know the compiler of the platform {platform!r}.",
        topic=topics.PLATFORM,
        cause=f"It knows those of {known_platforms}.",
    )


def of_devices(mesh: jax.sharding.Mesh) -> Compiler:
    """Returns the compiler for the devices of a mesh; raises as `of_platform`."""
    return of_platform(mesh.devices.flat[0].platform)


def resolved(verify: str | None, hardware: Hardware) -> tuple[str | None, tuple[Note, ...]]:
    """Returns the name that `verify="auto"` means for the hardware, and notes for the user.

    Any other value of `verify` is returned unchanged, without notes. If XLA:CPU stands in for the
    hardware's compiler, a note says what to install.
    """
    if verify != AUTO:
        return verify, ()
    try:
        compiler = of_platform(hardware.backend)
        compiler.check_available(hardware)
    except CompilerUnavailableError as error:
        note = Note.of(
            topics.OTHER_COMPILER,
            f"Checked by XLA:CPU. {error.what} {error.suggestion}",
            suggestion=error.suggestion,
        )
        return CPU.name, (note,)
    return compiler.name, ()


@timed("compile")
def compile_for(target: str, step: Step) -> CompiledProgram:
    """Compiles `step` for one of `TARGETS`, and prices the schedule of the compiled program.

    **Raises:** `CompileCheckError` if the compilation fails; `CompilerUnavailableError` if there is
    no compiler for the target; `InvalidArgumentError` for an unknown target;
    `NotEnoughDevicesError` if the target is "device" and too few devices are attached.
    """
    compiler = named(target)
    compile = compiler.compile_attached if target == ATTACHED else compiler.compile
    return _priced(step, compile(step))


Begin = Callable[[Step], Callable[[], CompiledProgram]]
"""Begins to compile a step. Calling the result waits for the program. Several compilations may be
under way at the same time."""


def begin_for(target: str, step: Step) -> Callable[[], CompiledProgram]:
    """Begins `compile_for` in the background where the compiler can. Calling the result waits for
    the program.

    **Raises:** as `compile_for`, here and when the result is called.
    """
    if target == ATTACHED:
        return functools.partial(compile_for, target, step)
    return _begun(named(target), step)


def overlapping_compiles(target: str) -> tuple[Begin, ...]:
    """Returns, for each of the compiler's `overlapping_options`, a function that begins to compile
    with it. The tuple is empty for "device", and for a compiler without such options."""
    compilers = () if target == ATTACHED else named(target).overlapping
    return tuple(functools.partial(_begun, compiler) for compiler in compilers)


def _begun(compiler: Compiler, step: Step) -> Callable[[], CompiledProgram]:
    with stage("compile"):
        wait_for_program = compiler.begin(step)
    return lambda: _finished(step, wait_for_program)


@timed("compile")
def _finished(step: Step, begun: Callable[[], CompiledProgram]) -> CompiledProgram:
    return _priced(step, begun())


def _priced(step: Step, found: CompiledProgram) -> CompiledProgram:
    assert found.schedule is not None
    time = simulated(found.schedule, step.mesh, step.kernel_seconds, step.unit_runs)
    return replace(found, time=time, schedule=None)


def prepared(target: str | None, mesh: DeviceMesh) -> AbstractContextManager[None]:
    """Returns a context manager inside which the processes that `compile_for` needs start in the
    background.

    **Raises:** `CompilerUnavailableError` if there is no compiler for the target;
    `InvalidArgumentError` for an unknown target. The error comes at once, before any time is spent
    on planning.
    """
    if target in (None, ATTACHED):
        return nullcontext()
    compiler = named(target)
    compiler.check_available(mesh.hardware)
    return compiler.ahead(mesh)
