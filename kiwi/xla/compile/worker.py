"""Compiling a step in a process of its own, to which it travels as a `jax.export.Exported`.

A process has one set of virtual devices and one set of compiler plugins for all its life; a
process of its own has those that a compiler needs, and takes down nothing if XLA aborts. The
process itself runs `kiwi.xla.compile.worker_process`.

To import jax and Kiwi takes it seconds: inside `process_ahead` the next one is started before it
is needed, and waits for its task while this process traces and solves.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiwi.codec import to_plain
from kiwi.errors import CompileCheckError, KiwiError
from kiwi.mesh import DeviceMesh, hardware
from kiwi.xla.step import ExportedStep, Step

EXPORTED, REQUEST, RESULT = "step.bin", "request.json", "result.json"

_WORKER = "kiwi.xla.compile.worker_process"

Answer = Callable[[ExportedStep, Mapping[str, Any], str], Any]
"""A function of a module, which the process calls with the step, the request's options and a folder
to write to. It returns JSON."""


def answer_elsewhere(
    answer: Answer,
    step: Step,
    platform: str,
    options: Mapping[str, Any] | None = None,
    explain: Callable[[str], KiwiError | None] = lambda printed: None,
) -> Any:
    """The parsed answer of a process of its own, which gets the step.

    - `platform`: jax's name of the devices that the step is exported for.
    - `options`: what else the answer needs, as JSON.
    - `explain`: may turn what a failed process printed into an error.

    **Raises:** what `explain` returns, else `CompileCheckError`, if the process fails;
    `CompileCheckError` if the step cannot be serialised.
    """
    request = {
        "answer": (answer.__module__, answer.__name__),
        "mesh": to_plain(_without_profile(step.mesh)),
        "donated": step.donated,
        "options": options or {},
    }
    exported = step.exported(platform)
    with tempfile.TemporaryDirectory(prefix="kiwi-") as folder:
        Path(folder, EXPORTED).write_bytes(exported)
        Path(folder, REQUEST).write_text(json.dumps(request))
        _run(folder, explain)
        return json.loads(Path(folder, RESULT).read_text())


def _without_profile(mesh: DeviceMesh) -> DeviceMesh:
    """Compilers read no prices, and a user's profile may have numbers that are not JSON."""
    bare = replace(hardware("cpu"), interconnect=mesh.hardware.interconnect)
    return replace(mesh, hardware=bare, links=(bare.intra_link,) * len(mesh.shape), table=None)


def _run(folder: str, explain: Callable[[str], KiwiError | None]) -> None:
    process = _spare.taken() or _start()
    _spare.refill()  # The next one starts while this one compiles.
    printed = _sent(process, folder)
    if process.returncode == 0:
        return
    raise explain(printed) or CompileCheckError(
        f"The compile check failed with exit code {process.returncode}.",
        cause="\n".join(printed.strip().splitlines()[-8:]),
        suggestion="verify=None plans without the check.",
    )


def _sent(process: subprocess.Popen[str], folder: str) -> str:
    """What the process prints as it compiles what lies in `folder`."""
    try:
        return process.communicate(folder + "\n")[1]
    except BaseException:
        # Ctrl-C: nobody is left to read the answer.
        _end(process)
        raise


def _start() -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    # Also for GPUs: compiling for devices that are not there needs no other backend.
    environment["JAX_PLATFORMS"] = "cpu"
    # A cache would answer without what XLA writes as it compiles.
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    return subprocess.Popen(
        [sys.executable, "-m", _WORKER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:  # closes its pipes, and waits
        pass


class _Spare:
    """At most one process that waits for its task, while anybody wants one ahead."""

    def __init__(self) -> None:
        self._wanted, self._lock = 0, threading.Lock()  # Threads may plan at the same time.
        self._process: subprocess.Popen[str] | None = None

    def want(self) -> None:
        with self._lock:
            self._wanted += 1
        self.refill()

    def release(self) -> None:
        with self._lock:
            self._wanted -= 1
        process = None if self._wanted else self.taken()
        if process is not None:
            _end(process)

    def refill(self) -> None:
        with self._lock:
            if self._wanted and self._process is None:
                self._process = _start()

    def taken(self) -> subprocess.Popen[str] | None:
        """The waiting process, which is the caller's now; None if there is none alive."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.poll() is not None:
            _end(process)
            return None
        return process


_spare = _Spare()


@contextmanager
def process_ahead() -> Iterator[None]:
    """Inside, the process of the next compilation is started before it is asked for."""
    _spare.want()
    try:
        yield
    finally:
        _spare.release()
