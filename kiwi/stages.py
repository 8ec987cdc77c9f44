"""The stages of planning. A caller can stop at each stage, print it and change it.

    traced = kiwi.trace(train_step, state, batch, donate_argnums=0)   # a program
    kernels = traced.kernels("h100-sxm")                              # what the compiler will run
    problem = kernels.problem(mesh_shape=(2, 4), memory_budget="16GiB")
    solution = problem.solve()
    plan = solution.plan()

Each stage is a frozen dataclass: `dataclasses.replace` changes it before the next stage. `print`
shows it. `kiwi.plan` runs all stages, and repeats the last stages until the compiled program meets
the budget. `Solution.plan` compiles nothing.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from kiwi.calls.signature import Call, JitOptions, bind
from kiwi.campaign.tools import Tools
from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Program
from kiwi.hlo.trips import DEFAULT_TRIPS, WhileTrips
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import Hardware, ProfileTable
from kiwi.options import Options, Settings
from kiwi.planners.planner import Planner
from kiwi.planners.planning import Lowered, grouped, lowered_call
from kiwi.planners.registry import planner_named
from kiwi.plans.breakdown import build_breakdown
from kiwi.plans.plan import Plan
from kiwi.plans.record import Origin
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes
from kiwi.solver import SolveResult, SolveStatus
from kiwi.targets.registry import target_of

_SHOWN = 12
"""A printed stage shows this many rows of a table, and the number of the others."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced and lowered call.

    - `lowered`: the call, its program, and the StableHLO operators of each equation with their
      sharding rules.
    """

    lowered: Lowered

    @property
    def call(self) -> Call:
        """The call: the function with the shapes of its arguments."""
        return self.lowered.call

    @property
    def program(self) -> Program:
        """The traced program: equations over values."""
        return self.lowered.graph.program

    @property
    def graph(self) -> HloGraph:
        """The program with operators, sharding rules and costs."""
        return self.lowered.graph

    def kernels(self, profile: str | Path | Hardware | ProfileTable = "h100-sxm") -> "Kernels":
        """The kernels that the compiler for the devices of `profile` will run.

        **Raises:** `UnknownProfileError`; `CompilerUnavailableError` for devices without rules.
        """
        table = Options(profile=profile).table()
        target = target_of(table.hardware)
        step = grouped(self.lowered, target.facts(table.hardware).fusion)
        return Kernels(step, target.kernels(step.units, table.hardware), table)

    def __str__(self) -> str:
        program = self.program
        lines = [
            f"program of {len(program.equations)} equations, {len(program.arguments)} arguments, "
            f"{len(program.results)} results, {len(program.loops)} loops and branches"
        ]
        lines += _some(
            (
                f"{equation.index:5d} {equation.name} {equation.scope}".rstrip()
                for equation in program.equations
            ),
            len(program.equations),
        )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels that the compiler will run for the units of a step.

    - `step`: the traced step with its units.
    - `graph`: the kernels, with the facts that the target's rules state.
    - `table`: the profile that prices them.
    """

    step: StepToPlan
    graph: KernelGraph
    table: ProfileTable

    def problem(self, **options: Any) -> "Problem":
        """The problem: the options of all units on a mesh, with their prices.

        - `options`: options of `kiwi.plan` about the goal and the search, such as `mesh_shape`,
          `mesh`, `memory_budget`, `planner`, `gap` and `effort`. The profile is this stage's.

        **Raises:** the errors that `kiwi.plan` raises before its search.
        """
        table = self.table
        plan_options = Options(**{"verify": None, **options, "profile": table})
        settings = plan_options.settings(table)
        planner = planner_named(settings.planner)
        planner.check(settings.mesh)
        planning = planner.formulate(
            self.step, settings.memory_budget_bytes, settings, kernels=self.graph
        )
        return Problem(self.step, settings, planner, planning)

    def __str__(self) -> str:
        lines = list(self.graph.describe())
        return "\n".join([*lines[:2], *_some(lines[2:], len(lines) - 2)])


