"""The compile check by XLA:GPU's own compiler, for NVIDIA GPUs that need not be there.

The wheels jax-cuda12-plugin and jax-cuda12-pjrt (the extra `aot-cuda`; no other library of
NVIDIA's) compile for devices that are described to them, see `kiwi.mesh.target_config`. GPUs
before compute capability 7.5 also need a `ptxas` of CUDA 12, from nvidia-cuda-nvcc-cu12: the
one of CUDA 13, with which the plugin agrees as well, does not know them.

Nothing is timed on a device, so kernels are not tuned (`xla_gpu_autotune_level=0`): convolutions
get no workspace, which the tuned program may ask for.
"""

import importlib.util
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from kiwi.errors import CompilerUnavailableError, KiwiError
from kiwi.mesh.target_config import compute_capability, target_config
from kiwi.plan.buffers import read_memory
from kiwi.plan.compiled import CompiledProgram
from kiwi.plan.compiler_options import GPU_COMPILER_OPTIONS
from kiwi.plan.verify import Step, export_step
from kiwi.plan.worker import Request, compile_elsewhere
from kiwi.plan.xla_protos import parse_hlo

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
"""Distributions that bring the compiler; each with a "-pjrt" of the same version."""

PTXAS_WHEEL = "nvidia-cuda-nvcc-cu12"

_OLDEST_WITHOUT_PTXAS = (7, 5)
_INSTALL = 'pip install "kiwi-planner[aot-cuda]"'


def verify_on_cuda(step: Step) -> CompiledProgram:
    """Compiles for as many GPUs of the mesh's hardware as the mesh has devices.

    **Raises:** `CompilerUnavailableError` if the compiler or `ptxas` are missing, too old, or of
    another version than jax, or if the hardware is no NVIDIA GPU; `CompileCheckError` if the
    compilation fails.
    """
    config = target_config(step.mesh.hardware)
    check_plugin()
    _check_ptxas(config)
    mesh, options = step.mesh, {"target_config": config}
    request = Request("cuda", mesh.shape, mesh.axis_names, step.donated, options)
    return compile_elsewhere(export_step(step, "cuda"), request, explain_failure)


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


def _check_ptxas(config: str) -> None:
    if compute_capability(config) < _OLDEST_WITHOUT_PTXAS and _cuda_folder() is None:
        raise _no_ptxas(f"{PTXAS_WHEEL} is not installed.")


def _no_ptxas(cause: str) -> CompilerUnavailableError:
    return CompilerUnavailableError(
        "There is no ptxas that compiles for this GPU.",
        cause=cause,
        suggestion=f"pip install \"{PTXAS_WHEEL}>=12.8,<13\", or verify='cpu'.",
    )


def _cuda_folder() -> Path | None:
    """Where the wheel has put `bin/ptxas`."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvcc")
    except ModuleNotFoundError:
        return None
    for folder in () if spec is None else spec.submodule_search_locations or ():
        if Path(folder, "bin", "ptxas").exists():
            return Path(folder)
    return None


def explain_failure(printed: str) -> KiwiError | None:
    """The typed error for what a failed compilation printed; None if it is not known."""
    lines = [line for line in printed.splitlines() if "ptxas" in line]
    if lines:
        return _no_ptxas(lines[-1].strip())
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
    folder = _cuda_folder()
    return {
        **GPU_COMPILER_OPTIONS,
        "xla_gpu_autotune_level": 0,
        # Kernels are never run. Memory does not depend on how well they are.
        "xla_backend_optimization_level": 0,
        "xla_dump_to": dump_folder,
        "xla_dump_hlo_as_proto": True,
        **({} if folder is None else {"xla_gpu_cuda_data_dir": str(folder)}),
    }


def with_memory(result: CompiledProgram, dump_folder: str) -> CompiledProgram:
    """Adds what is alive when, from the dump: XLA:GPU does not report it otherwise."""
    dumps = list(Path(dump_folder).glob("*gpu_after_optimizations.hlo.pb"))
    if len(dumps) != 1:
        return result
    hlo = parse_hlo(dumps[0].read_bytes())
    return replace(result, memory=read_memory(hlo.hlo_module, hlo.buffer_assignment))
