"""The search for the fastest policy that fits a budget: branch and bound over residencies of names.

A policy is a residency for each name. It has two prices, each computed at most once:

- The *free* price is for the step without a budget. It takes little work, and is a bound of the
  tight price.
- The *tight* price is for the step within the budget. It is computed only if the free step is
  faster than the best policy known and does not fit.

A node of the search tree decides some of the names; the others are open.

1. The bound of a node is the free price of the policy that keeps every open name on the device: any
   other residency takes no less time. That policy is also a candidate for the answer.
2. A node is pruned if the policies that recompute, or offload, every open name all need more than
   `FLOOR` times the budget.
3. Names are decided in ascending order of the seconds that recomputing the name alone costs for
   each byte saved.

Rules 1 and 2 can be wrong. A policy that keeps more names can be slower because its shardings
differ, and recomputation has buffers of its own. So if there are at most `EXHAUSTIVE` policies, all
are priced, and tried in the order of their free seconds.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kiwi.hlo.checkpoint_names import DEVICE, OFFLOAD, REMAT

Policy = tuple[str, ...]
"""The residency of each name, in the order of the names."""

EXHAUSTIVE = 32
"""If there are more policies than this, not all are priced."""

FLOOR = 1.1
"""A node is pruned if its policies with the least memory need more than this multiple of the
budget. A smaller multiple would trust the predicted memory of recomputation too much."""


@dataclass(frozen=True)
class Price:
    """The price of a policy.

    - `seconds`: the step time. `peak_bytes`: the peak of one device.
    - `fits`: whether the plan is within the memory budgets.
    """

    seconds: float
    peak_bytes: float
    fits: bool


REFUSED = Price(math.inf, math.inf, False)
"""The price of a policy without a plan."""


@dataclass
class PricedPolicies:
    """The policies of some names, of which a search prices some.

    - `choices`: the residencies that each name may have, by the name's position.
    - `price`: returns the price of a policy.
    - `budget_bytes`: the budget of one device.
    - `most`: the largest number of policies to price. If there are at most `EXHAUSTIVE` policies,
      all may be priced.
    - `refused`: policies that are known not to fit, whatever their prices.
    - `known`: the prices so far.
    """

    choices: Sequence[Sequence[str]]
    price: Callable[[Policy], Price]
    budget_bytes: float
    most: int
    refused: set[Policy] = field(default_factory=set)
    known: dict[Policy, Price] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of policies."""
        return math.prod(map(len, self.choices))

    def price_of(self, policy: Policy) -> Price | None:
        """Returns the price of a policy; None if no further policy may be priced."""
        if policy not in self.known:
            if len(self.known) >= self.most and self.count > EXHAUSTIVE:
                return None
            self.known[policy] = self.price(policy)
        return self.known[policy]


@dataclass(kw_only=True)
class PolicySearch(PricedPolicies):
    """A branch-and-bound search over policies, whose `price` is the free price.

    - `tight`: returns the tight price of a policy.
    - `best`: the fastest policy found that fits, with its price; None if there is none.
    - `tightened`: the tight prices so far.
    """

    tight: Callable[[Policy], Price]
    best: tuple[Policy, Price] | None = None
    tightened: dict[Policy, Price] = field(default_factory=dict)

    def run(self, starts: Sequence[Policy] = ()) -> Policy | None:
        """Returns the fastest policy found that fits; None if none fits.

        - `starts`: policies to try first.
        """
        self.best = None
        for policy in starts:
            self._try(policy)
        if self.count <= EXHAUSTIVE:
            for policy in itertools.product(*self.choices):
                self.price_of(policy)
            for policy in sorted(self.known, key=lambda policy: self.known[policy].seconds):
                self._try(policy)
        else:
            self._visit(self._order(), {})
        return None if self.best is None else self.best[0]

    @property
    def is_complete(self) -> bool:
        """Whether the search ended before the limit on the number of priced policies."""
        return self.count <= EXHAUSTIVE or len(self.known) < self.most

    def _try(self, policy: Policy) -> None:
        """Makes a policy the best one if it fits and is faster than the best one so far."""
        price = self.price_of(policy)
        if price is None or policy in self.refused or not self._is_better(price):
            return
        if not price.fits:
            if policy not in self.tightened:
                self.tightened[policy] = self.tight(policy)
            price = self.tightened[policy]
        if price.fits and self._is_better(price):
            self.best = policy, price

    def _is_better(self, price: Price) -> bool:
        """Whether a price is below the best one's, by seconds and then by bytes."""
        if self.best is None:
            return True
        best = self.best[1]
        return (price.seconds, price.peak_bytes) < (best.seconds, best.peak_bytes)

    def _filled(self, decided: Mapping[int, str], residency: str) -> Policy:
        """Returns the policy with the decided residencies, and with `residency` for each open name
        that may have it.

        - `decided`: the residencies by the name's position.
        """
        return tuple(
            decided.get(k, residency if residency in allowed else allowed[0])
            for k, allowed in enumerate(self.choices)
        )

    def _order(self) -> list[int]:
        """Returns the positions of the names in the order in which they are decided (rule 3)."""
        plain = self.price_of(self._filled({}, DEVICE))

        def cost(position: int) -> float:
            alone = self.price_of(self._filled({position: REMAT}, DEVICE))
            if plain is None or alone is None:
                return math.inf
            saved = plain.peak_bytes - alone.peak_bytes
            return max(0.0, alone.seconds - plain.seconds) / saved if saved > 0 else math.inf

        return sorted(range(len(self.choices)), key=cost)

    def _visit(self, order: Sequence[int], decided: dict[int, str]) -> None:
        """Searches the subtree of a node."""
        policy = self._filled(decided, DEVICE)
        bound = self.price_of(policy)
        if bound is None or (self.best and bound.seconds >= self.best[1].seconds):
            return
        self._try(policy)
        does_fit = bound.fits and policy not in self.refused
        if does_fit or len(decided) == len(order) or self._is_too_large(decided):
            return
        position = order[len(decided)]
        for residency in sorted(self.choices[position], key=(REMAT, OFFLOAD, DEVICE).index):
            self._visit(order, {**decided, position: residency})

    def _is_too_large(self, decided: Mapping[int, str]) -> bool:
        """Whether a node is pruned because of its memory (rule 2)."""
        offers = {residency for allowed in self.choices for residency in allowed} - {DEVICE}
        floors = [self.price_of(self._filled(decided, residency)) for residency in sorted(offers)]
        limit = FLOOR * self.budget_bytes
        return all(price is not None and price.peak_bytes > limit for price in floors)
