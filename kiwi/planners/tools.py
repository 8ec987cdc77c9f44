"""What planners share: the settings of a search, the compiler of the check, and the solver."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kiwi.errors import InvalidArgumentError, UnknownSolverError
from kiwi.options import Settings
from kiwi.solver import SOLVERS, Problem, SolveResult, solve
from kiwi.xla.compiled_program import CompiledProgram
from kiwi.xla.compilers import TARGETS, compile_for
from kiwi.xla.step import Step

Compile = Callable[[Step], CompiledProgram]


@dataclass(frozen=True, eq=False)
class Tools:
    """Settings of a search, and the compiler that checks plans.

    - `settings`: planners take the budget as an argument, and do not read it here.
    - `compile`: compiles planned steps; None leaves plans unchecked.
    """

    settings: Settings
    compile: Compile | None = None

    @staticmethod
    def of(settings: Settings) -> "Tools":
        """With the compiler that `settings.verify` names."""
        target = settings.verify
        return Tools(settings, None if target is None else functools.partial(compile_for, target))

    def with_settings(self, **changes: Any) -> "Tools":
        """The same with other settings."""
        return replace(self, settings=replace(self.settings, **changes))

    @property
    def unchecked(self) -> "Tools":
        """The same without a compiler."""
        return replace(self, compile=None)

    def solve(
        self, problem: Problem, seconds: float, warm_start: Sequence[int] | None = None
    ) -> SolveResult:
        """Solves a problem with the solver, the seed and the gap of the settings.

        **Arguments:**

        - `seconds`: the time limit.
        """
        return solve(
            problem,
            solver=self.settings.solver,
            time_limit_seconds=seconds,
            seed=self.settings.seed,
            gap=self.settings.gap,
            warm_start=warm_start,
            on_progress=self.settings.on_progress,
        )


def check_search(settings: Settings) -> None:
    """Raises `UnknownSolverError` or `InvalidArgumentError`."""
    if settings.verify is not None and settings.verify not in TARGETS:
        raise InvalidArgumentError(
            f"verify={settings.verify!r} is not a target of the compile check.",
            suggestion="One of " + ", ".join(repr(t) for t in TARGETS) + ", or None.",
        )
    if settings.solver not in SOLVERS:
        raise UnknownSolverError(
            f"There is no solver {settings.solver!r}.",
            suggestion="One of " + ", ".join(repr(s) for s in SOLVERS) + ".",
        )
    if not settings.time_limit_seconds > 0:
        raise InvalidArgumentError(
            f"time_limit_seconds={settings.time_limit_seconds} is not positive."
        )
