"""Compiling a step in a process of its own, to which it travels as a `jax.export.Exported`.

A process has one set of virtual devices and one set of compiler plugins for all its life; a
process of its own has those that the target needs, and takes down nothing if XLA aborts. The
process itself runs `kiwi.plan.worker_process`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiwi.errors import CompileCheckError, KiwiError
from kiwi.plan.compiled import CompiledProgram, compiled_from_json

EXPORTED, REQUEST, RESULT = "step.bin", "request.json", "result.json"

_WORKER = "kiwi.plan.worker_process"


@dataclass(frozen=True)
class Request:
    """What the process is told beside the function.

    - `target`: "cpu" or "cuda"; "shardings" only asks what Shardy propagates.
    - `shape`, `axis_names`: of the mesh; `donated`: argument positions.
    - `options`: what else the target needs, as JSON.
    """

    target: str
    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    donated: tuple[int, ...]
    options: Mapping[str, Any]


def compile_elsewhere(
    exported: bytes, request: Request, explain: Callable[[str], KiwiError | None]
) -> CompiledProgram:
    """Compiles a serialised `Exported` in a process of its own.

    `explain` may turn what a failed process printed into an error.

    **Raises:** what `explain` returns, else `CompileCheckError`, if the process fails.
    """
    return compiled_from_json(_answer(exported, request, explain))


def text_elsewhere(exported: bytes, request: Request) -> str:
    """XLA's text of a serialised `Exported` after Shardy, compiled in a process of its own.

    **Raises:** `CompileCheckError` if the process fails.
    """
    return _answer(exported, request, lambda printed: None)


def _answer(exported: bytes, request: Request, explain: Callable[[str], KiwiError | None]) -> Any:
    """The parsed result of a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kiwi-") as folder:
        Path(folder, EXPORTED).write_bytes(exported)
        Path(folder, REQUEST).write_text(json.dumps(vars(request)))
        _run(folder, explain)
        return json.loads(Path(folder, RESULT).read_text())


def _run(folder: str, explain: Callable[[str], KiwiError | None]) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    # Also for GPUs: compiling for devices that are not there needs no other backend.
    environment["JAX_PLATFORMS"] = "cpu"
    # A cache would answer without what XLA writes as it compiles.
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    command = [sys.executable, "-m", _WORKER, folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    raise explain(done.stderr) or CompileCheckError(
        f"The compile check failed with exit code {done.returncode}.",
        cause="\n".join(done.stderr.strip().splitlines()[-8:]),
        suggestion="verify=None plans without the check.",
    )
