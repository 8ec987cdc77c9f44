"""What the solver said while it worked."""

from kiwi.solver import Progress
from kiwi.solver.outcome import OnProgress

MOST_ENTRIES = 2000
"""From here on only improvements of the solution are kept."""


class ProgressLog:
    """Collects the solver's states and passes them on. A plan that is tightened is solved several
    times; `seconds` then run on from solve to solve."""

    def __init__(self, pass_on: OnProgress | None) -> None:
        self._pass_on = pass_on
        self._entries: list[Progress] = []
        self._base_seconds = 0.0

    @property
    def entries(self) -> tuple[Progress, ...]:
        """The states, in time."""
        return tuple(self._entries)

    def __call__(self, progress: Progress) -> None:
        """Takes one state."""
        if self._pass_on is not None:
            self._pass_on(progress)
        last = self._entries[-1] if self._entries else None
        if last is not None and progress.seconds + self._base_seconds < last.seconds:
            self._base_seconds = last.seconds
        is_new = last is None or progress.objective != last.objective
        if is_new or len(self._entries) < MOST_ENTRIES:
            seconds = self._base_seconds + progress.seconds
            found = progress.objective, progress.bound, progress.peak_bytes, progress.solver
            self._entries.append(Progress(seconds, *found, progress.iterations))
