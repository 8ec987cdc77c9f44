"""The steps whose compiled programs are compared."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

import jax

import kiwi
from benchmarks.fidelity.models import MODELS
from examples import llama
from kiwi.emit import context
from kiwi.emit.barriers import Barrier, Barriers
from kiwi.emit.execution import Execution
from kiwi.emit.interpreter import emit
from kiwi.xla.step import Step


@dataclass(frozen=True)
class Case:
    """A training step, and the mesh that it is planned for."""

    module: ModuleType
    config: Any
    mesh_shape: tuple[int, ...] = (2, 4)

    @property
    def arguments(self) -> tuple[Any, Any]:
        """The abstract state and batch."""
        return self.module.abstract_state(self.config), self.module.abstract_batch(self.config)

    def train_step(self, **options: Any) -> Callable[..., Any]:
        """Returns the step as `jax.jit` takes it."""
        return self.module.make_train_step(self.config, **options)

    @property
    def is_checkpointed(self) -> bool:
        """Whether the model offers a step with `jax.checkpoint` around each layer."""
        return "remat" in inspect.signature(self.module.make_train_step).parameters


CASES: Mapping[str, Case] = {
    **{name: Case(model.module, model.config) for name, model in MODELS.items()},
    "llama_8b": Case(llama, llama.SIZES["8b"], (16, 16)),
}


VARIANTS = ("planned", "plain", "every_step", "no_barrier", "checkpoint")


def steps(plan: kiwi.Plan, case: Case) -> dict[str, Step]:
    """Returns the variants' steps by name. Without barriers XLA merges recomputed operators with
    the first computation."""
    execution = plan.execution
    variants = {
        "planned": plan.step,
        "plain": plain_step(plan, case.train_step()),
        "every_step": replace(plan.step, function=emit(replace(execution, tied_steps=None))),
        "no_barrier": replace(plan.step, function=_without_barriers(execution)),
    }
    if case.is_checkpointed:
        variants["checkpoint"] = plain_step(plan, case.train_step(remat="full"))
    return variants


def _without_barriers(execution: Execution) -> Callable[..., Any]:
    none = Barriers((Barrier(),) * len(execution.schedule.steps), {})

    def function(*arguments: Any) -> Any:
        with mock.patch.object(context, "barriers", lambda _: none):
            return emit(execution)(*arguments)

    return function


def plain_step(plan: kiwi.Plan, function: Callable[..., Any]) -> Step:
    """Returns a function as it is, with the plan's shardings of arguments and results."""
    tree = plan.traced.call.tree

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(tree, leaves)
        return jax.tree.leaves(function(*args, **kwargs))

    return replace(plan.step, function=flat)
