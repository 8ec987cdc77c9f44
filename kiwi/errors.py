"""Typed errors. Each error names the failure, the offending value, the likely cause and a remedy.

Every exception that Kiwi raises on purpose derives from `KiwiError`. Any other exception is a bug
in Kiwi. An error belongs to a topic of `kiwi.messages.topics`, and shows the topic's code.
"""

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from kiwi.messages import Topic, topics


class KiwiError(Exception):
    """The base class of all errors that Kiwi raises on purpose.

    - `code`: the topic's code, such as `KIWI-M003`. The reference page of errors explains it.
    - `what`: one sentence that names the failure and the offending value.
    - `cause`: the likely reason. By default it is the topic's.
    - `suggestion`: a remedy to try next. By default it is the topic's.
    """

    default_topic: ClassVar[Topic] = topics.ARGUMENT
    """The topic of an error that is raised without one."""

    def __init__(
        self,
        what: str,
        *,
        topic: Topic | None = None,
        cause: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        self.topic = topic or self.default_topic
        self.what = what
        self.cause = self.topic.cause if cause is None else cause
        self.suggestion = self.topic.remedy if suggestion is None else suggestion
        lines = [f"{self.code}: {what}"]
        if self.cause:
            lines.append(f"Likely cause: {self.cause}")
        if self.suggestion:
            lines.append(f"Try: {self.suggestion}")
        super().__init__("\n".join(lines))

    @property
    def code(self) -> str:
        """The stable code of the topic."""
        return self.topic.code

    def changed(self, **changes: Any) -> Self:
        """A copy of the error with some arguments changed."""
        return type(self)(**{**self._arguments, **changes})

    @property
    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("__")}

    def __reduce__(self) -> tuple[Any, ...]:
        # By default Python rebuilds an exception from its text, which no argument of this class
        # accepts.
        return _rebuilt, (type(self), self._arguments)


def _rebuilt(kind: type[KiwiError], arguments: dict[str, Any]) -> KiwiError:
    return kind(**arguments)


class InvalidSizeError(KiwiError, ValueError):
    """A memory size that cannot be parsed or is not positive."""

    default_topic = topics.SIZE_UNREADABLE


class InvalidMeshError(KiwiError, ValueError):
    """A mesh whose shape, axis names or device count are invalid."""

    default_topic = topics.MESH


class NotEnoughDevicesError(KiwiError, RuntimeError):
    """The plan's mesh needs more devices than are attached."""

    default_topic = topics.NOT_ENOUGH_DEVICES


class UnknownProfileError(KiwiError, ValueError):
    """A hardware profile that is not in the catalogue."""

    default_topic = topics.PROFILE


class UnknownPlannerError(KiwiError, ValueError):
    """A planner name that does not exist."""

    default_topic = topics.PLANNER


class UnknownSolverError(KiwiError, ValueError):
    """A solver name that does not exist."""

    default_topic = topics.SOLVER


class InvalidArgumentError(KiwiError, ValueError):
    """An argument of the public interface whose value cannot be used."""

    default_topic = topics.ARGUMENT


def check_known(
    name: str, known: Iterable[str], what: str, error: type[KiwiError] = InvalidArgumentError
) -> None:
    """Checks that `name` is among the `known` names.

    - `what`: the kind of thing that has the name, for the message.
    - `error`: the type of the error that is raised if the name is unknown.
    """
    names = list(known)
    if name not in names:
        topic = topics.UNKNOWN_NAME if error is InvalidArgumentError else error.default_topic
        near = difflib.get_close_matches(name, names, 1) if isinstance(name, str) else []
        listed = ", ".join(map(repr, names))
        suggestion = f"{near[0]!r}. All are {listed}." if near else f"One of {listed}."
        raise error(f"There is no {what} {name!r}.", topic=topic, suggestion=suggestion)


class InvalidFunctionError(KiwiError, TypeError):
    """A function that cannot be planned, e.g. one without array arguments."""

    default_topic = topics.FUNCTION


class LoopNotSupportedError(KiwiError, ValueError):
    """A step with scans, whose bodies the planner cannot plan."""

    default_topic = topics.LOOPS


class ShardingConflictError(KiwiError, ValueError):
    """A sharding fixed by the caller that contradicts the mesh or the shape."""

    default_topic = topics.SHARDING


class InvalidProblemError(KiwiError, ValueError):
    """A `kiwi.solver.Problem` whose parts do not fit together."""

    default_topic = topics.PROBLEM


class InfeasibleError(KiwiError):
    """No assignment exists, or none was found, within the limits.

    - `least_peak_bytes`: the smallest peak that was found, in bytes, or None.
    - `least_peak_bound_bytes`: a proven lower bound on the peak of every assignment or schedule, or
      None.
    """

    default_topic = topics.BUDGET_TOO_SMALL

    def __init__(
        self,
        what: str,
        *,
        least_peak_bytes: int | None = None,
        least_peak_bound_bytes: int | None = None,
        **why: Any,
    ) -> None:
        self.least_peak_bytes = least_peak_bytes
        self.least_peak_bound_bytes = least_peak_bound_bytes
        super().__init__(what, **why)


class InfeasibleBudgetError(InfeasibleError):
    """A memory budget that no plan is predicted to meet, or that no plan was found for."""


class BudgetNotMetError(InfeasibleBudgetError):
    """A memory budget that no compiled program met; without a compile check, no estimate.

    - `plan`: the nearest plan, with its compiled program if there is one. Its peak is at most
      `least_peak_bytes`.
    """

    default_topic = topics.BUDGET_NOT_MET

    def __init__(self, what: str, *, plan: Any, **why: Any) -> None:
        self.plan = plan
        super().__init__(what, **why)


class NoPlanFoundError(KiwiError, TimeoutError):
    """The time limit passed before any plan was found."""

    default_topic = topics.NO_PLAN_IN_TIME


class SolverUnavailableError(KiwiError, RuntimeError):
    """A solver that is not installed, or whose licence does not allow the model."""

    default_topic = topics.SOLVER_FAILED


class CompileCheckError(KiwiError, RuntimeError):
    """The compile check (`verify=`) could not be carried out."""

    default_topic = topics.CHECK


class CompilerUnavailableError(CompileCheckError):
    """The compiler of a target of `verify` is missing, too old, or does not match JAX's version."""

    default_topic = topics.COMPILER


class MachineLimitError(KiwiError, RuntimeError):
    """The operating system refuses files, processes or memory that planning needs."""

    default_topic = topics.MACHINE_LIMIT


class PlanFileError(KiwiError, ValueError):
    """A plan file that cannot be read: missing, truncated, altered, foreign or too new."""

    default_topic = topics.PLAN_FILE


class PlanMismatchError(KiwiError, ValueError):
    """A saved plan is for another function or other arguments, or processes have different plans.
    It is also raised if the plan's choices are no longer offered.

    - `differences`: the first few differences, one sentence each.
    """

    default_topic = topics.OTHER_STEP

    def __init__(self, what: str, *, differences: tuple[str, ...] = (), **why: Any) -> None:
        self.differences = differences
        super().__init__(what, **why)


class ClusterError(KiwiError):
    """The connections of a cluster are unknown, or contradict a file or a measurement."""

    default_topic = topics.CLUSTER


class ProfileFileError(KiwiError, ValueError):
    """A file of measurements that cannot be read, or that contains figures that cannot be
    measured."""

    default_topic = topics.PROFILE_FILE
