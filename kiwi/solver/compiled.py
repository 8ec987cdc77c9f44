"""Compilation of the solver's inner loops, with as few entries as possible, since each takes time
on a new machine.

numba makes three entries for each function: for compiled code, for Python, and for C. Unpacking a
`Network` from Python takes LLVM longer than many a loop. So a loop has only the entries that are
used.

A loop is compiled for each combination of types, and a literal has a type of its own: a function
called with `-1` and with `1` would be compiled twice; with `np.int64(-1)` it is not. Nor do loops
assign arrays to slices, for which numba compiles the formatting of an error.

Processes compile loops while the step is still traced and the first plan is searched. There are
two, because numba compiles one function at a time in a process, and a laptop has two cores. numba
keeps the compiled code in `__pycache__`, from where the planning process loads it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

_njit: Any = numba.njit  # its overloads know of no further options

_SHORT = 16
_CALL = """
import gc, importlib, sys
gc.disable()  # Saves 6 % of the time: numba keeps most of what it makes.
for called in sys.argv[1:]:
    module, name = called.split(":")
    getattr(importlib.import_module(module), name)()
    print(called, flush=True)
"""


def kernel(function: Any = None, **options: Any) -> Any:
    """Compiles a function that Python calls. `options` are those of `numba.njit`."""
    return _njit(function, cache=True, no_cfunc_wrapper=True, **options)


def inner(function: Any = None, **options: Any) -> Any:
    """Compiles a function that only kernels call."""
    return kernel(function, no_cpython_wrapper=True, **options)


def inlined(function: Any) -> Any:
    """Compiles a function into the one place of a kernel that calls it."""
    return inner(function, inline="always")


@inner(nogil=True)
def stable_order(keys):
    """`np.argsort(keys, kind="stable")` of integers: short runs by insertion, which are merged."""
    count = len(keys)
    order, merged = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for k in range(count):
        at = k
        while at % _SHORT and keys[order[at - 1]] > keys[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k
    width = _SHORT
    while width < count:
        for first in range(0, count, 2 * width):
            a, middle = first, min(first + width, count)
            b, last = middle, min(first + 2 * width, count)
            for k in range(first, last):
                if b == last or (a < middle and keys[order[a]] <= keys[order[b]]):
                    merged[k] = order[a]
                    a += 1
                else:
                    merged[k] = order[b]
                    b += 1
        order, merged = merged, order
        width *= 2
    return order


@dataclass(frozen=True, eq=False)
class Compiling:
    """A process, and the functions that it has not finished calling."""

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
        """Waits until a function has been called, or the process has ended."""
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
    """Waits until the processes have called the functions, if there are any that do. If one has
    failed, the caller compiles."""
    with _waiting:
        try:
            for compilation in _started:
                for function in functions:
                    compilation.wait(function)
        except BaseException:
            for compilation in _started:
                compilation.process.kill()
                compilation.process.communicate()
            raise
