"""The search that predicts most policies finds the same as brute force, or almost."""

import itertools
import random

import pytest

from kiwi.planners.policies import EXHAUSTIVE, REFUSED, Price
from kiwi.planners.policy_model import ModelSearch

RESIDENCIES = ("device", "remat", "offload")
SLOWER = {"device": 0.0, "remat": 1.0, "offload": 0.6}
NAMES = 6


def priced(seed, *, interaction=0.0, unread=()):
    """Returns prices of policies. Names in `unread` change nothing."""
    numbers = random.Random(seed)
    seconds = [numbers.uniform(0.01, 1.0) * (k not in unread) for k in range(NAMES)]
    sizes = [numbers.uniform(1.0, 10.0) * (k not in unread) for k in range(NAMES)]
    budget_bytes = 0.4 * sum(sizes)

    def price(policy):
        took = sum(s * SLOWER[r] for s, r in zip(seconds, policy, strict=True))
        took += sum(interaction for a, b in itertools.pairwise(policy) if a == b == "remat")
        held = sum(size for size, r in zip(sizes, policy, strict=True) if r == "device")
        return Price(10 + took, held, held <= budget_bytes)

    return price, budget_bytes


def searched(price, budget_bytes, most=10**6):
    search = ModelSearch([RESIDENCIES] * NAMES, price, budget_bytes, most)
    return search, search.run()


def excess(price, found):
    """Returns how much slower the answer is than the fastest policy, as a ratio minus 1."""
    every = map(price, itertools.product(RESIDENCIES, repeat=NAMES))
    return price(found).seconds / min(p.seconds for p in every if p.fits) - 1


@pytest.mark.parametrize("seed", range(12))
def test_without_interactions_it_is_exact(seed):
    price, budget_bytes = priced(seed)
    search, found = searched(price, budget_bytes)
    assert search.is_complete and excess(price, found) == 0
    assert len(search.known) < 25 < search.count


def test_with_strong_interactions_it_is_nearly_always_exact():
    missed = []
    for seed in range(12):
        price, budget_bytes = priced(seed, interaction=0.3)
        search, found = searched(price, budget_bytes)
        assert len(search.known) < 30
        missed.append(excess(price, found))
    assert sorted(missed)[-2] == 0 and max(missed) < 0.01


def test_names_that_change_nothing_stay_recomputed():
    price, budget_bytes = priced(2, unread=(1, 4))
    _, found = searched(price, budget_bytes)
    assert found is not None and found[1] == found[4] == "remat" and excess(price, found) == 0


def test_few_policies_are_all_priced():
    price, budget_bytes = priced(1)
    short = lambda policy: price((*policy, *("remat",) * (NAMES - 3)))  # noqa: E731
    search = ModelSearch([RESIDENCIES] * 3, short, budget_bytes, most=1)
    search.run()
    assert search.is_complete and len(search.known) == 3**3 <= EXHAUSTIVE


def test_a_refused_policy_is_followed_by_the_next():
    price, budget_bytes = priced(5)
    search, first = searched(price, budget_bytes)
    assert first is not None
    search.refused.add(first)
    second = search.run()
    assert second != first and price(second).fits
    assert price(second).seconds >= price(first).seconds


def test_a_policy_without_a_plan_is_passed_over():
    price, budget_bytes = priced(4)
    _, fastest = searched(price, budget_bytes)
    search, found = searched(lambda p: REFUSED if p == fastest else price(p), budget_bytes)
    assert found != fastest and found is not None and search.is_complete


def test_nothing_fits():
    price, _ = priced(3)
    search, found = searched(lambda p: Price(price(p).seconds, 100.0, False), budget_bytes=50.0)
    assert found is None and len(search.known) < 20


def test_ends_after_the_most_policies():
    price, budget_bytes = priced(5, interaction=0.3)
    search, found = searched(price, budget_bytes, most=9)
    assert len(search.known) == 9 and not search.is_complete and found is not None
