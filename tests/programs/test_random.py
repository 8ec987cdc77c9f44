"""Random programs compute the same under a plan as without one, or raise a typed error."""

from collections.abc import Callable
from typing import Any

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.programs.check import check, forget, spread
from benchmarks.programs.operations import OPERATIONS
from benchmarks.programs.recipes import Recipe, choosing_recipes, recipes
from benchmarks.programs.regions import REGIONS
from benchmarks.programs.steps import Step

QUICK = hypothesis.settings(max_examples=3, suppress_health_check=list(hypothesis.HealthCheck))
MANY = hypothesis.settings(QUICK, max_examples=300)
MANY_SMALL = hypothesis.settings(QUICK, max_examples=600)


@pytest.fixture(autouse=True)
def free_programs():
    yield
    forget()


@QUICK
@hypothesis.given(recipes(loops=False, verify=False))
def test_planned_programs_compute_the_same(recipe: Recipe):
    check(recipe)


@QUICK
@hypothesis.given(recipes(verify=False))
def test_planned_loops_compute_the_same(recipe: Recipe):
    check(recipe)


@QUICK
@hypothesis.given(choosing_recipes())
def test_planned_branches_compute_the_same(recipe: Recipe):
    check(recipe)


@pytest.mark.slow
@MANY_SMALL
@hypothesis.given(choosing_recipes())
def test_many_planned_branches_compute_the_same(recipe: Recipe):
    check(recipe)


@pytest.mark.slow
@MANY
@hypothesis.given(recipes())
def test_many_planned_programs_compute_the_same(recipe: Recipe):
    check(recipe)


def test_a_while_whose_body_cuts_what_is_sharded_is_estimated_as_it_is_written():
    """A reader that cuts its operand pays nothing, so that reading it once less saves nothing."""
    body = Step("annotation", 5972768), Step("cut", 456)
    steps = Step("while_loop", 401, body), Step("broadcast", 3624)
    recipe = Recipe(steps, (8, 4, 16), mode="train", planner="xla", respect_user_checkpoint=True)
    assert check(recipe).kind == "equal"


def test_there_is_much_to_draw_from():
    assert len(OPERATIONS) >= 25
    assert len(REGIONS) >= 12


@pytest.mark.parametrize(
    ("function", "conditioned"), [(jnp.floor, False), (jnp.sin, True)], ids=["jump", "smooth"]
)
def test_programs_that_rounding_decides_are_told_from_wrong_ones(
    function: Callable[..., Any], conditioned: bool
):
    args = (np.float32(1 - 1e-7), np.float32(1))
    product = lambda p, x: function(p * x)  # noqa: E731
    expected = np.asarray(product(*args))
    assert (spread(product, args, expected, "float32") < 1) is conditioned
