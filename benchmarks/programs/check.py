"""Plans a recipe, runs it with and without the plan, and compares."""

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
"""Largest difference of a result, relative to its largest element and `LEAST_SCALE`."""

LEAST_SCALE = 0.05
"""Of results that are 0 but for rounding: sums of some ones that cancel are 1e-6 or so."""

TIME_LIMIT_SECONDS = 2.0

_LINK = Link(1e12, 1e-12)
NUDGE = {"float32": 1e-6, "bfloat16": 2**-8}
"""Relative change of the parameters that results must bear: some units in the last place."""

_MOST_SPREADS = 4

SHARING = replace(
    hardware("h100-sxm"),
    intra_link=_LINK,
    inter_link=_LINK,
    backend="cpu",
    kernel_launch_seconds=1e-12,
    memory_bandwidth_bytes_per_second=1e9,
)
"""Devices on which even little work is worth sharing, so that plans of small programs do."""


@dataclass(frozen=True)
class Outcome:
    """What became of a recipe that is planned right.

    - `kind`: "equal", the name of the typed error that its budget ended in, or what was the matter
      with the program itself: "ill-conditioned" where the plan differs no more than the program
      from itself, evaluated otherwise.
    - `recomputed`, `collectives`: how many operators run twice, and how often devices communicate.
    - `difference`: the largest one, relative to the tolerance.
    - `recomputed_anyhow`: how many operators run twice in the random plan of the same program.
    """

    kind: str
    operators: int = 0
    recomputed: int = 0
    collectives: int = 0
    difference: float = 0.0
    recomputed_anyhow: int = 0


class WrongResult(AssertionError):
    """A planned function that computes something else."""


def check(recipe: Recipe) -> Outcome:
    """**Raises:** `WrongResult`, or whatever planning raises that is no budget error."""
    try:
        return _compared(recipe)
    except WrongResult:
        if recipe.dtype != "bfloat16":
            raise
        # Near a jump, as of a maximum over equal numbers, rounding decides more than nudging tells.
        _compared(replace(recipe, dtype="float32"))
        return Outcome("ill-conditioned")
    except jax.errors.JaxRuntimeError as error:
        if "fft_thunk" not in str(error):
            raise
        # By the layout that it gives the operand itself, in a program with or without a plan.
        return Outcome("XLA:CPU runs no FFT of a transposed operand")


def _compared(recipe: Recipe) -> Outcome:
    function, args = program(recipe), arguments(recipe)
    try:
        expected = jax.tree.map(_numpy, jax.jit(function)(*args))
    except jax.errors.JaxRuntimeError:  # XLA:CPU runs no FFT of a transposed operand
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
    again = _check_anyhow(planned, args, expected, recipe)
    if recipe.budget_share is not None:
        budget = max(1, int(recipe.budget_share * plan.peak_bytes))
        planned = planned.with_options(memory_budget=budget)
        try:
            plan = planned.plan(*args)
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            return Outcome(_of_budget(error, budget), recomputed_anyhow=again)
        if recipe.verify and not plan.fits:
            raise WrongResult(f"peak {plan.peak_bytes} over the budget {budget}")
    difference = _checked(planned(*args), args, expected, recipe)
    if difference > 1:
        return Outcome("ill-conditioned", recomputed_anyhow=again)
    counts = plan.residency_counts()
    return Outcome(
        "equal",
        len(plan.decisions),
        counts["recompute"],
        len(plan.estimate.collectives),
        difference,
        again,
    )


def _checked(results: Any, args: Any, expected: Any, recipe: Recipe) -> float:
    """How far results are from the expected ones, relative to the tolerance.

    **Raises:** `WrongResult` if further than the program is from itself.
    """
    difference = _difference(jax.tree.map(_numpy, results), expected, recipe.dtype)
    if difference > 1:
        itself = spread(program(recipe), args, expected, recipe.dtype)
        if difference > _MOST_SPREADS * itself:
            raise WrongResult(f"{difference} times the tolerance; without a plan {itself}")
    return difference


def _check_anyhow(planned: kiwi.PlannedFunction, args: Any, expected: Any, recipe: Recipe) -> int:
    """Runs a random plan of the same problem; how many operators it computes twice.

    **Raises:** `WrongResult` if it computes something else.
    """
    if planned.options.planner not in ("joint", "alpa"):
        return 0  # Others decide by rules of their own.
    seed = len(repr(replace(recipe, dtype="float32")))
    results, execution = run_random_plan(planned, args, seed)
    _checked(results, args, expected, recipe)
    return len(execution.recomputed)


def _of_budget(error: KiwiError, budget: int) -> str:
    """The error's name; the least budget that it names must be larger."""
    least = getattr(error, "least_peak_bytes", None)
    if least is not None and least <= budget:
        raise WrongResult(f"{type(error).__name__} at {budget} though {least} is said to do")
    return type(error).__name__


def _numpy(x: Any) -> np.ndarray:
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x.astype("float32") if x.dtype == jax.numpy.bfloat16 else x)


def _difference(results: Any, expected: Any, dtype: str) -> float:
    """The largest difference of any result, relative to what is tolerated."""
    if jax.tree.structure(results) != jax.tree.structure(expected):
        raise WrongResult(f"{jax.tree.structure(results)}, not {jax.tree.structure(expected)}")
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True)
    return max((_distance(r, e) / TOLERANCE[dtype] for r, e in pairs), default=0.0)


def spread(function: Any, args: Any, expected: Any, dtype: str) -> float:
    """How far the unplanned program is from itself, evaluated operator by operator, or nudged.

    Near a jump, or where one divides by almost nothing, rounding decides: a plan, which changes
    what XLA fuses, may then differ as much, and nothing follows from it.
    """
    params, *rest = args
    nudged = jax.tree.map(lambda p: p * (1 + NUDGE[dtype]), params)
    others = [jax.jit(function)(nudged, *rest)]
    with jax.disable_jit():
        others.append(function(*args))
    return max(_difference(jax.tree.map(_numpy, o), expected, dtype) for o in others)


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
    """Frees the programs that jax keeps for each function it has compiled."""
    jax.clear_caches()
    gc.collect()
