"""The compile check: the planned function, compiled for virtual CPU devices.

In this process where it has enough CPU devices, else in a process of its own, to which the
function travels as a serialised `jax.export.Exported`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from jax import export

from kiwi.errors import CompileCheckError
from kiwi.mesh import DeviceMesh
from kiwi.plan.buffers import memory_from_json
from kiwi.plan.compiled import CollectiveUse, CompiledProgram, read_compiled

CPU_COMPILER_OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander,cpu-all-reduce-combiner"}
"""XLA:CPU expands barriers before its last common-subexpression elimination, which would
merge every recomputation with the original. Without that pass barriers hold to the end."""

TARGETS = ("cpu",)

_EXPORTED, _REQUEST, _RESULT = "step.bin", "request.json", "result.json"


@dataclass(frozen=True, eq=False)
class Step:
    """A flat function ready to be compiled: what `jax.jit` needs to know.

    `in_specs` and `out_specs` are `PartitionSpec`s; `donated` are argument positions.
    """

    function: Callable[..., Any]
    arguments: Sequence[jax.ShapeDtypeStruct]
    mesh: DeviceMesh
    in_specs: Sequence[Any]
    out_specs: Sequence[Any]
    donated: tuple[int, ...]

    def jit(self, mesh: Any, compiler_options: dict[str, Any] | None = None) -> Any:
        """The jitted function over a concrete or abstract jax mesh."""
        shard = lambda spec: jax.sharding.NamedSharding(mesh, spec)  # noqa: E731
        return jax.jit(
            self.function,
            in_shardings=tuple(shard(s) for s in self.in_specs),
            out_shardings=[shard(s) for s in self.out_specs],
            donate_argnums=self.donated,
            keep_unused=True,
            compiler_options=compiler_options,
        )


def verify_on_cpu(step: Step) -> CompiledProgram:
    """Compiles for `step.mesh.size` virtual CPU devices.

    **Raises:** `CompileCheckError` if the compilation fails.
    """
    devices = _cpu_devices()
    if len(devices) >= step.mesh.size:
        return compile_here(step, devices)
    return _compile_in_subprocess(step)


def _cpu_devices() -> list[Any]:
    try:
        return list(jax.devices("cpu"))
    except RuntimeError:
        return []


def compile_here(step: Step, devices: Sequence[Any]) -> CompiledProgram:
    """Compiles on the given CPU devices."""
    started = time.monotonic()
    jitted = step.jit(step.mesh.jax_mesh(devices), CPU_COMPILER_OPTIONS)
    compiled = jitted.lower(*step.arguments).compile()
    return read_compiled(compiled, "cpu", time.monotonic() - started)


def _compile_in_subprocess(step: Step) -> CompiledProgram:
    exported = _export(step)
    with tempfile.TemporaryDirectory(prefix="kiwi-") as folder:
        request = {
            "shape": step.mesh.shape,
            "axis_names": step.mesh.axis_names,
            "donated": step.donated,
        }
        Path(folder, _EXPORTED).write_bytes(exported)
        Path(folder, _REQUEST).write_text(json.dumps(request))
        _run_worker(folder)
        return _from_json(json.loads(Path(folder, _RESULT).read_text()))


def _export(step: Step) -> bytes:
    jitted = step.jit(step.mesh.abstract_mesh())
    try:
        return bytes(export.export(jitted, platforms=["cpu"])(*step.arguments).serialize())
    except (ValueError, NotImplementedError, TypeError) as error:
        raise CompileCheckError(
            f"The planned function cannot be sent to a process of its own: {error}",
            cause="It calls something that jax.export cannot serialise, e.g. a callback.",
            suggestion=f"Start this process with {step.mesh.size} virtual CPU devices "
            '(jax.config.update("jax_num_cpu_devices", ...)), or pass verify=None.',
        ) from error


def _run_worker(folder: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["JAX_PLATFORMS"] = "cpu"
    command = [sys.executable, "-m", "kiwi.plan.verify", folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileCheckError(
            f"The compile check failed with exit code {done.returncode}.",
            cause="\n".join(done.stderr.strip().splitlines()[-8:]),
            suggestion="verify=None plans without the check.",
        )


def main(folder: str) -> None:
    """The worker: `python -m kiwi.plan.verify FOLDER`."""
    request = json.loads(Path(folder, _REQUEST).read_text())
    mesh = DeviceMesh.create(request["shape"], "cpu", request["axis_names"])
    jax.config.update("jax_num_cpu_devices", mesh.size)
    jax_mesh = mesh.jax_mesh()
    exported = export.deserialize(bytearray(Path(folder, _EXPORTED).read_bytes()))
    started = time.monotonic()
    jitted = jax.jit(
        exported.call,
        in_shardings=tuple(exported.in_shardings_jax(jax_mesh)),
        out_shardings=list(exported.out_shardings_jax(jax_mesh)),
        donate_argnums=tuple(request["donated"]),
        keep_unused=True,
        compiler_options=CPU_COMPILER_OPTIONS,
    )
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
    compiled = jitted.lower(*shapes).compile()
    result = read_compiled(compiled, "cpu", time.monotonic() - started)
    Path(folder, _RESULT).write_text(json.dumps(_to_json(result)))


def _to_json(program: CompiledProgram) -> dict[str, Any]:
    return asdict(program)


def _from_json(fields: dict[str, Any]) -> CompiledProgram:
    uses = {kind: CollectiveUse(**use) for kind, use in fields.pop("collectives").items()}
    memory = fields.pop("memory")
    read = None if memory is None else memory_from_json(memory)
    return CompiledProgram(collectives=uses, memory=read, **fields)


if __name__ == "__main__":
    main(sys.argv[1])
