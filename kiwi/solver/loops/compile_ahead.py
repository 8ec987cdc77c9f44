"""Processes that compile loops while the step is still traced and the first plan is searched.

Two of them, for numba compiles one function at a time in a process, and a laptop has two cores.
What they compile, numba keeps in `__pycache__`, from where the process that plans loads it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

_CALL = """
import gc, importlib, sys
gc.disable()  # Saves 6 % of the time: numba keeps most of what it makes.
for called in sys.argv[1:]:
    module, name = called.split(":")
    getattr(importlib.import_module(module), name)()
    print(called, flush=True)
"""


@dataclass(frozen=True, eq=False)
class Compiling:
    """A process, and the functions that it has not called to the end yet."""

    process: subprocess.Popen[str]
    functions: list[str]

    @classmethod
    def started(cls, functions: Sequence[str]) -> "Compiling":
        """A process that calls functions without arguments, each "module:function", in turn."""
        process = subprocess.Popen(
            [sys.executable, "-c", _CALL, *functions],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return cls(process, list(functions))

    def wait(self, function: str) -> None:
        """Until a function has been called, or the process has ended."""
        assert self.process.stdout is not None
        while function in self.functions:
            done = self.process.stdout.readline().strip()
            if done:
                self.functions.remove(done)
            else:
                self.functions.clear()
            if not self.functions:
                self.process.communicate()


_started: list[Compiling] = []
_waiting = threading.Lock()


def compile_ahead(*processes: Sequence[str]) -> None:
    """Starts the processes, unless some were started before."""
    if not _started:
        _started.extend(Compiling.started(functions) for functions in processes)


def wait_for(*functions: str) -> None:
    """Until the processes have called the functions, where there are any that do. Should one have
    failed, the caller compiles."""
    with _waiting:
        try:
            for each in _started:
                for function in functions:
                    each.wait(function)
        except BaseException:
            for each in _started:
                each.process.kill()
                each.process.communicate()
            raise
