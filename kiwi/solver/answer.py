"""What a MILP solver says about a model."""

from collections.abc import Mapping
from dataclasses import dataclass

from ortools.math_opt.python import mathopt


@dataclass(frozen=True, eq=False)
class MilpAnswer:
    """The values of all variables (None: nothing found), the proven bound in the model's units
    (+inf: infeasible, -inf: none), and whether the clock ended the search."""

    values: Mapping[mathopt.Variable, float] | None
    bound: float
    timed_out: bool
