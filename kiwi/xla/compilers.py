"""The registry of compilers, by name in `verify` and by platform of devices."""

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

ATTACHED = "device"
"""The name for the compiler of jax's default devices, which compiles for these devices."""

AUTO = "auto"
"""The name for the profile's own compiler, or XLA:CPU if that is not installed; see `resolved`."""

TARGETS = (*COMPILERS, ATTACHED)
"""The names that `verify` takes beside `AUTO`."""


def named(target: str) -> Compiler:
    """The compiler with one of the names `TARGETS`; raises `InvalidArgumentError` for
    another name."""
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
    """The compiler for devices of a platform, as jax or a profile names it; raises
    `CompilerUnavailableError` if Kiwi has no rules for the platform's compiler."""
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
    """The compiler for the devices of a mesh; raises as `of_platform`."""
    return of_platform(mesh.devices.flat[0].platform)


def resolved(verify: str | None, hardware: Hardware) -> tuple[str | None, tuple[Note, ...]]:
    """The target that "auto" means for the hardware; any other target as it is. Notes for the
    reader say what to install if another compiler has to stand in."""
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
    """Compiles `step` for one of `TARGETS`, with the time of the compilation.

    **Raises:** `CompileCheckError` if the compilation fails; `CompilerUnavailableError` if there is
    no compiler for the target; `NotEnoughDevicesError` if "device" has too few.
    """
    compiler = named(target)
    compile = compiler.compile_attached if target == ATTACHED else compiler.compile
    return _priced(step, compile(step))


Begin = Callable[[Step], Callable[[], CompiledProgram]]
"""Begins to compile a step. Calling the result waits for the program; others may begin
meanwhile."""


def begin_for(target: str, step: Step) -> Callable[[], CompiledProgram]:
    """Begins `compile_for`, whose errors both raise."""
    if target == ATTACHED:
        return functools.partial(compile_for, target, step)
    return _begun(named(target), step)


def overlapping_compiles(target: str) -> tuple[Begin, ...]:
    """`compile_for` with overlapping collectives, in each of the ways of the target's compiler.
    There are none if it overlaps them without being told to."""
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
    """Inside this context manager, whatever `compile_for` has to start starts in the background.
    Raises `CompilerUnavailableError` at once, not after seconds of planning, if there is no
    compiler for the target."""
    if target in (None, ATTACHED):
        return nullcontext()
    compiler = named(target)
    compiler.check_available(mesh.hardware)
    return compiler.ahead(mesh)
