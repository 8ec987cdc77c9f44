"""`benchmarks.small_steps`: its steps can be traced, and its claims find the rows that break them
(`benchmarks.small_steps.claims`)."""

import jax
import pytest

from benchmarks.small_steps.claims import (
    crashes,
    over_budget,
    refused_but_met,
    slower_than_others,
    slower_with_more_memory,
)
from benchmarks.small_steps.drawn import LOOPS, drawn


def test_every_kind_of_loop_is_drawn_and_each_step_returns_a_state_of_its_kind():
    cases = [drawn(seed) for seed in range(40)]
    assert {case.loop for case in cases} == set(LOOPS)
    for case in cases:
        state, batch = case.arguments()
        following, _, results = jax.eval_shape(case.step, state, batch)
        assert jax.tree.structure(following) == jax.tree.structure(state)
        assert [x.shape for x in jax.tree.leaves(following)] == [
            x.shape for x in jax.tree.leaves(state)
        ]
        assert (results is not None) == case.yields_states


def row(planner="joint", share=1.0, seconds=1.0, peak=100, peaks=(100,), error=""):
    return {
        "planner": planner,
        "share": share,
        "budget_bytes": None if share == 1.0 else int(100 * share),
        "error": error,
        "what": "",
        "compiled_seconds": seconds,
        "compiled_peak_bytes": peak,
        "compiled_peaks_bytes": peaks,
    }


REFUSED = row(share=0.7, seconds=None, peak=80, peaks=(80,), error="BudgetNotMetError")


@pytest.mark.parametrize(
    ("claim", "kept", "broken"),
    [
        (refused_but_met, [row(), REFUSED], [row("alpa", 0.7, peaks=(70,)), REFUSED]),
        (
            slower_than_others,
            [row(), row("alpa", seconds=1.005)],
            [row(seconds=1.02), row("alpa")],
        ),
        (
            slower_with_more_memory,
            [row(), row(share=0.7, seconds=1.2)],
            [row(seconds=1.2), row(share=0.7)],
        ),
        (over_budget, [row(), row(share=0.9, peak=90)], [row(share=0.9, peak=91)]),
        (crashes, [REFUSED], [row(error="AssertionError")]),
    ],
)
def test_a_claim_names_what_breaks_it_and_nothing_else(claim, kept, broken):
    assert not list(claim(kept))
    assert len(list(claim(broken))) == 1
