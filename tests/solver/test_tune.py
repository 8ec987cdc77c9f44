"""The tuner: what it varies, and how it tells better parameters from worse."""

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.solver.generated.__main__ import on_record
from benchmarks.solver.tune import RANGES, Start, drawn, to_tune_on
from kiwi.solver.parameters import DEFAULT, Parameters


@pytest.fixture(scope="module")
def start() -> Start:
    """The smallest of the instances to tune on that takes rounds."""
    return Start(min(to_tune_on(on_record())[:10], key=lambda row: row.options))


def test_everything_is_varied_around_what_it_is() -> None:
    assert set(RANGES) == set(asdict(DEFAULT))
    for name, value in asdict(DEFAULT).items():
        assert min(RANGES[name]) < value < max(RANGES[name])
        assert value in RANGES[name]


def test_only_the_halfto_tune_on_is_read() -> None:
    assert {row.case.half for row in to_tune_on(on_record())} == {"tuning"}
    assert {row.case.half for row in on_record()} == {"tuning", "measured"}


def test_more_work_comes_closer_and_the_same_work_as_close(start: Start) -> None:
    little, much = (start.distance(DEFAULT, passes, seed=0) for passes in (20, 4000))
    assert much < little <= 0.0
    assert start.distance(DEFAULT, 4000, seed=0) == much


def test_parameters_are_heeded(start: Start) -> None:
    lame = Parameters(
        dual_steps=1, most_sweep_pairs=1, tree_nodes=1, forced_tries=1, ball_nodes=1, most_told=1
    )
    assert start.distance(DEFAULT, 4000, seed=0) != start.distance(lame, 4000, seed=0)


def test_candidates_follow_from_the_seed() -> None:
    first, again, other = (drawn(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other
