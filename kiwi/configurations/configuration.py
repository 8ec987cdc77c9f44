"""One configuration of a training step, and the figures that a search finds for it."""

import enum
from dataclasses import asdict, dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """The devices and the step of one plan.

    - `profile`: the name of the devices' profile.
    - `mesh_shape`: the shape of the mesh.
    - `batch_size`: the samples of one step on all devices together.
    - `microbatches`: the number of parts that the batch is cut into.
    - `stages`: the number of pipeline stages.

    `batch_size`, `microbatches` and `stages` are None if the step does not take them.
    """

    profile: str
    mesh_shape: tuple[int, ...]
    batch_size: int | None = None
    microbatches: int | None = None
    stages: int | None = None

    @property
    def device_count(self) -> int:
        """The number of devices of the mesh."""
        return prod(self.mesh_shape)

    @property
    def samples(self) -> int:
        """The samples of a step. A step without a batch size counts as one sample."""
        return 1 if self.batch_size is None else self.batch_size

    @property
    def choice(self) -> dict[str, Any]:
        """The configuration's fields that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh_shape))
        sizes = (("batch", self.batch_size), ("microbatches", self.microbatches))
        named = [*sizes, ("stages", self.stages)]
        varied = [f"{name} {value}" for name, value in named if value is not None]
        return ", ".join([f"{self.profile} {mesh}", *varied])


class Stage(enum.Enum):
    """The stages that a configuration passes in a search, in order."""

    BOUND = "bound"
    """It has a step time below which no plan is expected."""
    PLAN = "plan"
    """It has a plan that fits by its estimate."""
    CHECK = "check"
    """It has a plan whose compiled program fits."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one stage.

    - `seconds`: the time that the stage took.
    - `step_seconds`: the bound, or the step time of the plan's estimate; None without a plan.
    - `peak_bytes`, `compiled_peak_bytes`, `gap`: the plan's figures.
    - `error`: why there is no plan; "" if there is one.
    - `is_proven`: whether it is proven that no plan fits the budget.
    """

    stage: Stage
    seconds: float
    step_seconds: float | None = None
    peak_bytes: int | None = None
    compiled_peak_bytes: int | None = None
    gap: float | None = None
    error: str = ""
    is_proven: bool = False


class State(enum.Enum):
    """The final state of a configuration."""

    BEST = "best"
    """It is the best for its profile and number of devices. If the search compiles, its program
    fits."""
    PLANNED = "planned"
    """It has a plan that is worse by its estimate."""
    LEFT_OUT = "left out"
    """It was not planned: by its bound, its plan would not be better than the best plan."""
    REFUSED = "refused"
    """It has no plan."""


@dataclass(frozen=True)
class Row:
    """One configuration with its figures.

    - `seconds`: the time spent on the configuration, over all processes.
    - `bound_seconds`: the step time below which no plan of the configuration is expected
      (`kiwi.planners.planning`).
    - `step_seconds`, `peak_bytes`: the figures of the plan's estimate; None without a plan.
    - `compiled_peak_bytes`: the peak of the plan's program, if it was compiled.
    - `gap`: the largest relative distance between the plan and the best plan; None without a plan.
    - `score`: the figure that the search minimises, computed from the plan; without a plan, from
      the bound.
    - `why`: why the configuration was left out or refused.
    - `plan_file`: the name of its plan file in the folder of a search that can be resumed.
    """

    configuration: Configuration
    state: State
    seconds: float
    bound_seconds: float | None = None
    step_seconds: float | None = None
    peak_bytes: int | None = None
    compiled_peak_bytes: int | None = None
    gap: float | None = None
    score: float | None = None
    why: str = ""
    plan_file: str | None = None

    @property
    def samples_per_second(self) -> float | None:
        """The throughput by the plan's estimate; None without a plan."""
        seconds = self.step_seconds
        return None if seconds is None else self.configuration.samples / seconds
