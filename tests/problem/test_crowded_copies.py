"""Copies of a loop's body in two windows, against machines in line."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiwi.memory.residency import Residency
from kiwi.problem.crowded_copies import Crowded, crowded

FORWARD, BACKWARD = 0, 1
Times = list[tuple[int, int]]


def bodies(count: int) -> Any:
    """Returns the units of a forward body and of a backward body, the latter in reverse."""
    loops = [FORWARD] * count + [BACKWARD] * count
    return SimpleNamespace(
        units=[SimpleNamespace(index=k, loop=loop) for k, loop in enumerate(loops)]
    )


def found(times: Times) -> tuple[Any, Crowded]:
    """Returns the units and the result of `crowded`. `times`: for each unit the seconds of its
    computation, the same in both bodies, and of its copy, which its mirror image reads."""
    count = len(times)
    units = bodies(count)
    computed = [c for c, _ in times]
    seconds = dict(enumerate(computed + computed[::-1]))
    copied = {k: copy for k, (_, copy) in enumerate(times) if copy}
    fetched = {k: (BACKWARD, 2 * count - 1 - k) for k in copied}
    return units, crowded(units, seconds, copied, fetched)


def two_windows(times: Times) -> tuple[float, float]:
    """Returns the seconds of both bodies with all values copied. Each window is as long as its
    larger channel."""
    count = len(times)
    units, cut = found(times)
    windows = [[0.0, 0.0] for _ in range(4)]
    for k, (computing, copying) in enumerate(times):
        unit, mirrored = units.units[k], units.units[2 * count - 1 - k]
        windows[cut.is_beside(unit)][0] += computing
        windows[cut.is_among(unit)][1] += copying
        windows[2 + cut.is_beside(mirrored)][0] += computing
        read = Residency(None, mirrored.index, fetch_at=mirrored.index)
        windows[2 + bool(cut.until(BACKWARD, [read])[0])][1] += copying
    longest = [max(window) for window in windows]
    return longest[0] + longest[1], longest[2] + longest[3]


def in_line(times: Times) -> float:
    """Returns the time of a body whose copies follow each other. Each copy starts when its unit is
    computed, or after the previous copy."""
    computed = copied = 0.0
    for computing, copying in times:
        computed += computing
        copied = max(copied, computed) + copying if copying else copied
    return max(computed, copied)


def test_a_transformer_s_layer():
    """Of 12 s each, what gate and up project takes 15 s to copy: 30 s from the gate on, behind 24
    of computing, and the same backwards. What attention reads hides."""
    attention, gate, up, down = (9, 4), (12, 15), (12, 15), (12, 0)
    assert two_windows([attention, gate, up, down]) == (9 + 12 + 30, 30 + 12 + 9)
    units, cut = found([attention, gate, up, down])
    assert [cut.is_among(unit) for unit in units.units[:4]] == [False, True, True, True]
    assert [cut.is_beside(unit) for unit in units.units[:4]] == [False, False, True, True]
    assert [cut.is_beside(unit) for unit in units.units[4:]] == [True, True, False, False]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8))
def test_all_copies_take_as_long_as_on_machines_in_line(times: Times):
    expected = in_line(times)
    assert two_windows(times) == (expected, expected)


def test_without_copies_nothing_crowds():
    units, cut = found([(1, 0), (2, 0)])
    assert cut == Crowded()
    assert not any(cut.is_beside(unit) or cut.is_among(unit) for unit in units.units)
    assert not cut.until(BACKWARD, [Residency(None, 3, fetch_at=2), Residency(2, 3)]).any()


@pytest.mark.parametrize("loop", [None, FORWARD])
def test_other_loops_and_what_is_outside_have_no_crowd(loop: int | None):
    cut = Crowded({BACKWARD: 0}, {BACKWARD: 9})
    unit: Any = SimpleNamespace(index=5, loop=loop)
    assert not cut.is_beside(unit) and not cut.is_among(unit)
