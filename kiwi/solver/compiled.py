"""How the solver's inner loops are compiled: what nobody calls costs nothing on a new machine.

numba makes three entries for each function: for compiled code, for Python, and for C. Unpacking a
`Network` from Python takes LLVM longer than many a loop. So a loop has the entries that are used.

A loop is compiled for each combination of types, and a literal has a type of its own: what is
called with `-1` and with `1` would be compiled twice, and is not with `np.int64(-1)`. Nor do loops
assign arrays to slices, for which numba compiles the formatting of an error.
"""

from typing import Any

import numba

_njit: Any = numba.njit  # its overloads know of no further options


def kernel(function: Any = None, **options: Any) -> Any:
    """Compiles what Python calls; `options` of `numba.njit`."""
    return _njit(function, cache=True, no_cfunc_wrapper=True, **options)


def inner(function: Any = None, **options: Any) -> Any:
    """Compiles what kernels call; Python cannot."""
    return kernel(function, no_cpython_wrapper=True, **options)


def inlined(function: Any) -> Any:
    """Compiles what one kernel calls in one place, only there."""
    return inner(function, inline="always")
