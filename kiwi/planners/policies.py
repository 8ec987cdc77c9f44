"""The fastest policy by names that fits a budget: branch and bound over residencies of names.

A policy is a residency for each name. It has two prices, each of which is asked for once:

- free: the step without a budget. That is quick, and a bound of the other.
- tight: the step within the budget, asked for only where the free step is faster than the best
  policy known and does not fit as it is.

1. The bound of a part of a policy is the free price of the policy that leaves every open name on
   the device: whatever else is done with a name takes no less time. That policy is a candidate.
2. A part is given up if the policies that recompute, or offload, every open name need more than
   `FLOOR` times the budget.
3. Names are decided in the order of the seconds that recomputing one alone costs per byte saved,
   the cheapest first.

Rules 1 and 2 can be wrong: a policy that saves more can be slower where its shardings are others,
and recomputation has buffers of its own. So up to `EXHAUSTIVE` policies are all priced, in the
order of their free seconds.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kiwi.hlo.checkpoint_names import DEVICE, OFFLOAD, REMAT

Policy = tuple[str, ...]
"""The residency of each name, in the order of the names."""

EXHAUSTIVE = 32
"""Up to so many policies, each is priced."""

FLOOR = 1.1
"""Parts of policies that need more than this multiple of the budget are given up. A smaller one
would trust predictions of recomputation's own buffers too much."""


@dataclass(frozen=True)
class Price:
    """Seconds of a step, and the bytes of a device. `fits`: whether they are within the budget."""

    seconds: float
    peak_bytes: float
    fits: bool


REFUSED = Price(math.inf, math.inf, False)
"""The price of a policy without a plan."""


@dataclass
class PolicySearch:
    """A search; `best` is the fastest policy found that fits, with its price.

    - `choices`: the residencies that each name may have, by the name's position.
    - `free`, `tight`: give the price of a policy.
    - `budget_bytes`: of a device. `most`: policies to price at most.
    - `refused`: policies that are known not to fit, whatever their prices.
    """

    choices: Sequence[Sequence[str]]
    free: Callable[[Policy], Price]
    tight: Callable[[Policy], Price]
    budget_bytes: float
    most: int
    refused: set[Policy] = field(default_factory=set)
    best: tuple[Policy, Price] | None = None
    known: dict[Policy, Price] = field(default_factory=dict)
    tightened: dict[Policy, Price] = field(default_factory=dict)

    def run(self, starts: Sequence[Policy] = ()) -> Policy | None:
        """The fastest policy found that fits; None if none does.

        - `starts`: policies to price first.
        """
        self.best = None
        for policy in starts:
            self._try(policy)
        if self.count <= EXHAUSTIVE:
            for policy in itertools.product(*self.choices):
                self._of(policy)
            for policy in sorted(self.known, key=lambda each: self.known[each].seconds):
                self._try(policy)
        else:
            self._visit(self._order(), {})
        return None if self.best is None else self.best[0]

    @property
    def count(self) -> int:
        """The number of policies."""
        return math.prod(map(len, self.choices))

    @property
    def is_complete(self) -> bool:
        """Whether the search ended by itself."""
        return self.count <= EXHAUSTIVE or len(self.known) < self.most

    def _of(self, policy: Policy) -> Price | None:
        """The free price of a policy; None if no more may be priced."""
        if policy not in self.known:
            if len(self.known) >= self.most and self.count > EXHAUSTIVE:
                return None
            self.known[policy] = self.free(policy)
        return self.known[policy]

    def _try(self, policy: Policy) -> None:
        """Makes a policy the best if it fits and is faster."""
        price = self._of(policy)
        if price is None or policy in self.refused or not self._is_better(price):
            return
        if not price.fits:
            if policy not in self.tightened:
                self.tightened[policy] = self.tight(policy)
            price = self.tightened[policy]
        if price.fits and self._is_better(price):
            self.best = policy, price

    def _is_better(self, price: Price) -> bool:
        if self.best is None:
            return True
        best = self.best[1]
        return (price.seconds, price.peak_bytes) < (best.seconds, best.peak_bytes)

    def _filled(self, decided: Mapping[int, str], residency: str) -> Policy:
        """A policy with one residency for all open names that may have it."""
        return tuple(
            decided.get(k, residency if residency in own else own[0])
            for k, own in enumerate(self.choices)
        )

    def _order(self) -> list[int]:
        """The positions of names, those first that save most memory per second."""
        plain = self._of(self._filled({}, DEVICE))

        def cost(position: int) -> float:
            alone = self._of(self._filled({position: REMAT}, DEVICE))
            if plain is None or alone is None:
                return math.inf
            saved = plain.peak_bytes - alone.peak_bytes
            return max(0.0, alone.seconds - plain.seconds) / saved if saved > 0 else math.inf

        return sorted(range(len(self.choices)), key=cost)

    def _visit(self, order: Sequence[int], decided: dict[int, str]) -> None:
        policy = self._filled(decided, DEVICE)
        bound = self._of(policy)
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
        offers = {residency for own in self.choices for residency in own} - {DEVICE}
        floors = [self._of(self._filled(decided, residency)) for residency in sorted(offers)]
        limit = FLOOR * self.budget_bytes
        return all(price is not None and price.peak_bytes > limit for price in floors)
