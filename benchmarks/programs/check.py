"""Plans a recipe, runs it with and without the plan, and compares the results."""

import gc
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

import kiwi
from benchmarks.programs.build import arguments, program
from benchmarks.programs.random_plans import run_random_plan
from benchmarks.programs.recipes import Recipe
from kiwi.errors import InfeasibleBudgetError, KiwiError, NoPlanFoundError
from kiwi.mesh import hardware
from kiwi.mesh.hardware import Link
from kiwi.planners.registry import planner_named

TOLERANCE = {"float32": 2e-4, "bfloat16": 6e-2}
"""The largest difference of a result, relative to the larger of its largest element and
`LEAST_SCALE`."""

LEAST_SCALE = 0.05
"""The smallest scale of a result. Results that are 0 except for rounding, such as sums of ones that
cancel, are about 1e-6."""

TIME_LIMIT_SECONDS = 2.0

_LINK = Link(1e12, 1e-12)
NUDGE = {"float32": 1e-6, "bfloat16": 2**-8}
"""The relative change of the parameters that results must tolerate: some units in the last
place."""

_MOST_SPREADS = 4

SHARING = replace(
    hardware("h100-sxm"),
    intra_link=_LINK,
    inter_link=_LINK,
    backend="cpu",
    kernel_launch_seconds=1e-12,
    memory_bandwidth_bytes_per_second=1e9,
)
"""Devices on which sharing even little work pays off, so that plans of small programs
communicate."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a recipe without a wrong result.

    - `kind`: "equal", the name of the error that its budget ended in, or the problem of the program
      itself. "ill-conditioned" means that the plan differs from the program no more than the
      program differs from itself, evaluated in another way.
    - `recomputed`, `collectives`: the number of operators that run twice, and of kinds of
      collectives.
    - `difference`: the largest difference, relative to the tolerance.
    - `recomputed_anyhow`: the number of operators that run twice in the random plan of the same
      program.
    """

    kind: str
    operators: int = 0
    recomputed: int = 0
    collectives: int = 0
    difference: float = 0.0
    recomputed_anyhow: int = 0


class WrongResult(AssertionError):
    """A planned function computes another result than the function."""


def check(recipe: Recipe) -> Outcome:
    """Returns the outcome of a recipe.

    **Raises:** `WrongResult`, or any error of planning other than a budget error.
    """
    try:
        return _compared(recipe)
    except WrongResult:
        if recipe.dtype != "bfloat16":
            raise
        # Near a jump, such as a maximum over equal numbers, rounding changes results by more than
        # nudged parameters show.
        _compared(replace(recipe, dtype="float32"))
        return Outcome("ill-conditioned")
    except jax.errors.JaxRuntimeError as error:
        if "fft_thunk" not in str(error):
            raise
        # XLA:CPU itself chooses the operand's layout, in programs with and without a plan.
        return Outcome("XLA:CPU runs no FFT of a transposed operand")


def _compared(recipe: Recipe) -> Outcome:
    function, args = program(recipe), arguments(recipe)
    try:
        expected = jax.tree.map(_numpy, jax.jit(function)(*args))
    except jax.errors.JaxRuntimeError:  # XLA:CPU cannot run an FFT of a transposed operand.
        return Outcome("fails without a plan")
    donated = 0 if recipe.donate and recipe.mode == "train" else ()
    planned = kiwi.jit(
        function,
        mesh_shape=recipe.mesh_shape,
        donate_argnums=donated,
        planner=recipe.planner,
        open_loops=planner_named(recipe.planner).opens_loops,
        profile=SHARING,
        verify="cpu" if recipe.verify else None,
        time_limit_seconds=TIME_LIMIT_SECONDS,
        gap=0.05,
        respect_user_checkpoint=recipe.respect_user_checkpoint,
    )
    plan = planned.plan(*args)
    recomputed_anyhow = _check_anyhow(planned, args, expected, recipe)
    if recipe.budget_share is not None:
        budget = max(1, int(recipe.budget_share * plan.peak_bytes))
        planned = planned.with_options(memory_budget=budget)
        try:
            plan = planned.plan(*args)
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            return Outcome(_of_budget(error, budget), recomputed_anyhow=recomputed_anyhow)
        if recipe.verify and not plan.fits:
            raise WrongResult(f"peak {plan.peak_bytes} over the budget {budget}")
    difference = _checked(planned(*args), args, expected, recipe)
    if difference > 1:
        return Outcome("ill-conditioned", recomputed_anyhow=recomputed_anyhow)
    counts = plan.residency_counts()
    return Outcome(
        "equal",
        len(plan.decisions),
        counts["recompute"],
        len(plan.estimate.collectives),
        difference,
        recomputed_anyhow,
    )


