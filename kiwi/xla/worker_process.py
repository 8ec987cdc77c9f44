"""The process that compiles one step: `python -m kiwi.xla.worker_process`.

It reads a folder's name from its standard input. The folder holds the request and the function,
see `kiwi.xla.worker`; the result is written there.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from jax import export

from kiwi.mesh import DeviceMesh
from kiwi.xla import gpu as cuda
from kiwi.xla.compiled_program import CompiledProgram, read_compiled, read_dump
from kiwi.xla.dump import dumped
from kiwi.xla.propagation import propagation_options, read_propagated_text
from kiwi.xla.step import CPU_CHECK_OPTIONS
from kiwi.xla.worker import EXPORTED, REQUEST, RESULT, Request


def main(folder: str) -> None:
    """Compiles what lies in `folder`."""
    request = Request(**json.loads(Path(folder, REQUEST).read_text()))
    exported = export.deserialize(bytearray(Path(folder, EXPORTED).read_bytes()))
    answer = {"cpu": _for_cpu, "cuda": _for_cuda, "shardings": _shardings}[request.target]
    result = answer(exported, request, folder)
    plain = asdict(result) if isinstance(result, CompiledProgram) else result
    Path(folder, RESULT).write_text(json.dumps(plain))


def _cpu_mesh(request: Request) -> DeviceMesh:
    """The request's mesh, in a process that has the devices for it."""
    mesh = DeviceMesh.create(request.shape, "cpu", request.axis_names)
    jax.config.update("jax_num_cpu_devices", mesh.size)
    return mesh


def _shardings(exported: Any, request: Request, folder: str) -> str:
    mesh = _cpu_mesh(request)
    _compile(exported, request, mesh, jax.devices(), propagation_options(folder))
    return read_propagated_text(folder)


def _for_cpu(exported: Any, request: Request, folder: str) -> CompiledProgram:
    mesh = _cpu_mesh(request)
    started = time.monotonic()
    compiled = _compile(exported, request, mesh, jax.devices(), CPU_CHECK_OPTIONS)
    return read_compiled(compiled, mesh, "cpu", time.monotonic() - started)


def _for_cuda(exported: Any, request: Request, folder: str) -> CompiledProgram:
    mesh = DeviceMesh.create(request.shape, "cpu", request.axis_names)
    devices = cuda.compile_only_devices(request.options["target_config"], mesh.size)
    options = cuda.check_options(dump_folder=folder)
    started = time.monotonic()
    dump = dumped(lambda: _compile(exported, request, mesh, devices, options), folder)
    return read_dump(dump, mesh, "cuda", time.monotonic() - started)


def _compile(
    exported: Any,
    request: Request,
    mesh: DeviceMesh,
    devices: Sequence[Any],
    options: dict[str, Any],
) -> Any:
    jax_mesh = mesh.jax_mesh(devices)
    jitted = jax.jit(
        exported.call,
        in_shardings=tuple(exported.in_shardings_jax(jax_mesh)),
        out_shardings=list(exported.out_shardings_jax(jax_mesh)),
        donate_argnums=tuple(request.donated),
        keep_unused=True,
        compiler_options=options,
    )
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
    return jitted.lower(*shapes).compile()


if __name__ == "__main__":
    given = sys.stdin.readline().strip()
    # Without one, whoever started this process has no task for it any more.
    if given:
        main(given)
        sys.stderr.flush()
        # XLA may still be generating code that nobody runs.
        os._exit(0)
