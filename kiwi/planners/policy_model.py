"""The fastest policy by names that fits a budget, sought with a model of all policies.

For planners without further decisions ("xla"), a policy has one price. The time and the memory of
a policy are almost sums over its names: each residency saves seconds of recomputation, and holds
bytes. So few policies are priced, and all others are predicted from them:

1. The policy that recomputes every name is priced, then those that keep one name. A name that
   changes neither time nor memory is not read by the backward pass, and stays recomputed.
2. A policy is predicted from the nearest one that was priced, by the effects of the residencies in
   which the two differ. Effects are fitted to all prices. Until a policy that offloads a name was
   priced, offloading it is taken to save as much time as keeping it, and to hold nothing.
3. The fastest policy that is predicted to fit, and to be faster than the best one known, is priced.
   If there is none, up to `PATIENCE` follow that may be faster by the largest error of a prediction
   so far. Then the search ends.

Where names interact (one that is recomputed only for another), a prediction is wrong until its
neighbours are priced. So the answer may be missed; `tests/planners/test_policy_model.py` counts how
often.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.hlo.checkpoint_names import DEVICE, OFFLOAD, REMAT
from kiwi.planners.policies import EXHAUSTIVE, Policy, Price

NEAR = 1.01
"""Policies that are predicted to need up to this multiple of the budget are priced. Beyond it they
are taken not to fit."""

PATIENCE = 4
"""How many policies in a row are priced that are predicted to be no faster than the best one."""

LARGEST = 2**17
"""Up to so many policies are predicted. Of more, the names that save least time stay recomputed."""

_TRUST = 0.03
"""The weight of what was assumed of an effect, beside 1 for each price: enough to settle what no
price says."""

_SAME = 1e-9
"""Times within this factor are equal."""


@dataclass
class ModelSearch:
    """A search over policies that predicts most of them.

    - `choices`: the residencies that each name may have, by the name's position.
    - `price`: gives the price of a policy. `budget_bytes`: of a device.
    - `most`: policies to price at most. `refused`: policies that are known not to fit, whatever
      their prices.
    """

    choices: Sequence[Sequence[str]]
    price: Callable[[Policy], Price]
    budget_bytes: float
    most: int
    refused: set[Policy] = field(default_factory=set)
    known: dict[Policy, Price] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def count(self) -> int:
        """The number of policies."""
        return math.prod(map(len, self.choices))

    def run(self) -> Policy | None:
        """The fastest policy found that fits; None if none does."""
        if self.count <= EXHAUSTIVE:
            every: Sequence[Policy] = list(itertools.product(*self.choices))
        else:
            every = self._alone()
        self.is_complete = all(self._of(policy) is not None for policy in every)
        if self.count > EXHAUSTIVE and self.is_complete:
            self._improve()
        return min(filter(self._fits, self.known), key=self._speed, default=None)

    def _alone(self) -> list[Policy]:
        """The policy that recomputes every name, and those that keep one."""
        none = (REMAT,) * len(self.choices)
        kept = [(*none[:k], DEVICE, *none[k + 1 :]) for k in range(len(none))]
        return [none, *kept]

    def _of(self, policy: Policy) -> Price | None:
        """The price of a policy; None if no more may be priced."""
        if policy not in self.known:
            if len(self.known) >= self.most and self.count > EXHAUSTIVE:
                return None
            self.known[policy] = self.price(policy)
        return self.known[policy]

    def _speed(self, policy: Policy) -> tuple[float, float]:
        return self.known[policy].seconds, self.known[policy].peak_bytes

    def _improve(self) -> None:
        """Prices what may be faster and is predicted to fit, until there is nothing."""
        table, error_seconds, patience = _Table.of(self), 0.0, PATIENCE
        while (found := table.next_of(self, error_seconds)) is not None:
            policy, seconds = found
            best_seconds = self.best_seconds
            patience -= seconds >= best_seconds
            if patience < 0:
                return
            price = self._of(policy)
            if price is None:
                self.is_complete = False
                return
            if math.isfinite(price.seconds) and math.isfinite(seconds):
                error_seconds = max(error_seconds, abs(price.seconds - seconds))
            if self.best_seconds < best_seconds:
                patience = PATIENCE

    @property
    def best_seconds(self) -> float:
        """The seconds of the fastest policy known that fits."""
        fitting = (price.seconds for p, price in self.known.items() if self._fits(p))
        return min(fitting, default=math.inf)

    def _fits(self, policy: Policy) -> bool:
        return self.known[policy].fits and policy not in self.refused


@dataclass(frozen=True, eq=False)
class _Table:
    """All policies of the names that matter.

    - `policies[k]` is a policy, `saves[k]` has for each name whether it is on the device, then for
      each whether it is offloaded.
    - `assumed`: for each column of `saves`, the seconds and the bytes that it was first taken to
      add.
    """

    policies: list[Policy]
    saves: np.ndarray
    assumed: np.ndarray

    @classmethod
    def of(cls, search: ModelSearch) -> "_Table":
        none, *alone = search._alone()
        base = search.known[none]
        effects = [
            (search.known[p].seconds - base.seconds, search.known[p].peak_bytes - base.peak_bytes)
            for p in alone
        ]
        choices = [
            own if abs(seconds) > _SAME * base.seconds or size else (REMAT,)
            for own, (seconds, size) in zip(search.choices, effects, strict=True)
        ]
        by_gain = sorted(range(len(choices)), key=lambda k: -effects[k][0])
        while math.prod(map(len, choices)) > LARGEST:
            choices[by_gain.pop(0)] = (REMAT,)
        policies = list(itertools.product(*choices))
        assumed = np.array([*effects, *((seconds, 0.0) for seconds, _ in effects)])
        return cls(policies, _saved(policies), assumed)

    def next_of(self, search: ModelSearch, error_seconds: float) -> tuple[Policy, float] | None:
        """The policy to price next, with its predicted seconds.

        It is the fastest that is predicted to fit, unless it is slower than the best one by more
        than `error_seconds`. As long as none fits, the smallest follows, with infinite seconds.
        """
        seconds, size_bytes = self._predicted(search.known).T
        left = np.array([policy not in search.known for policy in self.policies])
        limit_bytes = NEAR * search.budget_bytes
        allowed = search.best_seconds * (1 - _SAME) + error_seconds
        worth = left & (size_bytes <= limit_bytes) & (seconds < allowed)
        if worth.any():
            k = int(np.argmin(np.where(worth, seconds, math.inf)))
        elif left.any() and math.isinf(search.best_seconds):
            return self.policies[int(np.argmin(np.where(left, size_bytes, math.inf)))], math.inf
        else:
            return None
        return self.policies[k], float(seconds[k])

    def _predicted(self, known: dict[Policy, Price]) -> np.ndarray:
        """Seconds and bytes of every policy."""
        priced = [policy for policy, price in known.items() if math.isfinite(price.seconds)]
        saved = _saved(priced)
        figures = np.array([(known[p].seconds, known[p].peak_bytes) for p in priced])
        effects = self._effects(saved, figures)
        # Columns in which two policies differ count by their seconds; |a - b| is a + b - 2ab.
        weights = np.abs(effects[:, 0]) + _SAME * figures[0, 0]
        between = (self.saves * weights) @ saved.T
        distances = (self.saves @ weights)[:, None] + saved @ weights - 2 * between
        nearest = distances.argmin(1)
        return figures[nearest] + (self.saves - saved[nearest]) @ effects

    def _effects(self, saved: np.ndarray, figures: np.ndarray) -> np.ndarray:
        """The seconds and bytes that each column of `saves` adds, by least squares."""
        plain = figures[0]  # Of the policy that recomputes every name.
        assumed = _TRUST * np.eye(len(self.assumed))
        rows = np.concatenate([saved, assumed])
        wanted = np.concatenate([figures - plain, assumed @ self.assumed])
        return np.linalg.lstsq(rows, wanted, rcond=None)[0]


def _saved(policies: Sequence[Policy]) -> np.ndarray:
    """The policies as rows of zeros and ones; see `_Table`."""
    on = [np.array([[r == kind for r in p] for p in policies], float) for kind in (DEVICE, OFFLOAD)]
    return np.concatenate(on, axis=1)