def _checked(results: Any, args: Any, expected: Any, recipe: Recipe) -> float:
    """Returns the difference between the results and the expected ones, relative to the tolerance.

    **Raises:** `WrongResult` if the difference is larger than the program's difference from itself.
    """
    difference = _difference(jax.tree.map(_numpy, results), expected, recipe.dtype)
    if difference > 1:
        own_spread = spread(program(recipe), args, expected, recipe.dtype)
        if difference > _MOST_SPREADS * own_spread:
            raise WrongResult(f"{difference} times the tolerance; without a plan {own_spread}")
    return difference


def _check_anyhow(planned: kiwi.PlannedFunction, args: Any, expected: Any, recipe: Recipe) -> int:
    """Runs a random plan of the same problem, and returns the number of operators that it computes
    twice.

    **Raises:** `WrongResult` if the plan computes another result.
    """
    if planned.options.planner not in ("joint", "alpa"):
        return 0  # Other planners have no problem to choose from.
    seed = len(repr(replace(recipe, dtype="float32")))
    results, execution = run_random_plan(planned, args, seed)
    _checked(results, args, expected, recipe)
    return len(execution.recomputed)


def _of_budget(error: KiwiError, budget: int) -> str:
    """Returns the error's name. Raises `WrongResult` if the least budget that the error names is
    not larger than the budget."""
    least = getattr(error, "least_peak_bytes", None)
    if least is not None and least <= budget:
        raise WrongResult(f"{type(error).__name__} at {budget} though {least} is said to do")
    return type(error).__name__


def _numpy(x: Any) -> np.ndarray:
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x.astype("float32") if x.dtype == jax.numpy.bfloat16 else x)


def _difference(results: Any, expected: Any, dtype: str) -> float:
    """Returns the largest difference of any result, relative to the tolerance."""
    if jax.tree.structure(results) != jax.tree.structure(expected):
        raise WrongResult(f"{jax.tree.structure(results)}, not {jax.tree.structure(expected)}")
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True)
    return max((_distance(r, e) / TOLERANCE[dtype] for r, e in pairs), default=0.0)


def spread(function: Any, args: Any, expected: Any, dtype: str) -> float:
    """Returns the difference of the unplanned program from itself: evaluated operator by operator,
    and with nudged parameters.

    Near a jump, or in a division by almost zero, rounding decides the result. A plan changes what
    XLA fuses and may then differ as much, which is not an error.
    """
    params, *rest = args
    nudged = jax.tree.map(lambda p: p * (1 + NUDGE[dtype]), params)
    others = [jax.jit(function)(nudged, *rest)]
    with jax.disable_jit():
        others.append(function(*args))
    return max(_difference(jax.tree.map(_numpy, other), expected, dtype) for other in others)


def _distance(result: np.ndarray, expected: np.ndarray) -> float:
    if (result.shape, result.dtype) != (expected.shape, expected.dtype):
        raise WrongResult(f"{result.dtype}{result.shape}, not {expected.dtype}{expected.shape}")
    if result.dtype.kind != "f":
        return 0.0 if np.array_equal(result, expected) else np.inf
    if not np.array_equal(np.isfinite(result), np.isfinite(expected)):
        return np.inf
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    scale = max(LEAST_SCALE, float(np.abs(expected[finite]).max()))
    return float(np.abs(result[finite] - expected[finite]).max()) / scale


def forget() -> None:
    """Frees the programs that jax caches for each compiled function."""
    jax.clear_caches()
    gc.collect()
