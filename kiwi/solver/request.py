"""The arguments of `solve`, checked once for every backend."""

import time
from dataclasses import dataclass, field, replace

from kiwi.errors import InvalidArgumentError
from kiwi.messages import topics
from kiwi.solver.parameters import DEFAULT, Parameters
from kiwi.solver.problem import Problem
from kiwi.solver.result import Balances, OnProgress

MILP_SHARE = 0.5
"""The share of the remaining time and work that one MILP may take. HiGHS ends after that share of
the time; a MILP that needs a larger share of the work is not begun."""


@dataclass(frozen=True)
class Request:
    """The checked arguments of `kiwi.solver.solve`, which explains them, and the limits of a part
    of the search.

    - `work_limit`: the number of options and table cells that may be visited; None for no limit.
    - `started`: the reading of `time.monotonic` at which `time_limit_seconds` begins.
    - `tree_nodes`: the number of nodes of its search tree that a MILP may visit; None for no limit.
    - `balances`: the balances with which the search of a problem with loads begins. They may be
      another problem's with the same windows.

    **Raises:** `InvalidArgumentError` if a limit or the gap is out of range, or if the warm start
    does not have one entry per node.
    """

    problem: Problem
    solver: str = "auto"
    time_limit_seconds: float = 60.0
    seed: int = 0
    gap: float = 0.0
    warm_start: tuple[int, ...] | None = None
    on_progress: OnProgress | None = None
    until_time_limit: bool = False
    any_time: bool = False
    round_limit: int | None = None
    started: float = field(default_factory=time.monotonic)
    tree_nodes: int | None = None
    parameters: Parameters = DEFAULT
    work_limit: int | None = None
    balances: Balances | None = None

    def __post_init__(self) -> None:
        for name, fits, wanted in (
            ("round_limit", lambda n: n is None or n >= 1, "1 or more, or None for no limit"),
            ("work_limit", lambda n: n is None or n >= 0, "0 or more, or None for no limit"),
            ("time_limit_seconds", lambda n: n > 0, "a positive number"),
            ("gap", lambda n: n >= 0, "0, or a small fraction such as 0.01"),
        ):
            value = getattr(self, name)
            if not fits(value):
                raise InvalidArgumentError(
                    f"{name} is {value}.", topic=topics.OUT_OF_RANGE, suggestion=f"Give {wanted}."
                )
        count = len(self.problem.nodes)
        if self.warm_start is not None and len(self.warm_start) != count:
            raise InvalidArgumentError(
                f"warm_start has {len(self.warm_start)} entries for {count} nodes.",
                topic=topics.WARM_START,
            )

    @property
    def deadline(self) -> float:
        """The end of the time limit, a reading of `time.monotonic`."""
        return self.started + self.time_limit_seconds

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def handed_to_highs(self, tree_nodes: int | None) -> "Request":
        """Returns the request to HiGHS, with `MILP_SHARE` of the remaining time."""
        return replace(
            self,
            solver="highs",
            tree_nodes=tree_nodes,
            time_limit_seconds=max(MILP_SHARE * self.seconds_left, 1e-9),
            started=time.monotonic(),
        )
