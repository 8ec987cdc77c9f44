"""Kiwi's own planners, and those whose plans "joint" may begin with."""

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
