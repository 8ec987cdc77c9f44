"""One configuration of a training step, and what is known of it."""

import enum
from dataclasses import asdict, dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """What a step is planned for.

    - `profile`: the name of the devices' profile; `mesh_shape`: of the mesh.
    - `batch_size`: samples of one step on all devices together; `microbatches`: into how many
      parts they are cut; `stages`: of the pipeline. None where the step does not ask for it.
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
        """Samples of a step; a step that has no batch size is one."""
        return 1 if self.batch_size is None else self.batch_size

    @property
    def choice(self) -> dict[str, Any]:
        """What was chosen, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh_shape))
        rest = (("batch", self.batch_size), ("microbatches", self.microbatches))
        named = [*rest, ("stages", self.stages)]
        found = [f"{name} {value}" for name, value in named if value is not None]
        return ", ".join([f"{self.profile} {mesh}", *found])


class Stage(enum.Enum):
    """What is found out about a configuration, one after the other."""

    BOUND = "bound"
    """No plan is expected to be faster than this."""
    PLAN = "plan"
    """A plan by its estimate."""
    CHECK = "check"
    """A plan whose compiled program fits."""


@dataclass(frozen=True)
class Outcome:
    """What one stage found.

    - `step_seconds`: the bound, or the plan's estimate; None where there is no plan.
    - `peak_bytes`, `compiled_peak_bytes`, `gap`: of the plan.
    - `error`: why there is no plan; `is_proven`: no plan can fit the budget.
    - `seconds`: that it took.
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
    """What became of a configuration."""

    BEST = "best"
    """The best of as many devices; its compiled program fits, where the search compiles."""
    PLANNED = "planned"
    """Its plan is slower, by its estimate."""
    LEFT_OUT = "left out"
    """No plan of it is better than the best one, by its bound."""
    REFUSED = "refused"
    """It has no plan."""


@dataclass(frozen=True)
class Row:
    """One configuration with its figures.

    - `bound_seconds`: no plan of the configuration is expected to be faster
      (`kiwi.planners.planning`).
    - `step_seconds`, `peak_bytes`: the plan's estimate; `compiled_peak_bytes`: where it was
      compiled; `gap`: how far the plan may be from the best one; all None without a plan.
    - `score`: what is minimised, per sample; of the bound where there is no plan.
    - `why`: it was left out or refused.
    - `seconds`: that it took, over all processes.
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
