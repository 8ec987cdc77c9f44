"""Typed errors. Each says what went wrong, with which value, why, and what to try next.

Every exception that Kiwi raises on purpose derives from `KiwiError`; anything else that
escapes is a bug in Kiwi.
"""

from collections.abc import Iterable
from typing import Any, Self


class KiwiError(Exception):
    """Base of all errors raised on purpose.

    - `what`: one sentence that names the failure and the offending value.
    - `cause`: the likely reason, or an empty string.
    - `suggestion`: what to try next, or an empty string.
    """

    def __init__(self, what: str, *, cause: str = "", suggestion: str = "") -> None:
        self.what = what
        self.cause = cause
        self.suggestion = suggestion
        lines = [what]
        if cause:
            lines.append(f"Likely cause: {cause}")
        if suggestion:
            lines.append(f"Try: {suggestion}")
        super().__init__("\n".join(lines))

    def changed(self, **changes: Any) -> Self:
        """The same error, of which some arguments are others."""
        return type(self)(**{**vars(self), **changes})


class InvalidSizeError(KiwiError, ValueError):
    """A memory size that cannot be parsed or is not positive."""


class InvalidMeshError(KiwiError, ValueError):
    """A mesh whose shape, axis names or device count make no sense."""


class NotEnoughDevicesError(KiwiError, RuntimeError):
    """The plan's mesh needs more devices than are attached."""


class UnknownProfileError(KiwiError, ValueError):
    """A hardware profile that is not in the catalogue."""


class UnknownPlannerError(KiwiError, ValueError):
    """A planner name that does not exist."""


class UnknownSolverError(KiwiError, ValueError):
    """A solver name that does not exist."""


class InvalidArgumentError(KiwiError, ValueError):
    """An argument of the public interface whose value cannot be used."""


def check_known(
    name: str, known: Iterable[str], what: str, error: type[KiwiError] = InvalidArgumentError
) -> None:
    """Raises `error` unless a name is among those that are known."""
    names = list(known)
    if name not in names:
        listed = ", ".join(map(repr, names))
        raise error(f"There is no {what} {name!r}.", suggestion=f"One of {listed}.")


class InvalidFunctionError(KiwiError, TypeError):
    """A function that cannot be planned, e.g. one without array arguments."""


class LoopNotSupportedError(KiwiError, ValueError):
    """A step with scans, whose bodies the planner cannot plan."""


class ShardingConflictError(KiwiError, ValueError):
    """A sharding fixed by the caller that contradicts the mesh or the shape."""


class InvalidProblemError(KiwiError, ValueError):
    """A `kiwi.solver.Problem` whose parts do not fit together."""


class InfeasibleError(KiwiError):
    """No assignment exists within the limits.

    - `least_peak_bytes`: the smallest peak that was found, in bytes, or None.
    - `least_peak_bound_bytes`: proven: no assignment or schedule peaks lower; or None.
    """

    def __init__(
        self,
        what: str,
        *,
        least_peak_bytes: int | None = None,
        least_peak_bound_bytes: int | None = None,
        **why: str,
    ) -> None:
        self.least_peak_bytes = least_peak_bytes
        self.least_peak_bound_bytes = least_peak_bound_bytes
        super().__init__(what, **why)


class InfeasibleBudgetError(InfeasibleError):
    """A memory budget below what any plan is predicted to need, or any plan that was found."""


class BudgetNotMetError(InfeasibleBudgetError):
    """A memory budget that no plan met in the program that the compiler made of it.

    Without a compile check, one that no plan met by its own estimate.

    - `plan`: the plan that came nearest, with its compiled program if there is one; it meets
      `least_peak_bytes`.
    """

    def __init__(self, what: str, *, plan: Any, **why: Any) -> None:
        self.plan = plan
        super().__init__(what, **why)


class NoPlanFoundError(KiwiError, TimeoutError):
    """The time limit passed before any plan was found."""


class SolverUnavailableError(KiwiError, RuntimeError):
    """A solver that is not installed, or whose licence does not fit the model."""


class CompileCheckError(KiwiError, RuntimeError):
    """The compile check (`verify=`) could not be carried out."""


class CompilerUnavailableError(CompileCheckError):
    """The compiler of a target of `verify` is missing, too old, or of another version than jax."""


class PlanFileError(KiwiError, ValueError):
    """A plan file that cannot be read: missing, truncated, altered, foreign or too new."""


class PlanMismatchError(KiwiError, ValueError):
    """A saved plan for another function or other arguments; processes with different plans.

    - `differences`: one sentence each, the first few.
    """

    def __init__(self, what: str, *, differences: tuple[str, ...] = (), **why: str) -> None:
        self.differences = differences
        super().__init__(what, **why)


class ClusterError(KiwiError):
    """A cluster's connections are not known, or not as a file or measurement says."""


class ProfileFileError(KiwiError, ValueError):
    """A file of measurements that cannot be read, or has figures that no measurement gives."""
