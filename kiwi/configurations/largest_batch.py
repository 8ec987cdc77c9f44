"""The largest batch that fits: it is planned and compiled, and the next larger batch is refused.

1. The batch starts at one sample per device and doubles until it is refused.
2. Multiples of the number of devices are bisected between the last batch that fits and the first
   batch that does not: among batches that can be cut alike, a larger batch needs more memory.
3. Batches between two such multiples cannot be cut over all devices. They are tried one by one, the
   largest first: whether one fits says nothing about the others.
4. The batch next to the answer is refused only after all that `kiwi.plan` tries has failed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import Any

from typing_extensions import Unpack

from kiwi.configurations.configuration import Configuration
from kiwi.configurations.step_maker import StepMaker, StepToSearch, made_step
from kiwi.errors import (
    BudgetNotMetError,
    InfeasibleBudgetError,
    InfeasibleError,
    InvalidArgumentError,
    KiwiError,
    NoPlanFoundError,
)
from kiwi.messages import topics
from kiwi.options import OptionTypes, shows_options
from kiwi.planners.planning import check_settings
from kiwi.planners.registry import planner_named
from kiwi.plans.plan import Plan
from kiwi.xla.compilers import prepared

DEFAULT_EFFORT = "quick"
"""The effort of each plan, unless the caller gives another."""

MOST_BATCH = 2**30
"""If a batch of this size fits, the batch takes no memory, and an error says so."""


@dataclass(frozen=True, eq=False)
class LargestBatch:
    """The largest batch that fits a budget.

    - `batch_size`: the samples of a step.
    - `plan`: the plan for this batch, compiled unless `verify` is None.
    - `next_batch`: the next larger batch.
    - `refusal`: the error that says why the next batch does not fit.
    - `tried`: all batches that were planned, and whether they fit.
    """

    batch_size: int
    plan: Plan
    next_batch: int
    refusal: KiwiError
    tried: tuple[tuple[int, bool], ...]

    @property
    def proof(self) -> str:
        """The reason why the next batch is refused: "bound" (no plan is predicted to fit),
        "compiler" (programs were compiled, and none fits), "search" (no plan was found), or
        "make_step" (there is no such step)."""
        if isinstance(self.refusal, BudgetNotMetError):
            return "compiler" if self.refusal.plan.compiled is not None else "search"
        if isinstance(self.refusal, InvalidArgumentError):
            return "make_step"
        bound = getattr(self.refusal, "least_peak_bound_bytes", None) or 0
        return "bound" if bound > self.plan.memory_budget_bytes else "search"


@shows_options
def largest_batch(
    make_step: Callable[..., Any] | str,
    *,
    microbatches: int | None = None,
    stages: int | None = None,
    multiple_of: int = 1,
    **options: Unpack[OptionTypes],
) -> LargestBatch:
    """Finds the largest batch of a training step that fits a mesh and a budget.

    - `make_step`: as in `kiwi.search`. It takes `batch_size`, the samples of a step on all devices
      together.
    - `microbatches`, `stages`: the other arguments of `make_step`.
    - `multiple_of`: only multiples of this number are tried. With 1, the answer is exact to one
      sample.
    - `options`: the options of `kiwi.jit`. The effort is "quick" by default.

    **Raises:** `InfeasibleError` if no batch fits; `InvalidArgumentError` if every batch fits, or
    if `make_step` has no parameter `batch_size`.
    """
    if multiple_of < 1:
        raise InvalidArgumentError(
            f"multiple_of={multiple_of} is not positive.", topic=topics.OUT_OF_RANGE
        )
    maker = StepMaker(make_step)
    if "batch_size" not in dict(maker.parameters()):
        raise InvalidArgumentError(
            "make_step has no parameter batch_size.",
            topic=topics.MISSING_PARAMETER,
            suggestion="def make_step(batch_size): ...",
        )
    plan_options: dict[str, Any] = {"effort": DEFAULT_EFFORT, **options}
    return _Trials(maker, (microbatches, stages), plan_options).largest(multiple_of)


class _Trials:
    """Plans each batch once, or twice if the first try finds nothing.

    The first try searches once. A thorough try does everything that `kiwi.plan` does before it
    refuses a budget, which takes several times as long.
    """

    def __init__(
        self, maker: StepMaker, rest: tuple[int | None, ...], options: dict[str, Any]
    ) -> None:
        self._maker, self._rest, self._options = maker, rest, options
        self._plans: dict[int, Plan] = {}
        self._first_tries: dict[int, KiwiError] = {}
        self._refusals: dict[int, KiwiError] = {}

    def largest(self, multiple_of: int) -> LargestBatch:
        """The largest multiple of `multiple_of` that fits."""
        coarse = lcm(multiple_of, self._made(multiple_of).planned.settings.mesh.size)
        batch = self._last_that_fits(self._bisected(coarse), coarse)
        between = range(batch + coarse - multiple_of, batch, -multiple_of)
        batch = next((size for size in between if self._fits(size)), batch)
        batch = self._last_that_fits(batch, multiple_of)
        if batch not in self._plans:
            refusal = self._refusals[multiple_of]
            raise InfeasibleError(
                f"Not even a batch of {multiple_of} fits. {refusal.what}",
                topic=topics.NO_BATCH_FITS,
                cause=refusal.cause,
                suggestion=refusal.suggestion,
            )
        tried = sorted({*self._plans, *self._first_tries, *self._refusals})
        after = batch + multiple_of
        return LargestBatch(
            batch,
            self._plans[batch],
            after,
            self._refusals[after],
            tuple((size, size in self._plans) for size in tried),
        )

    def _made(self, batch: int) -> StepToSearch:
        step_to_search = made_step(self._maker, Configuration("", (), batch, *self._rest))
        return step_to_search.with_options(**self._options)

    def _bisected(self, coarse: int) -> int:
        """Returns the largest multiple of `coarse` that fits at the first try; 0 if none does."""
        fits, refused = 0, coarse
        while self._fits(refused):
            fits, refused = refused, 2 * refused
            if refused > MOST_BATCH:
                raise InvalidArgumentError(
                    f"A batch of {fits} samples fits, and so does every other one.",
                    topic=topics.EVERY_BATCH_FITS,
                )
        while refused - fits > coarse:
            middle = (fits + refused) // (2 * coarse) * coarse
            fits, refused = (middle, refused) if self._fits(middle) else (fits, middle)
        return fits

    def _last_that_fits(self, batch: int, by: int) -> int:
        """Returns the last batch that fits before the first batch that a thorough try refuses,
        starting from `batch`, which fits or is 0, in steps of `by`."""
        while self._fits(batch + by, thoroughly=True):
            batch += by
        return batch

    def _fits(self, batch: int, *, thoroughly: bool = False) -> bool:
        known = {*self._plans, *self._refusals, *(() if thoroughly else self._first_tries)}
        if batch not in known:
            planned = self._planned(batch, thoroughly)
            if isinstance(planned, Plan):
                self._plans[batch] = planned
            else:
                (self._refusals if thoroughly else self._first_tries)[batch] = planned
        return batch in self._plans

    def _planned(self, batch: int, thoroughly: bool) -> Plan | KiwiError:
        try:
            step_to_search = self._made(batch)
        except InvalidArgumentError as error:
            return error
        step, settings = step_to_search.traced, step_to_search.planned.settings
        check_settings(settings)
        planner, start = planner_named(settings.planner), None
        try:
            with prepared(settings.verify, settings.mesh):
                if not thoroughly:
                    start = planner.start_for(step, settings.memory_budget_bytes, settings)
                return planner.make(step, settings, start)
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            return error
