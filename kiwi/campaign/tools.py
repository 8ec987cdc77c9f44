"""The tools that planners share: the settings of a search, the compiler of the check, the solver,
and its progress.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kiwi.campaign import shares
from kiwi.campaign.history import History
from kiwi.errors import InvalidArgumentError, UnknownSolverError, check_known
from kiwi.messages import Note, topics
from kiwi.options import GRANULARITIES, Settings
from kiwi.solver import SOLVERS, Problem, Progress, SolveResult, solve
from kiwi.solver.effort import EFFORTS, Allowance, effort_work
from kiwi.solver.result import INTERRUPTED, Balances, OnProgress
from kiwi.solver.solve import COUNT_WORK
from kiwi.targets.registry import is_own_compiler, planned_target
from kiwi.xla.compilers import Begin, begin_for, overlapping_compiles

CLOCK_ENDED_SEARCH = Note.of(
    topics.CLOCK_ENDED, "The time limit ended the search: another run may find another plan."
)

INTERRUPTED_PLAN = Note.of(
    topics.INTERRUPTED, "Ctrl-C ended the search: this is the best plan that was found by then."
)

MOST_ENTRIES = 2000
"""Beyond this number, only improvements of the solution are kept."""


class Interruption:
    """Whether Ctrl-C has asked for the best plan so far."""

    def __init__(self) -> None:
        self.has_come = False


@dataclass(frozen=True, eq=False)
class Tools:
    """The settings of a search, and the compiler that checks plans. Planners take the budget as an
    argument instead of from the settings. Without a compiler plans are not checked.

    - `compile`: begins to compile. Calling the result waits for the program.
    - `compiles_overlapping`: the same with collectives that overlap with computation, in each of
      the ways that may take more memory, the best one first.
    - `learns_overlap`: whether a search ends with `LessOverlap` if a program hides less than its
      plan counts on.
    - `share`: the share of the settings' allowance that searches may spend.
    - `operators`: how many operators the step has, for the allowance; None if nobody said.
    - `history`: the log of all attempts of one planning, shared by tools made from others.
    - `interruption`: shared by all tools made from these. After Ctrl-C, searches end after their
      first rounds, so that what was found becomes a plan.
    """

    settings: Settings
    compile: Begin | None = None
    compiles_overlapping: tuple[Begin, ...] = ()
    learns_overlap: bool = False
    share: float = 1.0
    operators: int | None = None
    history: History = field(default_factory=History)
    interruption: Interruption = field(default_factory=Interruption)

    @staticmethod
    def of(settings: Settings, operators: int | None = None) -> "Tools":
        """The tools of settings, for a step of so many operators, with the compiler that
        `settings.verify` names, if it is the plan's own."""
        target = settings.verify
        if target is None or not is_own_compiler(target, settings.mesh.hardware):
            return Tools(settings, operators=operators)
        compile = functools.partial(begin_for, target)
        return Tools(settings, compile, overlapping_compiles(target), operators=operators)

    def with_settings(self, **changes: Any) -> "Tools":
        """The tools with other settings."""
        return replace(self, settings=replace(self.settings, **changes))

    @property
    def unchecked(self) -> "Tools":
        """The tools without a compiler."""
        return replace(self, compile=None, compiles_overlapping=())

    def part(self, share: float) -> "Tools":
        """The tools with a share of the allowance."""
        return replace(self, share=share * self.share)

    @property
    def allowance(self) -> Allowance:
        """The allowance of all searches for a plan together."""
        work = effort_work(self.settings.effort, self.operators)
        return Allowance(work, self.settings.time_limit_seconds).part(self.share)

    def solve(
        self,
        problem: Problem,
        allowed: Allowance,
        warm_start: Sequence[int] | None = None,
        round_limit: int | None = None,
        balances: Balances | None = None,
    ) -> SolveResult:
        """Solves a problem with the solver, the seed and the gap of the settings."""
        counts_work = self.settings.solver in COUNT_WORK
        if self.interruption.has_come:
            allowed = allowed.part(0.0)
        seconds = allowed.seconds if counts_work else allowed.planned_seconds
        found = solve(
            problem,
            solver=self.settings.solver,
            time_limit_seconds=max(seconds, shares.LEAST_SECONDS),
            work_limit=int(allowed.work),
            seed=self.settings.seed,
            gap=self.settings.gap,
            warm_start=warm_start,
            on_progress=self.settings.on_progress,
            round_limit=round_limit,
            balances=balances,
            any_time=self.settings.any_time and not self.interruption.has_come,
        )
        if found.message == INTERRUPTED:
            self.interruption.has_come = True
            if found.solution is None:
                raise KeyboardInterrupt
        return found if not self.interruption.has_come else replace(found, deterministic=False)


def spent(result: SolveResult) -> Allowance:
    """The work and the time of a search."""
    return Allowance(result.work, result.seconds)


class ProgressLog:
    """Collects the solver's states and passes them on. A plan that is tightened is solved several
    times; `seconds` then continue from solve to solve."""

    def __init__(self, pass_on: OnProgress | None) -> None:
        self._pass_on = pass_on
        self._entries: list[Progress] = []
        self._base_seconds = 0.0

    @property
    def entries(self) -> tuple[Progress, ...]:
        """The states, ordered by time."""
        return tuple(self._entries)

    def __call__(self, progress: Progress) -> None:
        """Takes one state."""
        if self._pass_on is not None:
            self._pass_on(progress)
        last = self._entries[-1] if self._entries else None
        if last is not None and progress.seconds + self._base_seconds < last.seconds:
            self._base_seconds = last.seconds
        is_new = last is None or progress.objective != last.objective
        if is_new or len(self._entries) < MOST_ENTRIES:
            seconds = self._base_seconds + progress.seconds
            found = progress.objective, progress.bound, progress.peak_bytes, progress.solver
            self._entries.append(Progress(seconds, *found, progress.iterations))


def check_search(settings: Settings) -> None:
    """Raises `UnknownSolverError`, `InvalidArgumentError` or `CompilerUnavailableError`."""
    planned_target(settings.verify, settings.mesh.hardware)
    check_known(settings.solver, SOLVERS, "solver", UnknownSolverError)
    check_known(settings.effort, EFFORTS, "effort")
    check_known(settings.granularity, GRANULARITIES, "granularity")
    if not settings.time_limit_seconds > 0:
        raise InvalidArgumentError(
            f"time_limit_seconds={settings.time_limit_seconds} is not positive.",
            topic=topics.OUT_OF_RANGE,
        )
    if settings.seed < 0:
        raise InvalidArgumentError(f"seed={settings.seed} is negative.", topic=topics.OUT_OF_RANGE)
    trips = settings.while_trips
    for count in (trips,) if isinstance(trips, int) else trips.values():
        if count < 0:
            raise InvalidArgumentError(
                f"while_trips={count} is negative.", topic=topics.OUT_OF_RANGE
            )
