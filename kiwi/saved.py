"""Plans in files: `kiwi.load_plan(path)` and its result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiwi.api import PlannedFunction
from kiwi.calls.host_memory import OnHost
from kiwi.calls.signature import Call
from kiwi.campaign.known_peaks import note_peak
from kiwi.errors import InvalidArgumentError, PlanMismatchError
from kiwi.hlo import jax_internals
from kiwi.hlo.trips import DEFAULT_TRIPS
from kiwi.messages import topics
from kiwi.options import Options
from kiwi.planners.planner import Planner
from kiwi.planners.registry import planner_named
from kiwi.plans.breakdown import Decision
from kiwi.plans.cross_check import CrossCheck
from kiwi.plans.diff import PlanDifference
from kiwi.plans.diff import diff as compare
from kiwi.plans.document import Document, document
from kiwi.plans.estimate import Estimate
from kiwi.plans.file import malformed, read
from kiwi.plans.history import Trial
from kiwi.plans.plan import Plan
from kiwi.plans.record import KnownFigures
from kiwi.plans.restore import (
    check_arguments,
    compiled_of,
    cross_check_of,
    decisions_of,
    estimate_of,
    history_of,
    mesh_of,
    on_host_of,
    restore,
)
from kiwi.xla.read.compiled_program import CompiledProgram


class SavedPlan(KnownFigures):
    """A plan read from a file: its decisions, without the function that the plan is for.

    - `document`: the whole content of the file (`kiwi.plans.document`).
    - `name`: the name of the file in errors.
    - `mesh`, `estimate`, `compiled`, `cross_check`, `decisions`, `history`, `memory_budget_bytes`:
      as in `kiwi.Plan`.

    **Raises:** `PlanFileError` if a part of the document is not valid.
    """

    def __init__(self, content: Document, name: str = "plan") -> None:
        self.document = content
        self.name = name
        try:
            self.mesh = mesh_of(content)
            self.estimate: Estimate = estimate_of(content)
            self.compiled: CompiledProgram | None = compiled_of(content)
            self.cross_check: CrossCheck | None = cross_check_of(content)
            self.decisions: tuple[Decision, ...] = decisions_of(content)
            self.history: tuple[Trial, ...] = history_of(content)
            self.memory_budget_bytes: int = content["options"]["memory_budget_bytes"]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise malformed(error, name) from error

    @property
    def fits(self) -> bool:
        """Whether the peak is within the memory budget of a device. Host memory is not compared."""
        return self.peak_bytes <= self.memory_budget_bytes

    def apply(self, fun: Callable[..., Any], *, strict: bool = True) -> "AppliedPlan":
        """Returns `fun` under this plan. The result is called like `fun`, as the result of
        `kiwi.jit` is.

        Nothing is solved. On the first call, or on `.plan(*args)`, the function is traced and
        compared with the function that the plan was made for.

        - `strict`: False accepts other values of literals and captured constants.

        **Raises:** on the first call, `PlanMismatchError` with the differences.
        """
        function = fun.function if isinstance(fun, PlannedFunction) else fun
        return AppliedPlan(function, self, strict=strict)

    def __repr__(self) -> str:
        return (
            f"<kiwi.SavedPlan of {self.document['function']['name']} mesh={self.mesh.shape} "
            f"budget={self.memory_budget_bytes} peak={self.estimate.peak_bytes} "
            f"step_seconds={self.estimate.step_seconds:.3g}>"
        )


class AppliedPlan(PlannedFunction):
    """A function under a saved plan."""

    def __init__(self, fun: Callable[..., Any], saved: SavedPlan, *, strict: bool) -> None:
        options = saved.document["options"]
        planned = Options(
            mesh=saved.mesh,
            memory_budget=saved.memory_budget_bytes,
            planner=_planner_of(options),
            verify=options.get("verify"),
            respect_user_checkpoint=options.get("respect_user_checkpoint", False),
            respect_user_shardings=options.get("respect_user_shardings", True),
            open_loops=options["open_loops"],
            while_trips=options.get("while_trips", DEFAULT_TRIPS),
            **saved.document["function"]["binding"],
        )
        try:
            super().__init__(fun, planned)
        except InvalidArgumentError as error:
            if error.topic not in (topics.NO_SUCH_PARAMETER, topics.NO_SUCH_POSITION):
                raise
            raise PlanMismatchError(
                "The saved plan is for another function, whose parameters are others: "
                f"{error.what}",
                topic=topics.OTHER_STEP,
                cause=f"The plan was made for {saved.document['function']['name']}.",
                suggestion="Name that function, or plan this one.",
            ) from error
        self.saved = saved
        self._strict = strict
        names = "as_traced", "fetches_elements", "platforms"
        self._trace_options = {name: options[name] for name in names}
        self._trace_options["residencies"] = options["residencies"]

    def _on_host(self, call: Call) -> OnHost:
        return on_host_of(self.saved.document)

    @jax_internals.without_mesh()
    def _plan_of(self, call: Call) -> Plan:
        if call.traced_key not in self._plans:
            check_arguments(self.saved.document, call)
            traced = self._trace_of(call, self._on_host(call))
            planner = planner_named(self.options.planner)
            plan = restore(self.saved.document, traced, planner, strict=self._strict)
            note_peak(traced, self.settings, plan.peak_bytes)
            self._plans[call.traced_key] = plan
        return self._plans[call.traced_key]


def _planner_of(options: Document) -> Planner:
    """Returns the planner that made a saved plan, with its parameters."""
    planner = planner_named(options["planner"])
    return replace(planner, **options["planner_parameters"])


def diff(first: Plan | SavedPlan, second: Plan | SavedPlan) -> PlanDifference:
    """Returns the differences between two plans, with the cost of each. Print the result for a
    table.

    **Raises:** `InvalidArgumentError` for anything other than a plan or a loaded plan.
    """
    return compare(_document_of(first), _document_of(second))


def _document_of(plan: Any) -> Document:
    if isinstance(plan, SavedPlan):
        return plan.document
    if isinstance(plan, Plan):
        return document(plan)
    raise InvalidArgumentError(
        f"kiwi.diff compares plans, not {type(plan).__name__}.",
        topic=topics.ARGUMENT,
        suggestion="kiwi.load_plan(path) reads a plan from a file.",
    )


def load_plan(path: str | Path) -> SavedPlan:
    """Reads a file that `plan.save(path)` wrote. Nothing in the file is executed.

    **Raises:** `PlanFileError` if the file is missing, truncated, altered, of another kind, or
    newer than this Kiwi.
    """
    return SavedPlan(read(path), str(path))
