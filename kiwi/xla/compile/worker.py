"""Compiling a step in a separate process, which receives the step as a `jax.export.Exported`.

A process cannot change its virtual devices or compiler plugins once jax has started. A separate
process has the devices and plugins that a compiler needs. If XLA aborts, only that process ends.
The process runs `kiwi.xla.compile.worker_process`.

Such a process needs seconds to import jax and Kiwi. Inside `process_ahead` the next process is
therefore started before it is needed, and imports while this process traces and solves.
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
from kiwi.system import limit_error
from kiwi.xla.step import ExportedStep, Step

T = TypeVar("T")

EXPORTED, REQUEST, RESULT = "step.bin", "request.json", "result.json"
"""The names of the files in the folder of a process."""

_WORKER = "kiwi.xla.compile.worker_process"

Answer = Callable[[ExportedStep, Mapping[str, Any], str], Any]
"""A module-level function that the separate process calls with the step, the options of the request
and a folder to write to. It returns a value that JSON can represent."""


Explain = Callable[[str], KiwiError | None]
"""Returns the typed error for the output of a failed process; None if the failure is unknown."""


def _explains_nothing(_: str) -> None:
    return None


def begun_elsewhere(
    answer: Answer,
    step: Step,
    platform: str,
    options: Mapping[str, Any] | None = None,
    explain: Explain = _explains_nothing,
) -> "Begun":
    """Starts a process that runs `answer` on the step. Calling the result waits for the answer.

    - `platform`: jax's name of the platform that the step is exported for.
    - `options`: further input of `answer`, as values that JSON can represent.
    - `explain`: returns the typed error for the output of a failed process, or None.

    **Raises:** `CompileCheckError` if the step cannot be serialised. If the process fails, calling
    the result raises the error from `explain`, or else `CompileCheckError`.
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
    """Starts a process as `begun_elsewhere`, for an `answer` that finds its programs through its
    options. It is called with None for the step."""
    request = {"answer": (answer.__module__, answer.__name__), "options": options}
    return _begun(request, None, explain)


def _begun(request: Mapping[str, Any], exported: bytes | None, explain: Explain) -> "Begun":
    try:
        folder = tempfile.TemporaryDirectory(prefix="kiwi-")
        if exported is not None:
            Path(folder.name, EXPORTED).write_bytes(exported)
        Path(folder.name, REQUEST).write_text(json.dumps(request))
        return Begun(folder, explain)
    except OSError as error:
        limit = limit_error(error)
        if limit is None:
            raise
        raise limit from error


def _without_profile(mesh: DeviceMesh) -> DeviceMesh:
    """Returns the mesh with the figures of the profile "cpu" in place of its own. Compilers read no
    prices, and a user's profile may hold numbers that JSON cannot represent."""
    bare = replace(hardware("cpu"), interconnect=mesh.hardware.interconnect)
    return replace(mesh, hardware=bare, links=(bare.intra_link,) * len(mesh.shape), table=None)


class Begun:
    """A process that works on the request in a folder. Calling the object waits for the answer.

    The process ends when the object is garbage-collected. Ctrl-C in a call ends all processes that
    the same thread has begun.
    """

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
        """Waits for the process, and returns its answer; raises as `begun_elsewhere` describes."""
        return self.read(lambda _, answer: answer)

    def read(self, reading: Callable[[str, Any], T]) -> T:
        """Waits for the process, and returns the result of `reading`; raises as `begun_elsewhere`
        describes.

        - `reading`: called with the name of the folder and the answer. The folder is deleted
          afterwards.
        """
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
    """A worker process, which waits for the name of a folder on its standard input. Its standard
    error goes to a file, because a full pipe would block the process."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        # Compiling for absent devices needs no other backend, not even for GPUs.
        environment["JAX_PLATFORMS"] = "cpu"
        # On a cache hit XLA would not compile, and write no dump.
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
        """Returns what the process has printed so far."""
        self._printed.seek(0)
        return self._printed.read()

    def end(self) -> None:
        """Kills the process if it still runs, and closes its files."""
        self.kill()
        with self, self._printed:  # closes the pipes and waits for the process
            pass


def _start() -> _Process:
    return _Process()


class _Spare:
    """At most one idle process that waits for a task. It exists while at least one caller wants
    it."""

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
        """Hands the idle process over to the caller; returns None if none is alive."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.poll() is not None:
            process.end()
            return None
        return process


_spare = _Spare()


@contextmanager
def process_ahead() -> Iterator[None]:
    """A context manager inside which the process for the next compilation is started before it is
    needed."""
    _spare.want()
    try:
        yield
    finally:
        _spare.release()
