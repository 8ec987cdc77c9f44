"""Ends a command at its time limit and on SIGTERM, even inside compiled loops.

Python runs a signal's handler only after the current compiled loop or foreign solver returns. A
forked process therefore does the work, and writes its best solution whenever it finds one. The
parent process waits, and kills the forked process if it is late.
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
"""The seconds after the time limit, and after a signal, at which the work is killed."""
_POLL_SECONDS = 0.02
_KILLED_WITHOUT_SOLUTION = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Runs a command's work in a process that can be killed.

    - `deadline`: the end of the time limit, a reading of `time.monotonic`.
    """

    def __init__(self, deadline: float) -> None:
        self._kill_at = deadline + _GRACE_SECONDS
        self._is_written = mmap.mmap(-1, 1)  # The forked process shares it.

    def note_written(self) -> None:
        """Notes that the best solution is in its file. The work calls it."""
        self._is_written[0] = 1

    def run(self, work: Callable[[], int]) -> int:
        """Runs `work` and returns its exit status. If it is killed, the status is 0 if a solution
        was written, and 1 if not."""
        if not hasattr(os, "fork"):
            return work()
        sys.stdout.flush()
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # Until handlers pass them on.
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
    """A context in which signals are blocked, so that a written file is also noted."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def interrupt_once() -> None:
    """Makes the first SIGTERM or SIGINT raise `KeyboardInterrupt`, and ignores later ones, so that
    the best solution is written undisturbed."""

    def handler(number: int, frame: FrameType | None) -> None:
        for signal_number in _SIGNALS:
            signal.signal(signal_number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for caught_signal in _SIGNALS:
        signal.signal(caught_signal, handler)
