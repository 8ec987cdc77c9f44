"""Examples written with Flax, Equinox and Optax train the same with a plan and without."""

import pytest

from examples._compare import EXAMPLES, TOLERANCE, Training

QUICK = ("moe_all_to_all",)
ALL = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in EXAMPLES]


@pytest.mark.parametrize("name", ALL)
def test_examples_train_alike_within_a_budget(name):
    (row,) = Training.of(name).rows([0.8], steps=2)
    assert row.peak_bytes <= row.budget_bytes
    assert row.difference < TOLERANCE
    assert row.losses[1] < row.losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_train_alike_within_three_budgets(name):
    for row in Training.of(name, "small").rows([1.0, 0.8, 0.6], steps=5):
        assert row.peak_bytes <= row.budget_bytes
        assert row.difference < TOLERANCE
