"""The search over policies by names finds the same as brute force."""

import itertools
import random

import pytest

from kiwi.planners.policies import REFUSED, PolicySearch, Price

RESIDENCIES = ("device", "remat", "offload")
SLOWER = {"device": 0.0, "remat": 1.0, "offload": 0.6}


def priced(seed, names):
    """Returns prices by which saving more is never slower, with interactions of neighbouring
    names."""
    numbers = random.Random(seed)
    seconds = [numbers.uniform(0.01, 1.0) for _ in range(names)]
    sizes = [numbers.uniform(1.0, 10.0) for _ in range(names)]
    budget_bytes = 0.4 * sum(sizes)

    def free(policy):
        took = sum(s * SLOWER[r] for s, r in zip(seconds, policy, strict=True))
        took += sum(0.3 for a, b in itertools.pairwise(policy) if a == b == "remat")
        held = sum(size for size, r in zip(sizes, policy, strict=True) if r == "device")
        return Price(10 + took, held, held <= budget_bytes)

    return free, budget_bytes


@pytest.mark.parametrize("seed", range(12))
def test_finds_what_brute_force_finds(seed):
    free, budget_bytes = priced(seed, names=6)
    search = PolicySearch([RESIDENCIES] * 6, free, budget_bytes, 10**6, tight=lambda _: REFUSED)
    found = search.run()
    every = [free(policy) for policy in itertools.product(RESIDENCIES, repeat=6)]
    best = min(price.seconds for price in every if price.fits)
    assert free(found).fits and free(found).seconds == best
    assert search.is_complete and len(search.known) < 3**6


def test_asks_for_the_tight_price_only_of_what_may_be_better():
    free, budget_bytes = priced(3, names=3)
    asked = []

    def tight(policy):
        asked.append(policy)
        return Price(free(policy).seconds + 0.05, budget_bytes, True)

    search = PolicySearch([RESIDENCIES] * 3, free, budget_bytes, 10**6, tight=tight)
    assert search.run() == ("device",) * 3
    assert asked == [("device",) * 3]


def test_a_refused_policy_is_followed_by_the_next():
    free, budget_bytes = priced(5, names=3)
    search = PolicySearch([RESIDENCIES] * 3, free, budget_bytes, 10**6, tight=lambda _: REFUSED)
    first = search.run()
    search.refused.add(first)
    second = search.run()
    assert second != first and free(second).seconds >= free(first).seconds


def test_ends_after_the_most_policies():
    free, budget_bytes = priced(5, names=8)
    search = PolicySearch([RESIDENCIES] * 8, free, budget_bytes, 40, tight=lambda _: REFUSED)
    search.run()
    assert len(search.known) == 40 and not search.is_complete
