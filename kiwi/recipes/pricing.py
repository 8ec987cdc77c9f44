"""The price of a step under a recipe, and the best recipe of the same form."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from kiwi.api import PlannedFunction
from kiwi.errors import InfeasibleBudgetError
from kiwi.hlo.checkpoint_names import residencies_replaced
from kiwi.options import Options
from kiwi.plans.export.checkpoint_names import MIXED
from kiwi.plans.export.partition_specs import specs_under_rules
from kiwi.plans.plan import Plan
from kiwi.recipes.recipe import Recipe
from kiwi.recipes.rules import under_rules

NO_BUDGET = 2**50
"""The budget in bytes under which a recipe that does not fit is priced; no step exceeds it."""


@dataclass(frozen=True, eq=False)
class Step:
    """A training step to which recipes apply.

    - `function`: the step.
    - `args`: its arguments, arrays or `jax.ShapeDtypeStruct`s.
    - `options`: options of `kiwi.plan`, such as `profile` and `donate_argnums`. Without
      `in_shardings`, the recipe's rules lay out arguments that name their dimensions.
    - `mesh`: the mesh in whose context (`jax.set_mesh`) the function is traced, if it needs one.
      An abstract mesh suits functions that compute constants while they are traced: on a mesh of
      devices that are not attached nothing can be computed.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    mesh: jax.sharding.Mesh | AbstractMesh | None = None

    def context(self) -> AbstractContextManager[Any]:
        """A context manager with the context in which the function is traced."""
        if isinstance(self.mesh, AbstractMesh):
            return jax.sharding.use_abstract_mesh(self.mesh)
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def under(self, recipe: Recipe) -> Callable[..., Any]:
        """The function under the residencies and the rules of a recipe, for `jax.jit` and Kiwi."""
        function = self.function

        @functools.wraps(function)
        def ruled(*args: Any) -> Any:
            with under_rules(recipe.logical_rules):
                if recipe.residencies is None:
                    return function(*args)
                with residencies_replaced(recipe.residencies):
                    return function(*args)

        return ruled


StepOf = Step | Callable[[Recipe], Step]
"""A step for all recipes, or a function that makes the step of a recipe, with its batch and
mesh."""


@dataclass(frozen=True, eq=False)
class Priced:
    """The price of a step under a recipe.

    - `recipe`, `step`: the priced recipe and step.
    - `plan`: the plan with the shardings and the recomputation of the recipe.
    - `options`: the options of `kiwi.plan` in addition to the step's.
    - `fits`: whether the plan is within the budget.
    """

    recipe: Recipe
    step: StepOf
    plan: Plan
    options: Mapping[str, Any]
    fits: bool

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return self.plan.estimate.step_seconds

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of device memory."""
        return self.plan.estimate.peak_bytes

    @property
    def seconds_per_sample(self) -> float:
        """The predicted seconds per sample. A step without a batch size counts as one sample."""
        return self.seconds / (self.recipe.batch_size or 1)

    @property
    def named(self) -> Recipe:
        """The recipe; if it states no residencies, with the residencies of names in its plan."""
        if self.recipe.residencies is not None:
            return self.recipe
        names = self.plan.checkpoint_names()
        alike = {name: residency for name, residency in names.items() if residency != MIXED}
        return replace(self.recipe, residencies=alike)


def price(step: StepOf, recipe: Recipe, **options: Any) -> Priced:
    """Prices a step under a recipe, without any decision of its own.

    - `step`: a `Step`, or a function that makes one for a recipe.
    - `options`: options of `kiwi.plan`, such as `memory_budget` and `verify`. The figures come from
      the estimate. `verify` compiles the plan in addition, and is None by default.

    A recipe that does not fit is priced as well.

    **Raises:** the errors of `kiwi.plan`, except errors about the budget.
    """
    plan_options = {"planner": "xla", "respect_user_checkpoint": True, **options}
    try:
        return Priced(recipe, step, _planned(step, recipe, plan_options), options, fits=True)
    except InfeasibleBudgetError:
        free = {
            **plan_options,
            "memory_budget": NO_BUDGET,
            "host_memory_budget": None,
            "verify": None,
        }
        return Priced(recipe, step, _planned(step, recipe, free), options, fits=False)


def best(step: StepOf, recipe: Recipe, **options: Any) -> Priced:
    """Returns the fastest recipe found with other residencies of names, within the budget.

    Mesh, rules and batch of `recipe` do not change. If `recipe` fits, the result is no slower. The
    step times of the compiled programs are compared if `verify` names a compiler, else the
    estimates.

    - `step`, `options`: as in `price`. With `host_memory_budget`, names may be offloaded.

    **Raises:** the errors of `kiwi.plan`; `InvalidArgumentError` if the step has no names.
    """
    search_options = {"planner": "xla", "granularity": "names", **options}
    given_recipe = price(step, recipe, **options)
    free = replace(recipe, residencies=None)
    try:
        plan = _planned(step, free, search_options)
    except InfeasibleBudgetError:
        if given_recipe.fits:
            return given_recipe
        raise
    residencies = plan.checkpoint_names()
    best_found = Priced(replace(recipe, residencies=residencies), step, plan, options, fits=True)
    is_slower = given_recipe.plan.step_seconds < best_found.plan.step_seconds
    return given_recipe if given_recipe.fits and is_slower else best_found


def _planned(step: StepOf, recipe: Recipe, options: Mapping[str, Any]) -> Plan:
    recipe_step = step if isinstance(step, Step) else step(recipe)
    sizes, names = tuple(recipe.axes.values()), tuple(recipe.axes)
    plan_options: dict[str, Any] = {"verify": None, "mesh": AbstractMesh(sizes, names)}
    if recipe.slice_count > 1:
        plan_options["num_slices"] = recipe.slice_count
    if recipe.logical_rules and "in_shardings" not in recipe_step.options:
        specs = specs_under_rules(recipe_step.args, recipe.logical_rules)
        if jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, PartitionSpec)):
            plan_options["in_shardings"] = specs
    plan_options |= {**recipe_step.options, **options}
    with recipe_step.context():
        return PlannedFunction(recipe_step.under(recipe), Options(**plan_options)).plan(
            *recipe_step.args
        )
