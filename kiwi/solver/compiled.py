"""Compilation of the solver's inner loops by numba.

Three rules keep the compilation on a new machine short:

- numba makes three entry points for each function: for compiled code, for Python, and for C. A loop
  gets only the entry points that are used: LLVM often takes longer for an entry point from Python
  that unpacks a `Network` than for the loop itself.
- numba compiles a loop for each combination of types, and a literal has its own type. A loop is
  called with `np.int64(-1)` and `np.int64(1)`: with `-1` and `1` it would be compiled twice.
- Loops assign no arrays to slices: numba would compile the formatting of an error message for it.

Two processes compile loops while the step is traced and the first plan is searched. There are two
because numba compiles one function at a time in a process, and a laptop has two cores. numba stores
the compiled code in `__pycache__`, from which the planning process loads it.
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

_njit: Any = numba.njit  # Its type stubs lack the options used here.

_SHORT = 16
"""The length of the runs that are sorted by insertion."""
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
    """Compiles a function that is inlined where a kernel calls it."""
    return inner(function, inline="always")


@inner(nogil=True)
def stable_order(keys):
    """Returns `np.argsort(keys, kind="stable")` of integers, by merging short runs that are sorted
    by insertion."""
    count = len(keys)
    order, merged = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for k in range(count):
        slot = k
        while slot % _SHORT and keys[order[slot - 1]] > keys[k]:
            order[slot] = order[slot - 1]
            slot -= 1
        order[slot] = k
    width = _SHORT
    while width < count:
        for first in range(0, count, 2 * width):
            left, middle = first, min(first + width, count)
            right, last = middle, min(first + 2 * width, count)
            for k in range(first, last):
                if right == last or (left < middle and keys[order[left]] <= keys[order[right]]):
                    merged[k] = order[left]
                    left += 1
                else:
                    merged[k] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order


@dataclass(frozen=True, eq=False)
class Compiling:
    """A process that calls functions, which compiles them.

    - `functions`: the functions whose calls are not known to have ended, each "module:function".
    """

    process: subprocess.Popen[str]
    functions: list[str]

    @classmethod
    def started(cls, functions: Sequence[str]) -> "Compiling":
        """Starts a process that calls `functions`, each "module:function", in order and without
        arguments."""
        process = subprocess.Popen(
            [sys.executable, "-c", _CALL, *functions],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return cls(process, list(functions))

    def wait(self, function: str) -> None:
        """Waits until the call of a function has ended, or the process has."""
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
    """Starts a process for each list of functions, unless some processes were started before."""
    if not _started:
        _started.extend(Compiling.started(functions) for functions in processes)


def wait_for(*functions: str) -> None:
    """Waits until the started processes have called `functions`. Returns at once for functions that
    no process calls, or whose process has failed; the caller compiles these itself."""
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
