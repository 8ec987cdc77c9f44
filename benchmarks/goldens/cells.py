"""The recorded cells: models for targets under budgets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.goldens.models import MODELS

BUDGETS = ("free", "loose", "tight")


@dataclass(frozen=True)
class Target:
    """The devices that plans are made for, and what is recorded of them.

    - `profile`: a name of the catalogue.
    - `platform`: the platform's name in jax, for lowering.
    - `verify`: the compiler that checks plans; None if plans are not compiled.
    - `budgets`: the recorded budgets by model.
    - `takes_minutes`: whether a check leaves the target out unless it is named.
    """

    profile: str
    platform: str
    verify: str | None
    budgets: Mapping[str, tuple[str, ...]]
    takes_minutes: bool = False


_ALL = dict.fromkeys(MODELS, BUDGETS)
_CHECKED = {"mlp": ("free",), "lstm": ("free",)}
"""Small steps, because compiling takes longer than planning. The scan of "lstm" is compiled as a
loop."""
_TIGHTENED = {"mlp": ("loose",)}
"""A step whose first compiled program is over the budget. The closed loop then moves barriers and
lowers limits: once on a CPU, up to ten times on other devices."""

TARGETS: Mapping[str, Target] = {
    "cpu": Target("cpu", "cpu", None, _ALL),
    "h100-sxm": Target("h100-sxm", "cuda", None, _ALL),
    "v5e": Target("v5e", "tpu", None, _ALL),
    "cpu-checked": Target("cpu", "cpu", "cpu", _CHECKED | _TIGHTENED),
    "h100-sxm-checked": Target("h100-sxm", "cuda", "cuda", _CHECKED),
    "v5e-checked": Target("v5e", "tpu", "tpu", _CHECKED),
    "h100-sxm-tightened": Target("h100-sxm", "cuda", "cuda", _TIGHTENED, takes_minutes=True),
    "v5e-tightened": Target("v5e", "tpu", "tpu", _TIGHTENED, takes_minutes=True),
}


@dataclass(frozen=True)
class Series:
    """The cells of one model for one target. They are planned one after another, and recorded in
    one file."""

    model: str
    target: str

    @property
    def name(self) -> str:
        """The name of the series' file, without its ending."""
        return f"{self.model}.{self.target}"

    @property
    def budgets(self) -> tuple[str, ...]:
        """The names of the recorded budgets."""
        return TARGETS[self.target].budgets[self.model]


def all_series() -> Iterator[Series]:
    """Yields all recorded series."""
    for target, planned in TARGETS.items():
        for model in planned.budgets:
            yield Series(model, target)
