"""The tuner: the parameters that it varies, and how it ranks them."""

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.solver.generated.__main__ import on_record
from benchmarks.solver.tune import RANGES, Start, drawn, of_half
from kiwi.solver.parameters import DEFAULT, Parameters


@pytest.fixture(scope="module")
def start() -> Start:
    """Returns the smallest tuning instance that takes rounds."""
    return Start(min(of_half("tuning", on_record()), key=lambda row: row.options))


def test_everything_is_varied_around_what_it_is() -> None:
    assert set(RANGES) == set(asdict(DEFAULT))
    for name, value in asdict(DEFAULT).items():
        assert min(RANGES[name]) < value < max(RANGES[name])
        assert value in RANGES[name]


def test_only_the_halfof_half_is_read() -> None:
    for half in ("tuning", "measured"):
        assert {row.case.half for row in of_half(half, on_record())} == {half}


def test_more_work_comes_closer_and_the_same_work_as_close(start: Start) -> None:
    little, much = (start.distance(DEFAULT, passes) for passes in (20, 4000))
    assert much < little <= 0.0
    assert start.distance(DEFAULT, 4000) == much


def test_parameters_are_heeded(start: Start) -> None:
    lame = Parameters(
        dual_steps=1, most_sweep_pairs=1, tree_nodes=1, forced_tries=1, ball_nodes=1, most_told=1
    )
    assert start.distance(DEFAULT, 4000) != start.distance(lame, 4000)


def test_candidates_follow_from_the_seed() -> None:
    first, again, other = (drawn(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other
