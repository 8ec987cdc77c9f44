"""The tools that planners share: the settings of a search, the compiler that checks plans, the
solver, and the log of its progress.
"""

import functools
import math
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
"""Beyond this number of states, a progress log adds only states with another objective."""


class Interruption:
    """Whether Ctrl-C has asked for the best plan so far."""

    def __init__(self) -> None:
        self.has_come = False


@dataclass(eq=False)
class ProgramsLeft:
    """The number of programs that several closed loops may still compile together."""

    count: int


@dataclass(frozen=True, eq=False)
class Tools:
    """The settings of a search, the compiler that checks plans, and the allowance of the search.

    - `settings`: the settings. Planners take the budget as an argument instead.
    - `compile`: begins to compile a step, and returns a function that waits for the program. If it
      is None, plans are not checked.
    - `compiles_overlapping`: the same for programs whose collectives overlap with computation, one
      for each of the compiler's ways to overlap.
    - `learns_overlap`: whether a search ends with `LessOverlap` if a program hides less
      communication than its plan counts on.
    - `programs`: the number of programs that may still be compiled, shared with all tools made from
      these; None for any number.
    - `share`: the share of the settings' allowance that searches may spend.
    - `operators`: the number of operators of the step, on which the allowance depends; None if it
      is not known.
    - `history`: the log of all attempts of one planning, shared with all tools made from these.
    - `interruption`: the state of Ctrl-C, shared with all tools made from these. After Ctrl-C,
      searches end after their first rounds, so that the best solution found becomes a plan.
    """

    settings: Settings
    compile: Begin | None = None
    compiles_overlapping: tuple[Begin, ...] = ()
    learns_overlap: bool = False
    programs: ProgramsLeft | None = None
    share: float = 1.0
    operators: int | None = None
    history: History = field(default_factory=History)
    interruption: Interruption = field(default_factory=Interruption)

    @staticmethod
    def of(settings: Settings, operators: int | None = None) -> "Tools":
        """Returns the tools for a step with `operators` operators. They have the compiler that
        `settings.verify` names if it compiles for the hardware of the plan."""
        target = settings.verify
        if target is None or not is_own_compiler(target, settings.mesh.hardware):
            return Tools(settings, operators=operators)
        compile = functools.partial(begin_for, target)
        return Tools(settings, compile, overlapping_compiles(target), operators=operators)

    def with_settings(self, **changes: Any) -> "Tools":
        """Returns the tools with some settings changed."""
        return replace(self, settings=replace(self.settings, **changes))

    @property
    def unchecked(self) -> "Tools":
        """The tools without a compiler."""
        return replace(self, compile=None, compiles_overlapping=())

    def part(self, share: float) -> "Tools":
        """Returns the tools with a share of the present allowance."""
        return replace(self, share=share * self.share)

    @property
    def allowance(self) -> Allowance:
        """The work and the seconds that all searches for a plan may spend together."""
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
        """Solves a problem with the solver, the seed and the gap of the settings.

        - `allowed`: the work and the time that the solver may spend.
        - `warm_start`, `round_limit`, `balances`: as in `kiwi.solver.solve`.

        **Raises:** `KeyboardInterrupt` if Ctrl-C came before a solution was found.
        """
        counts_work = self.settings.solver in COUNT_WORK
        if self.interruption.has_come:
            allowed = allowed.part(0.0)
        seconds = allowed.seconds if counts_work else allowed.planned_seconds
        result = solve(
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
        if result.message == INTERRUPTED:
            self.interruption.has_come = True
            if result.solution is None:
                raise KeyboardInterrupt
        return result if not self.interruption.has_come else replace(result, deterministic=False)


def spent(result: SolveResult) -> Allowance:
    """Returns the work and the time that a search took."""
    return Allowance(result.work, result.seconds)


class ProgressLog:
    """Collects the solver's states and passes them on.

    A plan may take several solves. The seconds in the log then continue from one solve to the next.
    """

    def __init__(self, pass_on: OnProgress | None) -> None:
        self._pass_on = pass_on
        self._entries: list[Progress] = []
        self._base_seconds = 0.0

    @property
    def entries(self) -> tuple[Progress, ...]:
        """The states, in order of time."""
        return tuple(self._entries)

    def __call__(self, progress: Progress) -> None:
        """Passes a state on, and logs it if it is new or the log is short."""
        if self._pass_on is not None:
            self._pass_on(progress)
        last = self._entries[-1] if self._entries else None
        if last is not None and progress.seconds + self._base_seconds < last.seconds:
            self._base_seconds = last.seconds
        is_new = last is None or progress.objective != last.objective
        if is_new or len(self._entries) < MOST_ENTRIES:
            seconds = self._base_seconds + progress.seconds
            state = progress.objective, progress.bound, progress.peak_bytes, progress.solver
            self._entries.append(Progress(seconds, *state, progress.iterations))


MOST_SEED = 2**32
"""The seeds of numpy's generators are below this number."""


def check_search(settings: Settings) -> None:
    """Checks the settings of a search.

    **Raises:** `UnknownSolverError`, `InvalidArgumentError` or `CompilerUnavailableError`.
    """
    planned_target(settings.verify, settings.mesh.hardware)
    check_known(settings.solver, SOLVERS, "solver", UnknownSolverError)
    check_known(settings.effort, EFFORTS, "effort")
    check_known(settings.granularity, GRANULARITIES, "granularity")
    if not settings.time_limit_seconds > 0:
        raise InvalidArgumentError(
            f"time_limit_seconds={settings.time_limit_seconds} is not positive.",
            topic=topics.OUT_OF_RANGE,
        )
    if not 0 <= settings.seed < MOST_SEED:
        raise InvalidArgumentError(
            f"seed={settings.seed} is not between 0 and {MOST_SEED - 1}.",
            topic=topics.OUT_OF_RANGE,
        )
    if not 0 <= settings.gap < math.inf:
        raise InvalidArgumentError(
            f"gap={settings.gap} is not a fraction of the step time.",
            topic=topics.OUT_OF_RANGE,
            suggestion="Pass for example gap=0.01 for 1 %.",
        )
    trips = settings.while_trips
    for count in (trips,) if isinstance(trips, int) else trips.values():
        if count < 0:
            raise InvalidArgumentError(
                f"while_trips={count} is negative.", topic=topics.OUT_OF_RANGE
            )
