"""A pause of Python's garbage collector, for building large graphs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Inside this context manager, Python's cyclic garbage collection is paused.

    The context manager is also a decorator of functions. The collector would scan all objects again
    and again as their number grows. The graphs built here have no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
