"""Known peaks of plans, so that no error names a larger peak as the smallest.

For each step, mesh and compiler, this is the least peak of a plan that this process made or
restored. Two steps are the same if their programs have the same operators and types in the same
order, and if the caller fixes the same.
"""

from collections.abc import Hashable

from kiwi.errors import InfeasibleBudgetError
from kiwi.options import Settings
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes

ANY = "joint"
"""The planner that can make any plan of the others on a mesh: the peak of any plan is one that it
may reach."""

_least_bytes: dict[Hashable, dict[str, int]] = {}
"""By step the least peak of each planner's plans."""


def note_peak(step: StepToPlan, settings: Settings, peak_bytes: int) -> None:
    """Records the peak of a plan on a device."""
    own = _least_bytes.setdefault(_key(step, settings), {})
    name = settings.planner_name
    own[name] = min(peak_bytes, own.get(name, peak_bytes))


def known_peak_bytes(step: StepToPlan, settings: Settings) -> int | None:
    """The least peak of the plans for a step that the settings' planner may make; None if there are
    none."""
    own = _least_bytes.get(_key(step, settings), {})
    name = settings.planner_name
    return min(own.values(), default=None) if name == ANY else own.get(name)


def at_most_known(
    error: InfeasibleBudgetError, step: StepToPlan, settings: Settings
) -> InfeasibleBudgetError:
    """The error, with a known plan's peak if that is smaller than the one it names."""
    known, named = known_peak_bytes(step, settings), error.least_peak_bytes
    if known is None or (named is not None and named <= known):
        return error
    return error.changed(
        what=f"{error.what} A plan made before needs {format_bytes(known)}.",
        suggestion=f"memory_budget={known}, which that plan meets.",
        least_peak_bytes=known,
    )


def _key(step: StepToPlan, settings: Settings) -> Hashable:
    program, mesh = step.program, settings.mesh
    equations = (
        (e.name, tuple((program.values[v].shape, str(program.values[v].dtype)) for v in e.outputs))
        for e in program.equations
    )
    followed = step.call.asked if settings.respect_user_shardings else None
    given = step.given_arguments(mesh), step.given_results(mesh), settings.constraints, followed
    fixed = tuple(map(str, given)), step.units.donated_arguments, settings.dropped_pins
    pinned = tuple(program.constraints) if settings.respect_user_shardings else ()
    return hash(tuple(equations)), pinned, fixed, mesh.shape, mesh.hardware.name, settings.verify