@dataclass(frozen=True, eq=False)
class Problem:
    """The decisions to make, with their prices.

    - `step`: the traced step with its units.
    - `settings`: the mesh, the budget and the options of the search.
    - `planner`: the planner that formulated the problem.
    - `planning`: the nodes (arguments, units, copies) with their options, and the edges between
      them.
    """

    step: StepToPlan
    settings: Settings
    planner: Planner
    planning: PlanningProblem

    def solve(self) -> "Solution":
        """Solves the problem with the solver of the settings, and returns the fastest solution
        found that is predicted to fit.

        **Raises:** `InfeasibleBudgetError` if no options fit; `NoPlanFoundError` if the search
        ended without a solution.
        """
        operators = len(self.planning.units.units)
        tools = Tools.of(replace(self.settings, verify=None), operators)
        result = tools.solve(self.planning.problem, tools.allowance)
        budget = format_bytes(self.settings.memory_budget_bytes)
        if result.status is SolveStatus.INFEASIBLE:
            raise InfeasibleBudgetError(
                f"No options fit {budget} per device.",
                suggestion="A larger memory_budget.",
                least_peak_bytes=result.least_peak_bytes,
            )
        if result.solution is None:
            raise NoPlanFoundError(
                f"The search found no options for {budget} per device.",
                suggestion='effort="thorough".',
            )
        return Solution(self, result)

    def __str__(self) -> str:
        problem = self.planning.problem
        options = sum(len(node.costs) for node in problem.nodes)
        mesh = self.settings.mesh
        axes = ", ".join(f"{name}={n}" for name, n in zip(mesh.axis_names, mesh.shape, strict=True))
        head = (
            f"problem of {len(problem.nodes)} nodes with {options} options and "
            f"{len(problem.edges)} edges on {mesh.size} x {mesh.hardware.name} ({axes}), "
            f"{format_bytes(self.settings.memory_budget_bytes)} per device"
        )
        rows = (
            f"  {node.name}: {len(node.costs)} options, {1e6 * min(node.costs):.1f} to "
            f"{1e6 * max(node.costs):.1f} us"
            for node in problem.nodes
        )
        return "\n".join([head, *_some(rows, len(problem.nodes))])


@dataclass(frozen=True, eq=False)
class Solution:
    """The options chosen for a problem.

    - `problem`: the problem.
    - `result`: the solver's result: its `solution` has an option for each node, with its cost,
      bound and gap.
    """

    problem: Problem
    result: SolveResult

    def plan(self) -> Plan:
        """The plan of the solution, with an estimate and without a compiled program."""
        assert self.result.solution is not None
        problem = self.problem
        solved = Solved(problem.planning, self.result.solution)
        budget_bytes = problem.settings.memory_budget_bytes
        plan = problem.planner.plan_of(problem.step, solved, self.result, budget_bytes)
        offered = problem.planning.fixed.offered
        origin = Origin(problem.step, problem.settings, problem.planner, offered)
        return replace(plan, origin=origin, breakdown=build_breakdown(solved))

    def __str__(self) -> str:
        result = self.result
        assert result.objective is not None and result.solution is not None
        head = (
            f"solution of {1e3 * result.objective:.4g} ms, {result.status.value}, "
            f"gap {result.gap:.2%}, by {result.solver}"
        )
        nodes = self.problem.planning.problem.nodes
        rows = (
            f"  {node.name}: option {option} of {len(node.costs)}"
            for node, option in zip(nodes, result.solution, strict=False)
        )
        return "\n".join([head, *_some(rows, len(nodes))])


def trace(
    fun: Callable[..., Any],
    *args: Any,
    open_loops: bool = True,
    respect_user_checkpoint: bool = False,
    while_trips: WhileTrips = DEFAULT_TRIPS,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    **kwargs: Any,
) -> Traced:
    """Traces and lowers `fun(*args, **kwargs)`: the first stage of planning.

    - `args`: arrays or `jax.ShapeDtypeStruct`s.
    - All other parameters: as in `kiwi.plan`.

    **Raises:** `InvalidFunctionError` if the function has no array argument;
    `InvalidArgumentError` for arguments or options that cannot be used.
    """
    jit_options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
    }
    call = bind(fun, JitOptions.of(fun, jit_options), args, kwargs)
    started = time.monotonic()
    lowered = lowered_call(
        call,
        keep_checkpoints=respect_user_checkpoint,
        open_loops=open_loops,
        while_trips=while_trips,
    )
    return Traced(replace(lowered, seconds=time.monotonic() - started))


def _some(rows: Any, count: int) -> Iterator[str]:
    """Yields the first rows of a table, and a line with the number of the others."""
    yield from islice(rows, _SHOWN)
    if count > _SHOWN:
        yield f"  … and {count - _SHOWN} more"
