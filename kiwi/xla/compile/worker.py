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
"""A function of a module, which the process calls with the step, the request's options and a folder
to write to. It returns JSON."""


Explain = Callable[[str], KiwiError | None]
"""The typed error for what a failed process printed; None if it is not known."""


def _explains_nothing(_: str) -> None:
    return None


def begun_elsewhere(
    answer: Answer,
    step: Step,
    platform: str,
    options: Mapping[str, Any] | None = None,
    explain: Explain = _explains_nothing,
) -> "Begun":
    """A process of its own, which gets the step and works; called, it waits for the parsed answer.

    - `platform`: jax's name of the devices that the step is exported for.
    - `options`: what else the answer needs, as JSON.
    - `explain`: may turn what a failed process printed into an error.

    **Raises:** `CompileCheckError` if the step cannot be serialised. Called, it raises what
    `explain` returns, else `CompileCheckError`, if the process fails.
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
    """As `begun_elsewhere`, for an answer that finds in its options what to compile: it gets None
    for a step."""
    request = {"answer": (answer.__module__, answer.__name__), "options": options}
    return _begun(request, None, explain)


def _begun(request: Mapping[str, Any], exported: bytes | None, explain: Explain) -> "Begun":
    folder = tempfile.TemporaryDirectory(prefix="kiwi-")
    if exported is not None:
        Path(folder.name, EXPORTED).write_bytes(exported)
    Path(folder.name, REQUEST).write_text(json.dumps(request))
    return Begun(folder, explain)


def _without_profile(mesh: DeviceMesh) -> DeviceMesh:
    """Compilers read no prices, and a user's profile may have numbers that are not JSON."""
    bare = replace(hardware("cpu"), interconnect=mesh.hardware.interconnect)
    return replace(mesh, hardware=bare, links=(bare.intra_link,) * len(mesh.shape), table=None)


class Begun:
    """A process that works on what lies in a folder; called, it waits for the answer. It ends with
    whoever might call it; by Ctrl-C all end that work for the same thread."""

    def __init__(self, folder: "tempfile.TemporaryDirectory[str]", explain: Explain) -> None:
        self._folder, self._explain, self._thread = folder, explain, threading.get_ident()
        self._process = _spare.taken() or _start()
        self._end = weakref.finalize(self, _ended, self._process, folder)
        _spare.refill()  # The next one starts while this one compiles.
        given = self._process.stdin
        assert given is not None
        with suppress(BrokenPipeError), given:
            given.write(folder.name + "\n")
        _working.add(self)

    def __call__(self) -> Any:
        """The parsed answer; raises as `begun_elsewhere` says."""
        return self.read(lambda _, answer: answer)

    def read(self, reading: Callable[[str, Any], T]) -> T:
        """What `reading` makes of the folder, which is there no longer, and the parsed answer;
        raises as `begun_elsewhere` says."""
        try:
            code, printed = self._process.wait(), self._process.all_printed()
            if code == 0:
                answer = json.loads(Path(self._folder.name, RESULT).read_text())
                return reading(self._folder.name, answer)
        except KeyboardInterrupt:
            for other in list(_working):
                if other._thread == self._thread:
                    other._end()
            raise
        finally:
            self._end()
        raise self._explain(printed) or CompileCheckError(
            f"The compile check failed with exit code {code}.",
            topic=topics.COMPILATION_FAILED,
            cause="\n".join(printed.strip().splitlines()[-8:]),
            suggestion="verify=None plans without the check.",
        )


_working: "weakref.WeakSet[Begun]" = weakref.WeakSet()


def _ended(process: "_Process", folder: "tempfile.TemporaryDirectory[str]") -> None:
    process.end()
    folder.cleanup()


class _Process(subprocess.Popen[str]):
    """Waits for the name of a folder. What it prints goes to a file: a full pipe would halt it."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
        # Also for GPUs: compiling for devices that are not there needs no other backend.
        environment["JAX_PLATFORMS"] = "cpu"
        # A cache would answer without what XLA writes as it compiles.
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
        """What it has printed."""
        self._printed.seek(0)
        return self._printed.read()

    def end(self) -> None:
        """Ends it, if it still works."""
        self.kill()
        with self, self._printed:  # closes its pipes, and waits
            pass


def _start() -> _Process:
    return _Process()


class _Spare:
    """At most one process that waits for its task, while anybody wants one ahead."""

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
        """The waiting process, which is the caller's now; None if there is none alive."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.poll() is not None:
            process.end()
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
