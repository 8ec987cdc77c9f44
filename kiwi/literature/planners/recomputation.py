"""The planners of recomputation on one device, each with the parameters of its paper.

Each planner finds a schedule of the units of a step (`kiwi.literature.planners.one_device`).
"""

import functools
from dataclasses import dataclass, replace

from kiwi.literature.planners.one_device import OneDevicePlanner
from kiwi.literature.remat.checkmate import RANDOM_THRESHOLDS, checkmate_lp
from kiwi.literature.remat.hiremate.levels import hiremate
from kiwi.literature.remat.hiremate.part_solver import HiremateSettings
from kiwi.literature.remat.neighbourhood import MOST_COPIES, moccasin
from kiwi.literature.remat.rockmate import (
    LARGEST_BLOCK,
    PEAK_BUDGETS,
    SAVE_BUDGETS,
    BlockBudgets,
    rockmate,
)
from kiwi.literature.remat.rotor import MOST_UNITS, rotor
from kiwi.literature.remat.solve import PLANNERS, Find, Method


def _with_parameters(name: str, find: Find) -> Method:
    return replace(PLANNERS[name], find=find)


@dataclass(frozen=True)
class Checkmate(OneDevicePlanner):
    """Checkmate: the best schedule by stages in the given order, an integer program.

    Jain et al., MLSys 2020, problem 9; here all outputs of an operator are kept together.
    """

    name: str = "checkmate"
    description: str = "on one device: the best schedule by stages, an integer program"

    def method(self) -> Method:
        """Returns the method that solves the integer program with HiGHS."""
        return PLANNERS["checkmate"]


@dataclass(frozen=True)
class CheckmateLp(OneDevicePlanner):
    """Checkmate's approximation: the linear relaxation, rounded in two phases.

    Jain et al., MLSys 2020, section 5 and algorithm 2.

    - `thresholds`: the number of random rounding thresholds that are tried beside 0.5.
    """

    name: str = "checkmate-lp"
    description: str = "on one device: a schedule by stages, rounded from a linear program"
    thresholds: int = RANDOM_THRESHOLDS

    def method(self) -> Method:
        """Returns the method that solves the relaxation with PDLP and rounds it."""
        return _with_parameters(
            self.name, functools.partial(checkmate_lp, thresholds=self.thresholds)
        )


@dataclass(frozen=True)
class HiRemate(OneDevicePlanner):
    """HiRemate: the graph divided recursively, each part solved by an integer program (H-ILP).

    Zhao's thesis, chapter 3.

    - `most_top`, `most_lower`: the largest number of parts of the whole graph and of a part (M^t,
      M^l).
    - `most_options`: the largest number of schedules that are kept for a part.
    """

    name: str = "hiremate"
    description: str = "on one device: an integer program over recursive groups"
    most_top: int = HiremateSettings.most_top
    most_lower: int = HiremateSettings.most_lower
    most_options: int = HiremateSettings.most_options

    def method(self) -> Method:
        """Returns the method that solves parts with HiGHS, parts of equal height in parallel."""
        settings = HiremateSettings(
            most_top=self.most_top, most_lower=self.most_lower, most_options=self.most_options
        )
        return _with_parameters(self.name, functools.partial(hiremate, settings=settings))


@dataclass(frozen=True)
class KeepAll(OneDevicePlanner):
    """The given order without recomputation, with which the other planners are compared."""

    name: str = "keep-all"
    description: str = "on one device: nothing: the given order"

    def method(self) -> Method:
        """Returns the method that takes the given order without a search."""
        return PLANNERS["keep-all"]


@dataclass(frozen=True)
class Moccasin(OneDevicePlanner):
    """Moccasin: intervals for which values are retained, by constraint programming.

    Bartan et al., ICML 2023, section 2.

    - `copies`: the largest number of computations of an operator (C_v of the paper).
    """

    name: str = "moccasin"
    description: str = "on one device: at most two computations each, by constraint programming"
    copies: int = MOST_COPIES

    def method(self) -> Method:
        """Returns the method that solves the constraint program with CP-SAT."""
        return _with_parameters(self.name, functools.partial(moccasin, copies=self.copies))


@dataclass(frozen=True)
class OrderOnly(OneDevicePlanner):
    """A topological order of small peak, without recomputation.

    Imanishi et al., NeurIPS 2023, appendix B.2.
    """

    name: str = "order-only"
    description: str = "on one device: the order alone"

    def method(self) -> Method:
        """Returns the method that finds an order by annealing."""
        return PLANNERS["order-only"]


@dataclass(frozen=True)
class Remat(OneDevicePlanner):
    """Kiwi's own search: annealing with reordering, then large neighbourhoods by CP-SAT.

    See `kiwi.literature.remat.best`.
    """

    name: str = "remat"
    description: str = "on one device: schedules by many annealing runs and reordering"

    def method(self) -> Method:
        """Returns Kiwi's own search, which continues from its last schedule when asked for another
        budget."""
        return PLANNERS["remat"]


@dataclass(frozen=True)
class RkCheckmate(OneDevicePlanner):
    """rk-checkmate: Checkmate's program in which each value is kept or dropped separately.

    Zhao's thesis, section 2.4.
    """

    name: str = "rk-checkmate"
    description: str = "on one device: the best schedule by stages of kept inputs and results"

    def method(self) -> Method:
        """Returns the method that solves the integer program with HiGHS."""
        return PLANNERS["rk-checkmate"]


@dataclass(frozen=True)
class Rockmate(OneDevicePlanner):
    """Rockmate: rk-checkmate within blocks, rk-rotor over them.

    Zhao's thesis, section 2.6.

    - `peak_budgets`, `save_budgets`: the numbers of budgets of each kind. Each block is solved for
      all pairs of them.
    - `largest_block`: the largest number of operators of a block that is solved. A larger block
      saves everything.
    """

    name: str = "rockmate"
    description: str = "on one device: rk-checkmate within blocks, rotor over them"
    peak_budgets: int = PEAK_BUDGETS
    save_budgets: int = SAVE_BUDGETS
    largest_block: int = LARGEST_BLOCK

    def method(self) -> Method:
        """Returns the method that solves blocks with HiGHS and the chain by dynamic programming."""
        budgets = BlockBudgets(self.peak_budgets, self.save_budgets, self.largest_block)
        return _with_parameters(self.name, functools.partial(rockmate, budgets=budgets))


@dataclass(frozen=True)
class Rotor(OneDevicePlanner):
    """Rotor: the best persistent schedule of a chain, by dynamic programming.

    Beaumont et al. 2019; Zhao's thesis, equations 2.1 and 2.2.

    - `slots`: the number of memory units into which the budget is divided. Used memory is rounded
      up.
    """

    name: str = "rotor"
    description: str = "on one device: the best persistent schedule of a chain"
    slots: int = MOST_UNITS

    def method(self) -> Method:
        """Returns the method: a dynamic program, which the time limit does not interrupt."""
        return _with_parameters(self.name, functools.partial(rotor, most_units=self.slots))
