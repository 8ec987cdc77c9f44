"""What a MILP solver says about a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ortools.math_opt.python import mathopt

Hint = Mapping[mathopt.Variable, float] | None
"""Values of variables to begin with."""


@dataclass(frozen=True, eq=False)
class MilpAnswer:
    """The values of all variables (None: nothing found), the proven bound in the model's units
    (+inf: infeasible, -inf: none), whether the clock ended the search, and how many nodes of the
    search tree were visited, where the solver says so."""

    values: Mapping[mathopt.Variable, float] | None
    bound: float
    timed_out: bool
    nodes: int = 0

    @property
    def infeasible(self) -> bool:
        """Whether the model is proven to have no solution."""
        return self.bound == math.inf
