"""Random plans: random strategies, residencies and kept copies of a call's problem.

Good plans of small programs recompute almost nothing. The result of a plan must not depend on its
quality, so a random choice among all options tests more of emission than any good plan.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

import kiwi
from kiwi.emit.execution import Execution, build_execution
from kiwi.emit.interpreter import emit
from kiwi.planners.registry import planner_named
from kiwi.plans.record import place_leaves
from kiwi.problem.build import KeptCopies, PlanningProblem
from kiwi.problem.solved import Solved


def with_random_ties(execution: Execution, rng: np.random.Generator) -> Execution:
    """Returns the execution with barriers at every step, at no step, or at a random half of the
    steps."""
    steps = range(len(execution.schedule.steps))
    tied = frozenset(k for k in steps if rng.random() < 0.5)
    return replace(execution, tied_steps=(None, frozenset[int](), tied)[rng.integers(3)])


def random_solution(planning: PlanningProblem, rng: np.random.Generator, remat: float) -> list[int]:
    """Returns a random choice of strategies and, from the last unit to the first, of residencies.

    A unit may only take a residency under which its value is available to recomputed readers. If a
    unit may be recomputed, it is with probability `remat`.
    """
    sources = [int(rng.integers(len(s.shardings))) for s in planning.sources]
    choices = [0] * len(planning.unit_nodes)
    wanted: dict[int, list[int]] = {}
    for node in reversed(planning.unit_nodes):
        unit = planning.units.units[node.unit]
        times = [t for o in unit.outputs for t in wanted.get(o, ())]
        options = node.residency.options
        allowed = [k for k, r in enumerate(options) if all(r.available_at(t) for t in times)]
        recomputing = [k for k in allowed if options[k].recomputes]
        residency = int(
            rng.choice(recomputing if recomputing and rng.random() < remat else allowed)
        )
        if options[residency].recompute_at is not None:
            for value in unit.reads:
                wanted.setdefault(value, []).append(options[residency].recompute_at)
        strategy = int(rng.integers(len(node.strategies)))
        choices[node.unit] = strategy * len(options) + residency
    return sources + choices


def random_kept_copies(
    planning: PlanningProblem, solution: list[int], rng: np.random.Generator
) -> KeptCopies:
    """Returns a random half of the copies of operands that the plan may keep for later readers."""
    opened = planning.restricted(solution, kept=None)
    open_to_choice = [copy for copy in opened.copies if len(copy.options) > 1]
    return frozenset(copy.operand_read for copy in open_to_choice if rng.random() < 0.5)


def run_random_plan(planned: kiwi.PlannedFunction, args: Any, seed: int) -> tuple[Any, Execution]:
    """Returns the results of a call under a random plan, and the plan's execution."""
    traced = planned.traced(*args)
    settings = planned.settings
    planner, budget_bytes = planner_named(settings.planner), settings.memory_budget_bytes
    planning = planner.formulate(traced, budget_bytes, settings)
    rng = np.random.default_rng(seed)
    solution = random_solution(planning, rng, remat=0.7)
    kept = random_kept_copies(planning, solution, rng)
    execution = with_random_ties(build_execution(Solved(planning, solution, kept)), rng)
    mesh = planning.mesh.jax_mesh()
    specs = [planning.mesh.partition_spec(s) for s in execution.argument_shardings]
    shardings = [jax.sharding.NamedSharding(mesh, spec) for spec in specs]
    results = jax.jit(emit(execution))(*place_leaves(jax.tree.leaves(args), shardings))
    return jax.tree.unflatten(traced.out_tree, results), execution
