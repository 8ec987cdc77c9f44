"""Kiwi's own planners, including the ones with whose plans "joint" may begin."""

from kiwi.planners.alpa import ALPA, RULE_BASED
from kiwi.planners.joint import Joint
from kiwi.planners.planner import Planner
from kiwi.planners.xla import Xla

JOINT = Joint("joint", "sharding and recomputation together")

PLANNERS: tuple[Planner, ...] = (
    JOINT,
    ALPA,
    Xla("xla", "nothing: values are sharded as XLA does by itself"),
    *RULE_BASED,
)
"""The planners of this module, in the order in which they are listed."""
