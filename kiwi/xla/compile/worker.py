"""Compiling a step in a process of its own, to which the step is sent as a `jax.export.Exported`.

A process has one set of virtual devices and one set of compiler plugins for all its life. A process
of its own has those that a compiler needs, and if XLA aborts, only that process ends. It runs
`kiwi.xla.compile.worker_process`.

Importing jax and Kiwi takes it seconds. So inside `process_ahead` the next process is started
before it is needed, and waits for its task while this process traces and solves.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from kiwi.codec import to_plain
from kiwi.errors import CompileCheckError, KiwiError
from kiwi.mesh import DeviceMesh, hardware
from kiwi.messages import topics
from kiwi.xla.step import ExportedStep, Step

T = TypeVar("T")

EXPORTED, REQUEST, RESULT = "step.bin", "request.json", "result.json"

_WORKER = "kiwi.xla.compile.worker_process"

Answer = Callable[[ExportedStep, Mapping[str, Any], str], Any]
"""A function of a module. The process calls it with the step, the request's options and a folder to
write to. It returns JSON."""


Explain = Callable[[str], KiwiError | None]
"""Turns the output of a failed process into a typed error; None if the failure is unknown."""


def _explains_nothing(_: str) -> None:
    return None


def begun_elsewhere(
    answer: Answer,
    step: Step,
    platform: str,
    options: Mapping[str, Any] | None = None,
    explain: Explain = _explains_nothing,
) -> "Begun":
    """Starts a process that works on the step. Calling the result waits for the parsed answer.

    - `platform`: jax's name of the devices that the step is exported for.
    - `options`: further input of the answer, as JSON.
    - `explain`: may turn the output of a failed process into an error.

    **Raises:** `CompileCheckError` if the step cannot be serialised. The call raises the error from
    `explain`, or `CompileCheckError`, if the process fails.
    """
    request = {
        "answer": (answer.__module__, answer.__name__),
        "mesh": to_plain(_without_profile(step.mesh)),
        "donated": step.donated,
        "options": options or {},
    }
    return _begun(request, step.exported(platform), explain)


def begun_without_step(
    answer: Callable[[None, Mapping[str, Any], str], Any],
    options: Mapping[str, Any],
    explain: Explain = _explains_nothing,
) -> "Begun":
    """`begun_elsewhere` for an answer that finds its program in its options. The step is None."""
    request = {"answer": (answer.__module__, answer.__name__), "options": options}
    return _begun(request, None, explain)


def _begun(request: Mapping[str, Any], exported: bytes | None, explain: Explain) -> "Begun":
    folder = tempfile.TemporaryDirectory(prefix="kiwi-")
    if exported is not None:
        Path(folder.name, EXPORTED).write_bytes(exported)
    Path(folder.name, REQUEST).write_text(json.dumps(request))
    return Begun(folder, explain)


def _without_profile(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh without its profile. Compilers read no prices, and a user's profile may have numbers
    that are not JSON."""
    bare = replace(hardware("cpu"), interconnect=mesh.hardware.interconnect)
    return replace(mesh, hardware=bare, links=(bare.intra_link,) * len(mesh.shape), table=None)


class Begun:
    """A process that works on the content of a folder. Calling it waits for the answer. It ends
    when nothing can call it any more. Ctrl-C ends all processes that work for the same thread."""

    def __init__(self, folder: "tempfile.TemporaryDirectory[str]", explain: Explain) -> None:
        self._folder, self._explain, self._thread = folder, explain, threading.get_ident()
        self._process = _spare.taken() or _start()
        self._end = weakref.finalize(self, _ended, self._process, folder)
        _spare.refill()  # The next process starts while this one compiles.
        task_pipe = self._process.stdin
        assert task_pipe is not None
        with suppress(BrokenPipeError), task_pipe:
            task_pipe.write(folder.name + "\n")
        _working.add(self)

    def __call__(self) -> Any:
        """The parsed answer; raises as `begun_elsewhere` says."""
        return self.read(lambda _, answer: answer)

    def read(self, reading: Callable[[str, Any], T]) -> T:
        """The result of `reading` on the folder, which is deleted afterwards, and the parsed
        answer; raises as `begun_elsewhere` says."""
        try:
            exit_code, printed = self._process.wait(), self._process.all_printed()
            if exit_code == 0:
                answer = json.loads(Path(self._folder.name, RESULT).read_text())
                return reading(self._folder.name, answer)
        except KeyboardInterrupt:
            for begun in list(_working):
                if begun._thread == self._thread:
                    begun._end()
            raise
        finally:
            self._end()
        raise self._explain(printed) or CompileCheckError(
            f"The compile check failed with exit code {exit_code}.",
            topic=topics.COMPILATION_FAILED,
            cause="\n".join(printed.strip().splitlines()[-8:]),
            suggestion="verify=None plans without the check.",
        )


_working: "weakref.WeakSet[Begun]" = weakref.WeakSet()


def _ended(process: "_Process", folder: "tempfile.TemporaryDirectory[str]") -> None:
    process.end()
    folder.cleanup()


class _Process(subprocess.Popen[str]):
    """Waits for the name of a folder. Its output goes to a file: a full pipe would halt it."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        # Compiling for absent devices, also GPUs, needs no other backend.
        environment["JAX_PLATFORMS"] = "cpu"
        # A cache would skip the compilation, and with it the files that XLA writes.
        environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        self._printed = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        super().__init__(
            [sys.executable, "-m", _WORKER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._printed,
            text=True,
        )

    def all_printed(self) -> str:
        """Its output so far."""
        self._printed.seek(0)
        return self._printed.read()

    def end(self) -> None:
        """Ends it, if it is still working."""
        self.kill()
        with self, self._printed:  # closes its pipes, and waits
            pass


def _start() -> _Process:
    return _Process()


class _Spare:
    """At most one process that waits for its task, as long as a caller wants one."""

    def __init__(self) -> None:
        self._wanted, self._lock = 0, threading.Lock()  # Threads may plan at the same time.
        self._process: _Process | None = None

    def want(self) -> None:
        with self._lock:
            self._wanted += 1
        self.refill()

    def release(self) -> None:
        with self._lock:
            self._wanted -= 1
        process = None if self._wanted else self.taken()
        if process is not None:
            process.end()

    def refill(self) -> None:
        with self._lock:
            if self._wanted and self._process is None:
                self._process = _start()

    def taken(self) -> _Process | None:
        """The waiting process, which now belongs to the caller; None if there is none alive."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.poll() is not None:
            process.end()
            return None
        return process


_spare = _Spare()


@contextmanager
def process_ahead() -> Iterator[None]:
    """Inside this context manager, the process of the next compilation is started before it is
    asked for."""
    _spare.want()
    try:
        yield
    finally:
        _spare.release()
