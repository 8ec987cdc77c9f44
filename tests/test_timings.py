"""Stages of planning: nested, with times that sum to the whole, and silent where nothing is
measured."""

import time

import pytest

from kiwi.timings import OTHER, Stopwatch, begin_round, measured, stage, timed


class _Clock:
    """Clocks that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu = self.wall = 0.0
        monkeypatch.setattr("kiwi.timings._clocks", lambda: (self.cpu, self.wall))

    def work(self, seconds: float) -> None:
        self.cpu += seconds
        self.wall += 2 * seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    return _Clock(monkeypatch)


def test_a_stage_within_another_stops_the_outer_one(clock: _Clock) -> None:
    @timed("inner")
    def inner() -> None:
        clock.work(2.0)

    with measured() as watch:
        clock.work(0.5)
        with stage("outer"):
            clock.work(1.0)
            inner()
            clock.work(4.0)
        found = {each.stage: each for each in watch.timings()}
    assert {name: each.cpu_seconds for name, each in found.items()} == {
        "outer": 5.0,
        "inner": 2.0,
        OTHER: 0.5,
    }
    assert sum(each.seconds for each in found.values()) == clock.wall
    assert [each.stage for each in watch.timings()] == ["outer", "inner", OTHER]


def test_a_stage_ends_with_an_error(clock: _Clock) -> None:
    with measured() as watch:
        with pytest.raises(KeyError), stage("failing"):
            clock.work(1.0)
            raise KeyError
        clock.work(3.0)
        assert watch.stage == OTHER
        found = {each.stage: each.cpu_seconds for each in watch.timings()}
    assert found == {OTHER: 3.0, "failing": 1.0}


def test_one_stopwatch_runs_at_a_time() -> None:
    with measured() as outer, measured() as inner:
        assert inner is outer
    with measured() as later:
        assert later is not outer


def test_nothing_is_measured_outside() -> None:
    with stage("anything"):
        begin_round()
    assert timed("anything")(lambda: 7)() == 7


def test_watchers_hear_of_stages_and_rounds() -> None:
    heard: list[tuple[str, int]] = []
    with measured() as watch:
        watch.on_change = lambda: heard.append((watch.stage, watch.round))
        with stage("compile"):
            begin_round()
    assert heard == [("compile", 0), ("compile", 1)]


def test_the_clocks_are_those_of_processor_and_wall() -> None:
    watch = Stopwatch()
    time.sleep(0.01)
    (only,) = watch.timings()
    assert only.seconds >= 0.01 and only.cpu_seconds >= 0.0
