"""The search for a plan as text: a table of its attempts."""

from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.plans.history import Outcome, Trial
from kiwi.plans.summary import table
from kiwi.sizes import format_bytes, format_seconds


@dataclass(frozen=True)
class SearchExplanation:
    """The attempts of a search. Its text is a table of the attempts under a line that names the
    attempts that made the answer."""

    history: tuple[Trial, ...]

    @property
    def answer(self) -> tuple[Trial, ...]:
        """The attempts that made the plan: first its solution, then its program."""
        return tuple(trial for trial in self.history if trial.outcome is Outcome.ANSWER)

    def __str__(self) -> str:
        if not self.history:
            return "This plan was not searched: the stages of planning made it one by one."
        made_by = " and ".join(f'"{_path(trial)}"' for trial in self.answer)
        head = f"Made by {made_by}." if made_by else "No attempt became the answer."
        header = ("", "attempt", "limit", "predicted", "", "compiled", "", "work", "outcome")
        return f"{head}\n\n{table(header, _rows(self.history))}"


def _rows(history: Sequence[Trial]) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            _path(trial),
            _bytes(trial.limit_bytes),
            _seconds(trial.predicted_seconds),
            _bytes(trial.predicted_peak_bytes),
            _seconds(trial.compiled_seconds),
            _bytes(trial.compiled_peak_bytes),
            f"{trial.work:.2g}" if trial.work else "",
            trial.outcome.value,
        )
        for number, trial in enumerate(history, start=1)
    ]


def _path(trial: Trial) -> str:
    return ": ".join((*trial.within, trial.attempt))


def _bytes(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)
