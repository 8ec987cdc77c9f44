"""`PlannerFacts`: the facts about its planner that a campaign reads."""

from typing import ClassVar, Protocol


class PlannerFacts(Protocol):
    """The facts of a planner (`kiwi.planners.planner.Planner`) that attempts and notes read.

    - `name`: its name in the registry.
    - `recomputes`: whether its problem offers recomputation.
    - `heeds_hints`: whether it heeds hints and constraints of shardings.
    """

    recomputes: ClassVar[bool]
    heeds_hints: ClassVar[bool]

    @property
    def name(self) -> str:
        """The planner's name."""
        ...
