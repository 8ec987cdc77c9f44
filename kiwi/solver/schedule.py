"""The order in which a graph is executed, recomputations included."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A sequence of computations.

    `steps[k]` is the index of the node computed at step `k`. A node that occurs again is recomputed
    there. Its earlier result is dropped after its last reader before that step, and later readers
    read the new result. Joint planners and pure rematerialisation planners both return a
    `Schedule`.
    """

    steps: tuple[int, ...]

    def computations(self) -> Counter[int]:
        """Returns the number of times that each node is computed."""
        return Counter(self.steps)
