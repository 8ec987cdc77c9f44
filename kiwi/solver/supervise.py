"""Ends a command at its time limit, and on SIGTERM, even inside compiled loops.

Python runs a signal's handler only when the current compiled loop or foreign solver returns. So the
work is done in a forked process, which writes its best solution whenever it finds one. This process
waits, and kills it if it is late.
"""

import contextlib
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

_GRACE_SECONDS, _SIGNAL_GRACE_SECONDS = 0.5, 1.0
"""How long after its time limit, or after a signal, the work may go on."""
_POLL_SECONDS = 0.02
_KILLED_WITHOUT_SOLUTION = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Runs a command's work in a process that can be ended.

    - `deadline`: when the time limit ends, a reading of `time.monotonic`.
    """

    def __init__(self, deadline: float) -> None:
        self._kill_at = deadline + _GRACE_SECONDS
        self._is_written = mmap.mmap(-1, 1)  # shared with the forked process

    def note_written(self) -> None:
        """Told by the work that its best solution is in its file."""
        self._is_written[0] = 1

    def run(self, work: Callable[[], int]) -> int:
        """The exit status of `work`; 0 where it was killed with its best solution written."""
        if not hasattr(os, "fork"):
            return work()
        sys.stdout.flush()
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until they are passed on
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
            _work_and_exit(work)
        self._pass_on_signals(child)
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        return self._wait(child)

    def _pass_on_signals(self, child: int) -> None:
        def pass_on(number: int, _: FrameType | None) -> None:
            os.kill(child, number)
            self._kill_at = min(self._kill_at, time.monotonic() + _SIGNAL_GRACE_SECONDS)

        for number in _SIGNALS:
            signal.signal(number, pass_on)

    def _wait(self, child: int) -> int:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return max(os.waitstatus_to_exitcode(status), 0) if os.WIFEXITED(status) else 1
            if time.monotonic() > self._kill_at:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return 0 if self._is_written[0] else _KILLED_WITHOUT_SOLUTION
            time.sleep(_POLL_SECONDS)


def _work_and_exit(work: Callable[[], int]) -> None:
    status = 1
    try:
        status = work()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Inside this context manager, signals wait, so that a written file is also noted."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def interrupt_once() -> None:
    """From now on the first SIGTERM or SIGINT raises `KeyboardInterrupt`, and later ones do
    nothing: the known solution is then written."""

    def handler(number: int, frame: FrameType | None) -> None:
        for signal_number in _SIGNALS:
            signal.signal(signal_number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in _SIGNALS:
        signal.signal(each, handler)
