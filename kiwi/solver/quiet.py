"""Keeps native solvers off standard output.

HiGHS prints some remarks by `printf`, past MathOpt's switch for output. Programs that write
JSON to standard output must not find them there, so that the file descriptor is redirected
while a solver runs.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

STDOUT = 1
_lock = threading.Lock()
_depth = 0
_original = -1


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Sends what is written to file descriptor 1 to nowhere; threads may overlap."""
    global _depth, _original
    with _lock:
        if not _depth:
            sys.stdout.flush()
            _original = os.dup(STDOUT)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, STDOUT)
            os.close(nowhere)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                os.dup2(_original, STDOUT)
                os.close(_original)
