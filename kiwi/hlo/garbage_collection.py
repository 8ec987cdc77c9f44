"""Building large graphs without stops for the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Inside this context, Python's cyclic garbage collection is paused. It is also a decorator of
    functions.

    The collector scans all objects again and again as their number grows. The graphs built here
    have no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
