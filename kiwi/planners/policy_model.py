"""The search for the fastest policy that fits a budget, with an additive model of all policies.

For planners without further decisions ("xla"), a policy has one price. The time and the memory of
a policy are almost sums over its names: each residency saves seconds of recomputation, and holds
bytes. So only few policies are priced, and all others are predicted:

1. The policy that recomputes every name is priced, then each policy that keeps one name. A name
   that changes neither time nor memory is not read by the backward pass, and stays recomputed.
2. The price of a policy is predicted from the nearest priced policy, by the effects of the
   residencies in which the two differ. Effects are fitted to all prices by least squares. Before a
   policy that offloads a name is priced, offloading the name is assumed to save as much time as
   keeping it, and to hold nothing.
3. The fastest policy that is predicted to fit, and to be faster than the best one known, is priced.
   If there is none, policies are priced that may be faster because predictions are wrong, by at
   most the largest error so far. The search ends after `PATIENCE` such policies in a row.

If names interact (one name is recomputed only for another), a prediction is wrong until its
neighbours are priced. So the answer may be missed. `tests/planners/test_policy_model.py` counts how
often.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kiwi.hlo.checkpoint_names import DEVICE, OFFLOAD, REMAT
from kiwi.planners.policies import EXHAUSTIVE, Policy, Price, PricedPolicies

NEAR = 1.01
"""Policies that are predicted to need more than this multiple of the budget are assumed not to fit,
and are not priced."""

PATIENCE = 4
"""The search ends after this many priced policies in a row that were predicted to be no faster than
the best one, and were not."""

LARGEST = 2**17
"""If there are more policies than this, the names that save least time stay recomputed, so that no
more policies than this are predicted."""

_TRUST = 0.03
"""The weight of an assumed effect in the least-squares fit, where each price has weight 1. It only
determines effects that no price determines."""

_SAME = 1e-9
"""Times count as equal if they differ by less than this part."""


@dataclass
class ModelSearch(PricedPolicies):
    """A search over policies that predicts the prices of most of them.

    - `is_complete`: whether the search ended before the limit on the number of priced policies.
    """

    is_complete: bool = False

    def run(self) -> Policy | None:
        """Returns the fastest policy found that fits; None if none fits."""
        if self.count <= EXHAUSTIVE:
            first: Sequence[Policy] = list(itertools.product(*self.choices))
        else:
            first = self._alone()
        self.is_complete = all(self.price_of(policy) is not None for policy in first)
        if self.count > EXHAUSTIVE and self.is_complete:
            self._improve()
        return min(filter(self._fits, self.known), key=self._speed, default=None)

    def _alone(self) -> list[Policy]:
        """Returns the policy that recomputes every name, then the policies that keep one name."""
        none = (REMAT,) * len(self.choices)
        kept = [(*none[:k], DEVICE, *none[k + 1 :]) for k in range(len(none))]
        return [none, *kept]

    def _speed(self, policy: Policy) -> tuple[float, float]:
        return self.known[policy].seconds, self.known[policy].peak_bytes

    def _improve(self) -> None:
        """Prices policies that may be faster and are predicted to fit, until there are none
        (rule 3)."""
        table, error_seconds, patience = _Table.of(self), 0.0, PATIENCE
        while (candidate := table.next_of(self, error_seconds)) is not None:
            policy, seconds = candidate
            best_seconds = self.best_seconds
            patience -= seconds >= best_seconds
            if patience < 0:
                return
            price = self.price_of(policy)
            if price is None:
                self.is_complete = False
                return
            if math.isfinite(price.seconds) and math.isfinite(seconds):
                error_seconds = max(error_seconds, abs(price.seconds - seconds))
            if self.best_seconds < best_seconds:
                patience = PATIENCE

    @property
    def best_seconds(self) -> float:
        """The seconds of the fastest known policy that fits; infinity if there is none."""
        fitting = (price.seconds for policy, price in self.known.items() if self._fits(policy))
        return min(fitting, default=math.inf)

    def _fits(self, policy: Policy) -> bool:
        return self.known[policy].fits and policy not in self.refused


@dataclass(frozen=True, eq=False)
class _Table:
    """All policies over the names that matter, and their predicted prices.

    - `policies`: the policies.
    - `saves`: float64 zeros and ones, shape [policies, 2 * names]. For each policy, the first half
      says which names are on the device, the second half which names are offloaded.
    - `assumed`: the seconds and the bytes that each column of `saves` is first assumed to add,
      shape [2 * names, 2].
    """

    policies: list[Policy]
    saves: np.ndarray
    assumed: np.ndarray

    @classmethod
    def of(cls, search: ModelSearch) -> "_Table":
        """Returns the table of a search whose first policies are priced (rule 1)."""
        none, *alone = search._alone()
        base = search.known[none]
        effects = [
            (
                search.known[policy].seconds - base.seconds,
                search.known[policy].peak_bytes - base.peak_bytes,
            )
            for policy in alone
        ]
        choices = [
            allowed if abs(seconds) > _SAME * base.seconds or size else (REMAT,)
            for allowed, (seconds, size) in zip(search.choices, effects, strict=True)
        ]
        by_gain = sorted(range(len(choices)), key=lambda k: -effects[k][0])
        while math.prod(map(len, choices)) > LARGEST:
            choices[by_gain.pop(0)] = (REMAT,)
        policies = list(itertools.product(*choices))
        assumed = np.array([*effects, *((seconds, 0.0) for seconds, _ in effects)])
        return cls(policies, _saved(policies), assumed)

    def next_of(self, search: ModelSearch, error_seconds: float) -> tuple[Policy, float] | None:
        """Returns the policy to price next, with its predicted seconds; None if there is none.

        It is the policy that is predicted to be the fastest among the ones predicted to fit, unless
        it is slower than the best known one by `error_seconds` or more. If there is none and no
        known policy fits, the policy with the least predicted memory is returned, with infinite
        seconds.
        """
        seconds, size_bytes = self._predicted(search.known).T
        unpriced = np.array([policy not in search.known for policy in self.policies])
        limit_bytes = NEAR * search.budget_bytes
        allowed = search.best_seconds * (1 - _SAME) + error_seconds
        promising = unpriced & (size_bytes <= limit_bytes) & (seconds < allowed)
        if promising.any():
            k = int(np.argmin(np.where(promising, seconds, math.inf)))
        elif unpriced.any() and math.isinf(search.best_seconds):
            return self.policies[int(np.argmin(np.where(unpriced, size_bytes, math.inf)))], math.inf
        else:
            return None
        return self.policies[k], float(seconds[k])

    def _predicted(self, known: dict[Policy, Price]) -> np.ndarray:
        """Returns the predicted seconds and bytes of every policy, shape [policies, 2]."""
        priced = [policy for policy, price in known.items() if math.isfinite(price.seconds)]
        saved = _saved(priced)
        figures = np.array([(known[policy].seconds, known[policy].peak_bytes) for policy in priced])
        effects = self._effects(saved, figures)
        # The distance of two policies is the sum of the absolute effects, in seconds, of the
        # columns in which they differ. For zeros and ones, |a - b| is a + b - 2ab.
        weights = np.abs(effects[:, 0]) + _SAME * figures[0, 0]
        between = (self.saves * weights) @ saved.T
        distances = (self.saves @ weights)[:, None] + saved @ weights - 2 * between
        nearest = distances.argmin(1)
        return figures[nearest] + (self.saves - saved[nearest]) @ effects

    def _effects(self, saved: np.ndarray, figures: np.ndarray) -> np.ndarray:
        """Returns the seconds and bytes that each column of `saves` adds, by least squares, shape
        [2 * names, 2].

        - `saved`: the rows of `saves` of the priced policies.
        - `figures`: their seconds and bytes, shape [priced policies, 2].
        """
        base = figures[0]  # The policy that recomputes every name.
        assumed = _TRUST * np.eye(len(self.assumed))
        rows = np.concatenate([saved, assumed])
        targets = np.concatenate([figures - base, assumed @ self.assumed])
        return np.linalg.lstsq(rows, targets, rcond=None)[0]


def _saved(policies: Sequence[Policy]) -> np.ndarray:
    """Returns the policies as rows of zeros and ones, as in `_Table.saves`."""
    halves = [
        np.array([[residency == kind for residency in policy] for policy in policies], float)
        for kind in (DEVICE, OFFLOAD)
    ]
    return np.concatenate(halves, axis=1)
