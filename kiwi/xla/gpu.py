"""The compile check by XLA:GPU's own compiler, for NVIDIA GPUs that need not be there.

The wheels jax-cuda12-plugin and jax-cuda12-pjrt (the extra `aot-cuda`; no other library of
NVIDIA's) compile for devices that are described to them, see `kiwi.xla.target_config`.

Nothing is timed on a device, so kernels are not tuned (`xla_gpu_autotune_level=0`): convolutions
get no workspace, which the tuned program may ask for.
"""

from importlib import metadata
from typing import Any

import jax

from kiwi.errors import CompilerUnavailableError, KiwiError
from kiwi.mesh.hardware import Hardware
from kiwi.xla.compiled_program import CompiledProgram
from kiwi.xla.compiler_options import GPU_COMPILER_OPTIONS
from kiwi.xla.dump import dump_options
from kiwi.xla.step import Step, export_step
from kiwi.xla.target_config import target_config
from kiwi.xla.worker import Request, compile_elsewhere

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
"""Distributions that bring the compiler; each with a "-pjrt" of the same version."""

_INSTALL = 'pip install "kiwi-planner[aot-cuda]"'


def verify_on_cuda(step: Step) -> CompiledProgram:
    """Compiles for as many GPUs of the mesh's hardware as the mesh has devices.

    **Raises:** `CompilerUnavailableError` if the compiler is missing or of another version than
    jax, or if the hardware is no NVIDIA GPU; `CompileCheckError` if the compilation fails.
    """
    mesh, options = step.mesh, {"target_config": target_config(step.mesh.hardware)}
    check_plugin()
    request = Request("cuda", mesh.shape, mesh.axis_names, step.donated, options)
    return compile_elsewhere(export_step(step, "cuda"), request, explain_failure)


def check_available(hardware: Hardware) -> None:
    """Raises `CompilerUnavailableError` unless XLA:GPU can compile for the hardware here."""
    target_config(hardware)
    check_plugin()


def check_plugin() -> None:
    """Raises `CompilerUnavailableError` unless the plugin is there in jax's version."""
    versions = {name: _version(name) for name in PLUGINS}
    found = {name: version for name, version in versions.items() if version is not None}
    if not found:
        raise CompilerUnavailableError(
            "XLA:GPU's compiler is not installed.",
            cause=f"None of the distributions {', '.join(PLUGINS)} is there.",
            suggestion=f"{_INSTALL}, or verify='cpu'.",
        )
    name, version = next(iter(found.items()))
    pjrt = name.replace("plugin", "pjrt")
    for part, is_version in ((name, version), (pjrt, _version(pjrt))):
        if is_version != jax.__version__:
            raise CompilerUnavailableError(
                f"{part} is {_said(is_version)}, jax is of version {jax.__version__}.",
                cause="jax and its plugins work together in the same version only.",
                suggestion=f"pip install \"{part}=={jax.__version__}\", or verify='cpu'.",
            )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _said(version: str | None) -> str:
    return "not installed" if version is None else f"of version {version}"


def explain_failure(printed: str) -> KiwiError | None:
    """The typed error for what a failed compilation printed; None if it is not known."""
    if "target_config" in printed or "GpuTargetConfigProto" in printed:
        return CompilerUnavailableError(
            "XLA:GPU does not accept the description of the device.",
            cause=printed.strip().splitlines()[-1],
            suggestion="A profile of the catalogue, or verify='cpu'.",
        )
    return None


def compile_only_devices(config: str, count: int) -> list[Any]:
    """Devices that programs can be compiled for, and not run on."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=config, topology=f"1x1x{count}"
    )
    return list(topology.devices)


def check_options(*, dump_folder: str) -> dict[str, Any]:
    """What the compiler is told; it writes its buffer assignment to `dump_folder`."""
    return {
        **GPU_COMPILER_OPTIONS,
        "xla_gpu_autotune_level": 0,
        **dump_options(dump_folder),
    }
