"""Random choices, recorded so that a drawn model can be read.

A choice takes one number of the generator, whatever the number of its options. Lists of options may
therefore be exchanged (full sizes for tiny ones) without changing the other choices of a model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

_Option = TypeVar("_Option")


class Drawing:
    """A seeded source of choices. Each choice is recorded under its name, with the names around
    it."""

    def __init__(self, seed: int, index: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64([seed, index]))
        self._choices: dict[str, Any] = {}
        self._prefix = ""

    @property
    def choices(self) -> Mapping[str, Any]:
        """All choices so far, in order."""
        return dict(self._choices)

    def inside(self, name: str) -> "Drawing":
        """Returns the same source, which records its choices under `name/`."""
        inner = object.__new__(Drawing)
        inner._generator, inner._choices = self._generator, self._choices
        inner._prefix = f"{self._prefix}{name}/"
        return inner

    def one_of(
        self, name: str, options: Sequence[_Option], weights: Sequence[float] | None = None
    ) -> _Option:
        """Returns one of the options, drawn with equal weights or with the given ones."""
        number = self._generator.random()
        if weights is None:
            weights = [1.0] * len(options)
        reached = np.cumsum(weights) / sum(weights)
        chosen = options[min(int(np.searchsorted(reached, number, "right")), len(options) - 1)]
        return self._recorded(name, chosen)

    def chance(self, name: str, probability: float) -> bool:
        """Returns True with this probability."""
        return self._recorded(name, bool(self._generator.random() < probability))

    def log_uniform(self, name: str, low: float, high: float) -> float:
        """Returns a number between `low` and `high` whose logarithm is uniformly distributed."""
        drawn = self._generator.random()
        return self._recorded(name, float(low * (high / low) ** drawn))

    def _recorded(self, name: str, chosen: Any) -> Any:
        self._choices[f"{self._prefix}{name}"] = chosen
        return chosen
