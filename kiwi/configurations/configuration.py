"""One configuration of a training step, and the figures found for it."""

import enum
from dataclasses import asdict, dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """The goal of one planning.

    - `profile`: the name of the devices' profile. `mesh_shape`: the shape of the mesh.
    - `batch_size`: samples of one step on all devices together. `microbatches`: the number of parts
      that they are cut into. `stages`: the number of pipeline stages. Each is None if the step does
      not take it.
    """

    profile: str
    mesh_shape: tuple[int, ...]
    batch_size: int | None = None
    microbatches: int | None = None
    stages: int | None = None

    @property
    def device_count(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh_shape)

    @property
    def samples(self) -> int:
        """Samples of a step. A step without a batch size counts as one sample."""
        return 1 if self.batch_size is None else self.batch_size

    @property
    def choice(self) -> dict[str, Any]:
        """The choices, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh_shape))
        rest = (("batch", self.batch_size), ("microbatches", self.microbatches))
        named = [*rest, ("stages", self.stages)]
        varied = [f"{name} {value}" for name, value in named if value is not None]
        return ", ".join([f"{self.profile} {mesh}", *varied])


class Stage(enum.Enum):
    """The stages of a configuration, in order."""

    BOUND = "bound"
    """No plan is expected to be faster than this."""
    PLAN = "plan"
    """A plan by its estimate."""
    CHECK = "check"
    """A plan whose compiled program fits."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one stage.

    - `step_seconds`: the bound, or the plan's estimate; None without a plan.
    - `peak_bytes`, `compiled_peak_bytes`, `gap`: the plan's.
    - `error`: why there is no plan. `is_proven`: whether no plan can fit the budget.
    - `seconds`: the time that the stage took.
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
    """It is the best for its number of devices. If the search compiles, its program fits."""
    PLANNED = "planned"
    """Its plan is slower, by its estimate."""
    LEFT_OUT = "left out"
    """By its bound, no plan of it is better than the best one."""
    REFUSED = "refused"
    """It has no plan."""


@dataclass(frozen=True)
class Row:
    """One configuration with its figures.

    - `bound_seconds`: no plan of the configuration is expected to be faster
      (`kiwi.planners.planning`).
    - `step_seconds`, `peak_bytes`: the plan's estimate. `compiled_peak_bytes`: the peak of its
      program, if it was compiled. `gap`: how far the plan may be from the best one. All are None
      without a plan.
    - `score`: the minimised figure, per sample; the bound's without a plan.
    - `why`: why it was left out or refused.
    - `seconds`: the time spent on it, over all processes.
    - `plan_file`: its plan in the folder of a search that can be resumed.
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
        """Throughput by the estimate; None without a plan."""
        seconds = self.step_seconds
        return None if seconds is None else self.configuration.samples / seconds
