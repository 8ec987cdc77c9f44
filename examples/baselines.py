"""Hand-written programs, priced and compiled beside Kiwi's plans.

The hand-written parts of a baseline are the shardings of its arguments, and `jax.checkpoint` in the
model. Its *estimate* completes these: the arguments are fixed, every value between them has the
layout that XLA propagates, nothing else is recomputed, and the same evaluator prices the result.
Its *compiled peak* is the peak of the plain program, `jax.jit` with the same argument shardings.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

import kiwi
from examples._common import Specs
from kiwi.mesh import DeviceMesh
from kiwi.planners.registry import planner_named
from kiwi.plans.estimate import Estimate
from kiwi.xla.compilers import compile_for
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import Step

UNLIMITED = "1024TiB"


@dataclass(frozen=True)
class Baseline:
    """A hand-written program: `train_step(state, batch)` and its argument shardings."""

    name: str
    train_step: Callable[[Any, Any], Any]
    specs: Specs

    def planned(self, **options: Any) -> kiwi.PlannedFunction:
        """Returns the step under a plan with these options. All functions that one baseline returns
        share their traces."""
        return self._planned.with_options(**options)

    @functools.cached_property
    def _planned(self) -> kiwi.PlannedFunction:
        return kiwi.jit(
            self.train_step,
            memory_budget=UNLIMITED,
            planner="xla",
            donate_argnums=0,
            in_shardings=(self.specs.state, self.specs.batch),
            respect_user_checkpoint=True,
        )


def estimate_baseline(
    baseline: Baseline,
    state: Any,
    batch: Any,
    *,
    mesh_shape: tuple[int, ...],
    profile: str,
    axis_names: Sequence[str] | None = None,
) -> Estimate:
    """Prices a baseline as `jax.jit` runs it, from the shardings that XLA propagates. Nothing is
    compiled."""
    planned = baseline.planned(mesh_shape=mesh_shape, axis_names=axis_names, profile=profile)
    step = planned.traced(state, batch)
    plan = planner_named("xla").make(step, planned.settings, is_checked=False)
    assert plan.as_written is not None
    return plan.as_written


def planned_baseline(
    baseline: Baseline,
    state: Any,
    batch: Any,
    *,
    mesh_shape: tuple[int, ...],
    profile: str,
    verify: str | None = None,
) -> kiwi.Plan:
    """Returns the baseline's plan: the same shardings and recomputation, in the order of a plan."""
    planned = baseline.planned(mesh_shape=mesh_shape, profile=profile, verify=verify)
    return planned.plan(state, batch)


def compile_baseline(
    baseline: Baseline,
    state: Any,
    batch: Any,
    *,
    mesh_shape: tuple[int, ...],
    profile: str = "cpu",
    target: str = "cpu",
) -> CompiledProgram:
    """Compiles the plain program with the options of plans, by default for virtual CPU devices."""
    mesh = DeviceMesh.create(mesh_shape, profile)
    return compile_for(target, baseline_step(baseline, state, batch, mesh))


def baseline_step(baseline: Baseline, state: Any, batch: Any, mesh: DeviceMesh) -> Step:
    """Returns the plain program, ready to be compiled. The state is donated and keeps its
    shardings."""
    leaves, tree = jax.tree.flatten((state, batch))
    state_count = len(jax.tree.leaves(state))

    def flat(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(baseline.train_step(*jax.tree.unflatten(tree, arrays)))

    in_specs = _spread((baseline.specs.state, baseline.specs.batch), (state, batch))
    results = jax.eval_shape(flat, *leaves)
    out_specs = in_specs[:state_count] + [PartitionSpec()] * (len(results) - state_count)
    return Step(flat, leaves, mesh, in_specs, out_specs, tuple(range(state_count)))


def _spread(prefix: Any, full: Any) -> list[PartitionSpec]:
    def is_spec(node: Any) -> bool:
        return isinstance(node, PartitionSpec)

    return jax.tree.leaves(jax.tree_util.tree_broadcast(prefix, full, is_spec), is_leaf=is_spec)
