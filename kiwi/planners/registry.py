"""All planners by name: the one table that settings, errors, the command line and tests read."""

from kiwi.errors import InvalidArgumentError, UnknownPlannerError, check_known
from kiwi.planners.alpa import ALPA, RULE_BASED
from kiwi.planners.joint import Joint
from kiwi.planners.one_device import ONE_DEVICE_PLANNERS
from kiwi.planners.paper_models import PAPER_MODELS
from kiwi.planners.planner import Planner
from kiwi.planners.two_stage import TwoStage
from kiwi.planners.xla import Xla

JOINT = Joint("joint", "sharding and recomputation together", (ALPA, *RULE_BASED))

PLANNERS: dict[str, Planner] = {}
"""Every planner by name, in the order in which they are listed."""


def register(planner: Planner) -> None:
    """Adds a planner, which is then found by its name; raises `InvalidArgumentError` if there is
    one of that name."""
    if planner.name in PLANNERS:
        raise InvalidArgumentError(
            f"There is a planner {planner.name!r} already.", suggestion="Another name."
        )
    PLANNERS[planner.name] = planner


def planner_named(name: str) -> Planner:
    """The planner of a name; raises `UnknownPlannerError`, which lists all."""
    check_known(name, PLANNERS, "planner", UnknownPlannerError)
    return PLANNERS[name]


def described() -> str:
    """Every planner with what it decides, for a reader at a terminal."""
    return "; ".join(f"{p.name}: {p.description}" for p in PLANNERS.values())


for _planner in (
    JOINT,
    ALPA,
    Xla("xla", "nothing: values are sharded as XLA does by itself"),
    *RULE_BASED,
    TwoStage(
        "two-stage", "sharding for growing budgets, then recomputation by rotor (Liu et al., 2023)"
    ),
    *PAPER_MODELS,
    *ONE_DEVICE_PLANNERS,
):
    register(_planner)
