"""Groups of equal layers that decide differently, so that channels are balanced.

Layers that are all alike may have no way to load the links of a device as much as its arithmetic
units: with one sharding of theirs they compute for too long, with another one they wait for
communication. The solutions of the tied problem at different weights of the channels are such ends
(`SolveResult.others`). The first layers as in one of them and the others as in another one load
every channel in proportion to their numbers. Between them two layers decide each for itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kiwi.solver import Problem, SolveResult, evaluate
from kiwi.solver.evaluate import hidden_amount
from kiwi.solver.loads.restricted import Restricted
from kiwi.solver.tied import EqualNodes, Tied


@dataclass(frozen=True)
class Mixture:
    """The layers before one as in one solution of the tied problem, those from there on as in
    another one.

    - `cost`: without what is resharded in between.
    - `layer`: the first one that is as in `behind`.
    """

    cost: float
    before: tuple[int, ...]
    behind: tuple[int, ...]
    layer: int

    def groups(self, equal: Sequence[EqualNodes]) -> tuple[EqualNodes, ...]:
        """The layers before, the two in between, and those behind."""
        for layer in (self.layer - 1, self.layer, self.layer + 1):
            equal = [group for each in equal for group in each.split(layer)]
        return tuple(equal)

    def between(self, groups: Tied, small: Tied, equal: Sequence[EqualNodes]) -> Restricted:
        """The problem of groups in which the layers before and behind take what they do in the two
        solutions, and all else is open."""
        rest = Restricted.nothing(groups.problem)
        grouped = {member for each in equal for member in each.members}
        taken = {
            member: options
            for each, *options in zip(small.classes, self.before, self.behind, strict=True)
            for member in each.members
            if member in grouped
        }
        masks = [np.ones(len(own), dtype=np.bool_) for own in rest.kept]
        for group, mask in zip(groups.classes, masks, strict=True):
            options = taken.get(group.members[0])
            if options is not None and not self.layer - 1 <= group.first_layer <= self.layer:
                mask[:] = False
                mask[options[group.first_layer >= self.layer]] = True
        return rest.to(masks)


def best_mixture(problem: Problem, found: SolveResult, layers: int) -> Mixture | None:
    """The cheapest mixture of two solutions of the tied problem, by the share of layers of each;
    None where there was only one."""
    assert found.solution is not None
    ends = [_End.of(problem, each) for each in (found.solution, *found.others)]
    return min(
        (
            Mixture(cost, before.solution, behind.solution, layer)
            for before in ends
            for behind in ends
            if before is not behind
            for layer in range(1, layers)
            for cost in [behind.mixed_cost(before, layer / layers)]
        ),
        key=lambda each: each.cost,
        default=None,
    )


@dataclass(frozen=True)
class _End:
    """A solution, what it takes where nothing overlaps, and its loads by window and channel."""

    solution: tuple[int, ...]
    cost: float
    loads: Mapping[tuple[int, int], float]

    @classmethod
    def of(cls, problem: Problem, solution: tuple[int, ...]) -> "_End":
        priced = evaluate(problem, solution)
        return cls(solution, priced.cost + priced.hidden, priced.loads)

    def mixed_cost(self, other: "_End", share: float) -> float:
        """The cost where the other has this share of all layers."""
        own, more = 1 - share, share
        keys = {*self.loads, *other.loads}
        loads = {k: own * self.loads.get(k, 0) + more * other.loads.get(k, 0) for k in keys}
        return own * self.cost + more * other.cost - hidden_amount(loads)
