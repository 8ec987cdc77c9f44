"""Dataclasses of arrays that compiled loops take as one pointer."""

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

from kiwi.solver.compiled import kernel
from kiwi.solver.loops.arrays import Arrays


@dataclass(frozen=True, eq=False)
class Scaled(Arrays):
    values: np.ndarray
    places: np.ndarray
    chosen: np.ndarray
    factor: int


@kernel
def _scale(scaled: Scaled):
    for k in range(len(scaled.places)):
        if scaled.chosen[k]:
            scaled.values[scaled.places[k]] *= scaled.factor
    return len(scaled.values)


def _scaled() -> Scaled:
    chosen = np.array([True, False, True])
    return Scaled(np.array([1.0, 2.0, 3.0, 4.0]), np.array([3, 2, 0]), chosen, 10)


def test_loops_read_and_write_every_kind_of_array() -> None:
    scaled = _scaled()
    assert _scale(scaled) == 4
    assert scaled.values.tolist() == [10.0, 2.0, 3.0, 40.0]


def test_a_changed_or_loaded_object_has_its_own_arrays() -> None:
    scaled = _scaled()
    _scale(scaled)
    for other in (replace(scaled, factor=2), pickle.loads(pickle.dumps(scaled))):
        before = other.values.copy()
        assert other.factor in (2, 10) and _scale(other) == 4
        assert other.values.tolist() == [other.factor * before[0], 2, 3, other.factor * before[3]]
    assert len(_scale.signatures) == 1


def test_empty_arrays_do() -> None:
    empty = Scaled(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_), 1)
    assert _scale(empty) == 0


def test_arrays_with_gaps_and_tables_are_refused() -> None:
    for values in (np.zeros(8)[::2], np.zeros((2, 2))):
        with pytest.raises(AssertionError):
            _scale(replace(_scaled(), values=values))
