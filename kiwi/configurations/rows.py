"""The rows of a search's table, from what was found out of each configuration."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kiwi.configurations.configuration import Configuration, Row, Stage, State
from kiwi.configurations.tasks import Found
from kiwi.sizes import format_seconds

Score = Callable[[Configuration, float], float]
"""What is minimised, of a configuration and the seconds of its step."""


def rows_of(
    configurations: Sequence[Configuration],
    counted: Sequence[Sequence[Found]],
    best: Iterable[int | None],
    score: Score,
    files: dict[int, str],
) -> tuple[Row, ...]:
    """One row for each configuration. `best`: the numbers of the best ones."""
    chosen = set(best)
    found = [
        _row(each, counted[number], number in chosen, score, files.get(number))
        for number, each in enumerate(configurations)
    ]
    winners = {group_of(r.configuration): r for r in found if r.state is State.BEST}
    return tuple(_with_reason(row, winners.get(group_of(row.configuration))) for row in found)


def group_of(configuration: Configuration) -> tuple[str, int]:
    """Configurations of one group are compared; each group has its own best."""
    return configuration.profile, configuration.device_count


def _row(
    configuration: Configuration,
    found: Sequence[Found],
    is_best: bool,
    score: Score,
    plan_file: str | None,
) -> Row:
    outcomes = [each.outcome for each in found]
    bounds = [each.step_seconds for each in outcomes if each.stage is Stage.BOUND]
    plans = [each for each in outcomes if each.stage is not Stage.BOUND]
    bound_seconds, seconds = next(iter(bounds), None), sum(each.seconds for each in outcomes)
    row = Row(configuration, State.REFUSED, seconds, bound_seconds)
    if outcomes[-1].error:
        return replace(row, why=outcomes[-1].error)
    if not plans:
        assert bound_seconds is not None
        return replace(row, state=State.LEFT_OUT, score=score(configuration, bound_seconds))
    last = plans[-1]
    assert last.step_seconds is not None
    return replace(
        row,
        state=State.BEST if is_best else State.PLANNED,
        step_seconds=last.step_seconds,
        peak_bytes=last.peak_bytes,
        compiled_peak_bytes=last.compiled_peak_bytes,
        gap=last.gap,
        score=score(configuration, last.step_seconds),
        plan_file=plan_file,
    )


def _with_reason(row: Row, best: Row | None) -> Row:
    """A row that was left out says what its bound was held against."""
    if row.state is not State.LEFT_OUT or best is None or best.step_seconds is None:
        return row
    assert row.bound_seconds is not None
    why = (
        f"No plan of it is expected below {format_seconds(row.bound_seconds)} for "
        f"{row.configuration.samples} samples; the best one takes "
        f"{format_seconds(best.step_seconds)} for {best.configuration.samples}."
    )
    return replace(row, why=why)
