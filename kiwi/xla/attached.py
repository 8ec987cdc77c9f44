"""The compile check on the attached devices, with the options that the plan runs with."""

import time

import jax

from kiwi.xla.compiled_program import CompiledProgram, read_compiled
from kiwi.xla.compiler_options import compiler_options
from kiwi.xla.step import Step


def verify_on_device(step: Step) -> CompiledProgram:
    """Compiles for the first `step.mesh.size` attached devices of jax's default platform.

    **Raises:** `NotEnoughDevicesError` if there are fewer.
    """
    mesh = step.mesh.jax_mesh(jax.devices())
    options = compiler_options(mesh.devices.flat[0].platform)
    started = time.monotonic()
    compiled = step.jit(mesh, options).lower(*step.arguments).compile()
    return read_compiled(compiled, step.mesh, "device", time.monotonic() - started)
