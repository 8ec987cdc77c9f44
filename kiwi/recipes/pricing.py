"""A step priced as a recipe says, and the best recipe of the same form."""

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
"""The budget in bytes under which a recipe that does not fit is priced."""


@dataclass(frozen=True, eq=False)
class Step:
    """A training step that recipes are about.

    - `function`, `args`: the step and its arguments, arrays or `jax.ShapeDtypeStruct`s.
    - `options`: options of `kiwi.plan`, such as `profile` and `donate_argnums`. Without
      `in_shardings`, arguments that name their dimensions lie as the recipe's rules say.
    - `mesh`: the mesh in whose context (`jax.set_mesh`) the function is traced, if it needs one.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    mesh: jax.sharding.Mesh | None = None

    def context(self) -> AbstractContextManager[Any]:
        """The context in which the function is traced."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def under(self, recipe: Recipe) -> Callable[..., Any]:
        """The function with the residencies and the rules of a recipe, for `jax.jit` and Kiwi."""
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
"""A step for all recipes, or a function that makes the step of one: its batch, its mesh."""


@dataclass(frozen=True, eq=False)
class Priced:
    """A step priced as a recipe says.

    - `recipe`, `step`: what was priced. `options`: the options of `kiwi.plan` beside the step's.
    - `plan`: with the shardings and the recomputation of the recipe.
    - `fits`: whether it is within the budget.
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
        """The predicted peak of a device."""
        return self.plan.estimate.peak_bytes

    @property
    def seconds_per_sample(self) -> float:
        """Of a step without a batch size, its seconds."""
        return self.seconds / (self.recipe.batch_size or 1)

    @property
    def named(self) -> Recipe:
        """The recipe with the residencies that its plan has, if it states none itself."""
        if self.recipe.residencies is not None:
            return self.recipe
        names = self.plan.checkpoint_names()
        alike = {name: r for name, r in names.items() if r != MIXED}
        return replace(self.recipe, residencies=alike)


def price(step: StepOf, recipe: Recipe, **options: Any) -> Priced:
    """Prices a step as a recipe says; nothing is decided.

    - `step`: a `Step`, or a function that makes one for a recipe.
    - `options`: options of `kiwi.plan`, such as `memory_budget` and `verify`. The figures are the
      estimate's; `verify` compiles the plan beside it, and is None by default.

    A recipe that does not fit is priced all the same.

    **Raises:** the errors of `kiwi.plan`, without those about the budget.
    """
    given = {"planner": "xla", "respect_user_checkpoint": True, **options}
    try:
        return Priced(recipe, step, _planned(step, recipe, given), options, fits=True)
    except InfeasibleBudgetError:
        free = {**given, "memory_budget": NO_BUDGET, "host_memory_budget": None, "verify": None}
        return Priced(recipe, step, _planned(step, recipe, free), options, fits=False)


def best(step: StepOf, recipe: Recipe, **options: Any) -> Priced:
    """The fastest recipe found with other residencies of names, within the budget.

    Mesh, rules and batch stay. It is no slower than `recipe` if that fits, as compiled if `verify`
    names a compiler.

    - `step`, `options`: as of `price`. With `host_memory_budget`, names may be offloaded.

    **Raises:** the errors of `kiwi.plan`; `InvalidArgumentError` if the step has no names.
    """
    own = {"planner": "xla", "granularity": "names", **options}
    theirs = price(step, recipe, **options)
    free = replace(recipe, residencies=None)
    try:
        plan = _planned(step, free, own)
    except InfeasibleBudgetError:
        if theirs.fits:
            return theirs
        raise
    residencies = plan.checkpoint_names()
    found = Priced(replace(recipe, residencies=residencies), step, plan, options, fits=True)
    is_slower = theirs.plan.step_seconds < found.plan.step_seconds
    return theirs if theirs.fits and is_slower else found


def _planned(step: StepOf, recipe: Recipe, options: Mapping[str, Any]) -> Plan:
    own = step if isinstance(step, Step) else step(recipe)
    sizes, names = tuple(recipe.axes.values()), tuple(recipe.axes)
    given: dict[str, Any] = {"verify": None, "mesh": AbstractMesh(sizes, names)}
    if recipe.slice_count > 1:
        given["num_slices"] = recipe.slice_count
    if recipe.logical_rules and "in_shardings" not in own.options:
        specs = specs_under_rules(own.args, recipe.logical_rules)
        if jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, PartitionSpec)):
            given["in_shardings"] = specs
    given |= {**own.options, **options}
    with own.context():
        return PlannedFunction(own.under(recipe), Options(**given)).plan(*own.args)
