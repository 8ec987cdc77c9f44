"""The time of the stages of planning, as processor time and as wall time.

While a `Stopwatch` runs (`measured`), `stage` names the current work. An inner stage interrupts the
outer stage. Each moment belongs to one stage, so the stages add up to the whole time. Time without
a named stage belongs to `OTHER`. No decision depends on a stopwatch.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

OTHER = "other"
"""The stage of the time outside of all named stages."""


@dataclass(frozen=True)
class StageTime:
    """The time of one stage of planning, over all its visits.

    - `cpu_seconds`: the processor time of all threads of this process, and of processes that the
      stage waited for.
    - `seconds`: the wall time.
    """

    stage: str
    cpu_seconds: float
    seconds: float


class Stopwatch:
    """Adds up the time of stages.

    - `stage`: the current stage.
    - `round`: the number of programs that the closed loop has begun.
    - `on_change`: called when one of them changes.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] | None = None
        self.round = 0
        self._open = [OTHER]
        self._spent: dict[str, tuple[float, float]] = {}
        self._since = _clocks()

    @property
    def stage(self) -> str:
        """The innermost stage."""
        return self._open[-1]

    @contextlib.contextmanager
    def working_on(self, stage: str) -> Iterator[None]:
        """A context manager in which time belongs to the stage."""
        self._take()
        self._open.append(stage)
        self._tell()
        try:
            yield
        finally:
            self._take()
            self._open.pop()

    def begin_round(self) -> None:
        """Counts another program of the closed loop."""
        self.round += 1
        self._tell()

    def timings(self) -> tuple[StageTime, ...]:
        """The times of the stages so far, the largest processor time first."""
        self._take()
        stage_times = (StageTime(stage, *spent) for stage, spent in self._spent.items())
        return tuple(
            sorted(stage_times, key=lambda stage_time: (-stage_time.cpu_seconds, stage_time.stage))
        )

    def _take(self) -> None:
        """Adds the time since the last change to the innermost stage."""
        now, before = _clocks(), self._since
        cpu_seconds, seconds = self._spent.get(self.stage, (0.0, 0.0))
        self._spent[self.stage] = cpu_seconds + now[0] - before[0], seconds + now[1] - before[1]
        self._since = now

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()


_CURRENT: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextlib.contextmanager
def measured() -> Iterator[Stopwatch]:
    """A context manager in which a stopwatch runs: the one that runs already, or else a new one."""
    running = _CURRENT.get()
    if running is not None:
        yield running
        return
    token = _CURRENT.set(Stopwatch())
    try:
        stopwatch = _CURRENT.get()
        assert stopwatch is not None
        yield stopwatch
    finally:
        _CURRENT.reset(token)


def stage(name: str) -> contextlib.AbstractContextManager[None]:
    """Returns a context manager in which time belongs to this stage of the stopwatch, if one
    runs."""
    running = _CURRENT.get()
    return contextlib.nullcontext() if running is None else running.working_on(name)


def timed(name: str) -> Callable[[_Function], _Function]:
    """Returns a decorator that assigns the time of a function to a stage."""

    def decorated(function: _Function) -> _Function:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with stage(name):
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]

    return decorated


def begin_round() -> None:
    """Counts another program of the closed loop in the stopwatch, if one runs."""
    running = _CURRENT.get()
    if running is not None:
        running.begin_round()


def _clocks() -> tuple[float, float]:
    children = os.times()
    waited_for = children.children_user + children.children_system
    return time.process_time() + waited_for, time.monotonic()
