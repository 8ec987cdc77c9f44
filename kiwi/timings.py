"""Where the time of planning goes: stages, by processor time and by wall time.

While a `Stopwatch` runs (`measured`), `stage` names the current work. An inner stage stops the
outer one. Each moment belongs to one stage, so the stages add up to the whole. Time without a named
stage is `OTHER`. Nothing reads a stopwatch to decide anything.
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
"""The time outside of all named stages."""


@dataclass(frozen=True)
class StageTime:
    """The time of one stage of planning, over all its visits.

    - `cpu_seconds`: processor time of all threads of this process, and of processes that this stage
      waited for.
    - `seconds`: wall time.
    """

    stage: str
    cpu_seconds: float
    seconds: float


class Stopwatch:
    """Adds up the time of stages.

    - `stage`: the current one; `round`: how many programs the closed loop has begun.
    - `on_change`: called when either changes.
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
        """Inside this context, time belongs to the stage."""
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
        """The stages so far, by processor time, the largest first."""
        self._take()
        found = (StageTime(stage, *spent) for stage, spent in self._spent.items())
        return tuple(sorted(found, key=lambda each: (-each.cpu_seconds, each.stage)))

    def _take(self) -> None:
        """Gives the innermost stage the time since the last change."""
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
    """Inside this context a stopwatch runs: the one that runs already, or else a new one."""
    running = _CURRENT.get()
    if running is not None:
        yield running
        return
    token = _CURRENT.set(Stopwatch())
    try:
        found = _CURRENT.get()
        assert found is not None
        yield found
    finally:
        _CURRENT.reset(token)


def stage(name: str) -> contextlib.AbstractContextManager[None]:
    """Inside this context, time belongs to this stage of the stopwatch, if one runs."""
    running = _CURRENT.get()
    return contextlib.nullcontext() if running is None else running.working_on(name)


def timed(name: str) -> Callable[[_Function], _Function]:
    """Wraps a function so that its time belongs to a stage."""

    def decorated(function: _Function) -> _Function:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with stage(name):
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]

    return decorated


def begin_round() -> None:
    """Tells the stopwatch, if one runs, that the closed loop compiles another program."""
    running = _CURRENT.get()
    if running is not None:
        running.begin_round()


def _clocks() -> tuple[float, float]:
    children = os.times()
    waited_for = children.children_user + children.children_system
    return time.process_time() + waited_for, time.monotonic()
