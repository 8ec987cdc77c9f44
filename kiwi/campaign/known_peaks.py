"""The least known peaks of plans, so that no error names a larger peak as the smallest.

For each step, mesh and compiler, this module holds the least peak of the plans that this process
made or restored. Two steps are the same if their programs have the same operators with the same
result types in the same order, and if the caller fixes the same shardings and donations.
"""

from collections.abc import Hashable

from kiwi.errors import InfeasibleBudgetError
from kiwi.options import Settings
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes

ANY = "joint"
"""The planner whose plans include the plans of all other planners. It can reach the least peak of
any planner's plan."""

_least_bytes: dict[Hashable, dict[str, int]] = {}
"""The least peak of each planner's plans in bytes, by step (`_key`) and by the planner's name."""


def note_peak(step: StepToPlan, settings: Settings, peak_bytes: int) -> None:
    """Records the peak of a plan of the settings' planner, in bytes on one device."""
    by_planner = _least_bytes.setdefault(_key(step, settings), {})
    name = settings.planner_name
    by_planner[name] = min(peak_bytes, by_planner.get(name, peak_bytes))


def known_peak_bytes(step: StepToPlan, settings: Settings) -> int | None:
    """Returns the least known peak in bytes that the settings' planner can reach for a step; None
    if no such plan is known."""
    by_planner = _least_bytes.get(_key(step, settings), {})
    name = settings.planner_name
    return min(by_planner.values(), default=None) if name == ANY else by_planner.get(name)


def at_most_known(
    error: InfeasibleBudgetError, step: StepToPlan, settings: Settings
) -> InfeasibleBudgetError:
    """Returns the error; if a known plan's peak is smaller than the least peak that the error
    names, the returned error names the known peak."""
    known_bytes, named_bytes = known_peak_bytes(step, settings), error.least_peak_bytes
    if known_bytes is None or (named_bytes is not None and named_bytes <= known_bytes):
        return error
    return error.changed(
        what=f"{error.what} A plan made before needs {format_bytes(known_bytes)}.",
        suggestion=f"memory_budget={known_bytes}, which that plan meets.",
        least_peak_bytes=known_bytes,
    )


def _key(step: StepToPlan, settings: Settings) -> Hashable:
    """Returns a key that is equal for the same step, mesh and compiler."""
    program, mesh = step.program, settings.mesh
    equations = (
        (
            equation.name,
            tuple(
                (program.values[value].shape, str(program.values[value].dtype))
                for value in equation.outputs
            ),
        )
        for equation in program.equations
    )
    followed = step.call.asked if settings.respect_user_shardings else None
    given = step.given_arguments(mesh), step.given_results(mesh), settings.constraints, followed
    fixed = tuple(map(str, given)), step.units.donated_arguments, settings.dropped_pins
    pinned = tuple(program.constraints) if settings.respect_user_shardings else ()
    return hash(tuple(equations)), pinned, fixed, mesh.shape, mesh.hardware.name, settings.verify
