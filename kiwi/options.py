"""What a plan is made for."""

from dataclasses import dataclass, field

from kiwi.calls.constraints import Constraints
from kiwi.mesh import DeviceMesh
from kiwi.solver.outcome import OnProgress


@dataclass(frozen=True, eq=False)
class Settings:
    """What a plan is made for.

    - `verify`: one of `kiwi.xla.compilers.TARGETS` to compile each plan for, None does not.
    - `gap`: the solver may stop once this close to its bound, relatively.
    - `respect_user_checkpoint`: keeps the recomputation that `jax.checkpoint` in the function
      asks for, instead of planning it anew.
    - `on_progress`: called by the solver whenever solution or bound improve.
    - `constraints`: what the caller pins of arguments; `dropped_pins`: labels of pins, of these
      and of hints, that are not heeded.
    """

    mesh: DeviceMesh
    memory_budget_bytes: int
    planner: str
    time_limit_seconds: float
    verify: str | None
    solver: str
    seed: int
    gap: float
    respect_user_checkpoint: bool
    on_progress: OnProgress | None = None
    constraints: Constraints = field(default_factory=Constraints)
    dropped_pins: frozenset[str] = frozenset()
