"""The planners of the literature, which `kiwi.plan(planner=name)` finds by their names.

A planner is a frozen dataclass with the parameters of its paper. An object can be given in place of
a name: `kiwi.plan(step, planner=Rotor(slots=200))`.
"""

from kiwi.literature.planners.offloading import FastSA, OffMate, Poet, Pofo
from kiwi.literature.planners.paper_models import PAPER_MODELS
from kiwi.literature.planners.recomputation import (
    Checkmate,
    CheckmateLp,
    HiRemate,
    KeepAll,
    Moccasin,
    OrderOnly,
    Remat,
    RkCheckmate,
    Rockmate,
    Rotor,
)
from kiwi.literature.planners.two_pass import TWO_PASS
from kiwi.literature.planners.two_stage import TWO_STAGE
from kiwi.planners.planner import Planner

PLANNERS: tuple[Planner, ...] = (
    TWO_PASS,
    TWO_STAGE,
    *PAPER_MODELS,
    Checkmate(),
    CheckmateLp(),
    FastSA(),
    HiRemate(),
    KeepAll(),
    Moccasin(),
    OffMate(),
    OrderOnly(),
    Poet(),
    Pofo(),
    Remat(),
    RkCheckmate(),
    Rockmate(),
    Rotor(),
)
"""The planners of the literature, in the order in which Kiwi lists them."""
