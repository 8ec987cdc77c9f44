"""Plans of a model, measured in rounds that alternate with recordings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import jax

import kiwi
from benchmarks.replay.merging import median_table
from benchmarks.replay.models import Model
from benchmarks.timed_step import timed_step
from kiwi.mesh import ProfileTable
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.record import place_leaves
from kiwi.problem.solved import Solved

RECOMPUTES_ALL = "all recomputed"
_PLANNING = {"verify": None, "time_limit_seconds": 10.0, "donate_argnums": 0}


@dataclass(eq=False)
class Candidate:
    """A plan and its runs. `rounds[r]` holds the seconds of the steps of round r."""

    name: str
    plan: kiwi.Plan
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def measured_seconds(self) -> float:
        """The median of all runs."""
        return median(s for round_ in self.rounds for s in round_)

    def predicted_seconds(self, table: ProfileTable) -> float:
        """Returns the time of the plan by another table of the same mesh.

        By that table another option may be better in all respects than one of the plan's options,
        which is then not offered. In this case returns the time by the plan's own table.
        """
        origin = self.plan.origin
        assert origin is not None
        mesh = replace(self.plan.mesh, table=table, hardware=table.hardware)
        settings = replace(origin.settings, mesh=mesh)
        budget_bytes = settings.memory_budget_bytes
        planning = origin.planner.formulate(origin.step, budget_bytes, settings)
        try:
            solution = self.plan.breakdown.solution_of(planning)
        except kiwi.errors.PlanMismatchError:
            return self.plan.estimate.step_seconds
        return estimate_solution(Solved(planning, solution)).step_seconds


@dataclass(frozen=True, eq=False)
class Outcome:
    """A model's plans, and one table per round."""

    candidates: tuple[Candidate, ...]
    tables: tuple[ProfileTable, ...]

    @property
    def table(self) -> ProfileTable:
        """The median of the tables of all rounds."""
        return median_table(self.tables)


def replay(model: Model, *, rounds: int, runs: int, repetitions: int) -> Outcome:
    """Plans `model`, then records and runs it in alternation.

    **Arguments:**

    - `runs`: the number of steps of each plan before the recording of a round, and after it.
    - `repetitions`: the number of timings of each recorded program per round.
    """
    state, batch = model.arguments()

    def record() -> ProfileTable:
        return kiwi.record_profile(
            model.step(), state, batch, mesh_shape=model.mesh_shape, repetitions=repetitions
        )

    candidates = tuple(_candidates(model, record(), state, batch))
    steps = [_step(c.plan, state, batch) for c in candidates]
    tables = []
    for _ in range(rounds):
        for candidate in candidates:
            candidate.rounds.append([])
        _run(candidates, steps, runs)
        tables.append(record())
        _run(candidates, steps, runs)
    return Outcome(candidates, tuple(tables))


def _candidates(model: Model, table: ProfileTable, state: Any, batch: Any) -> Iterator[Candidate]:
    options = {**_PLANNING, "mesh_shape": model.mesh_shape, "profile": table}
    planned = kiwi.jit(model.step(), **options)
    free = planned.plan(state, batch)
    yield Candidate("no budget", free)
    least_bytes = _least_bytes(planned, state, batch) if model.shares else 0
    for share in model.shares:
        budget = least_bytes + int(share * (free.estimate.peak_bytes - least_bytes))
        plan = planned.with_options(memory_budget=budget).plan(state, batch)
        yield Candidate(f"{budget / 2**20:.1f} MiB", plan)
    if model.recomputes_all:
        kept = kiwi.jit(model.step("full"), planner="alpa", respect_user_checkpoint=True, **options)
        yield Candidate(RECOMPUTES_ALL, kept.plan(state, batch))


def _least_bytes(planned: Any, state: Any, batch: Any) -> int:
    """Returns the smallest budget that a plan was found for."""
    try:
        planned.with_options(memory_budget=1).plan(state, batch)
    except kiwi.errors.InfeasibleBudgetError as error:
        assert error.least_peak_bytes is not None
        return error.least_peak_bytes
    raise AssertionError("A step in a single byte.")


def _step(plan: kiwi.Plan, state: Any, batch: Any) -> Callable[[], float]:
    """Returns a function that runs one step and returns its seconds. The first step has already
    run."""
    mesh = plan.mesh.jax_mesh()
    given = [jax.numpy.array(leaf) for leaf in jax.tree.leaves((state, batch))]
    leaves = place_leaves(given, plan.leaf_shardings(mesh))
    step = timed_step(plan.jit(mesh), leaves, len(jax.tree.leaves(state)))
    step()
    return step


def _run(candidates: tuple[Candidate, ...], steps: list[Callable[[], float]], runs: int) -> None:
    """Runs all plans in turn. The first step of a turn has cold caches and does not count."""
    for candidate, step in zip(candidates, steps, strict=True):
        step()
        candidate.rounds[-1] += [step() for _ in range(runs)]
