"""Building large graphs without stops for the garbage collector."""

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def without_collection(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """`function` with Python's cyclic garbage collection paused while it runs.

    The collector scans all objects again and again as their number grows: a third of the
    time of building the problem of 20 layers. What is built here has no cycles.
    """

    @functools.wraps(function)
    def paused(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            if was_enabled:
                gc.enable()

    return paused
