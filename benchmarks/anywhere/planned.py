"""`python -m benchmarks.anywhere.planned CASE EFFORT`: plans a case, and prints its rows as
JSON."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

import kiwi
from benchmarks.fidelity.models import MODELS, Model
from benchmarks.hardware import priced_as
from examples import gpt, mlp
from kiwi.mesh import Hardware

SHARES = (0.8, 0.6, 0.45)


@dataclass(frozen=True)
class Case:
    """A step, its mesh and hardware, and the compiler of the check; None for no check."""

    model: Model
    profile: str | Hardware
    mesh_shape: tuple[int, ...]
    verify: str | None = None


CASES: Mapping[str, Case] = {
    "mlp": Case(
        Model(mlp, mlp.MlpConfig(layers=4, width=256, batch=4096, optimizer="adam")),
        priced_as("v100-sxm2", "cpu"),
        (2, 4),
        verify="cpu",
    ),
    "gpt": Case(MODELS["gpt"], "h100-sxm", (2, 4)),
    "gpt-13b-4l": Case(Model(gpt, gpt.SIZES["gpt-13b-4l"]), "v100-sxm2", (2, 4)),
    "vit": Case(MODELS["vit"], "a100-sxm", (8,)),
}


@dataclass(frozen=True)
class Planned:
    """The result of planning one case under one budget.

    - `decisions`: a digest of all decisions of the plan.
    - `error`: the refusal if there is no plan; otherwise empty.
    - `process_seconds`, `seconds`: the time of planning, of this process's processor and by the
      clock.
    """

    share: float
    budget_bytes: int
    decisions: str
    step_seconds: float | None
    work: int
    is_repeatable: bool
    error: str
    process_seconds: float
    seconds: float


def main() -> None:
    """Plans the case under each budget, and prints the rows."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    case, effort = CASES[sys.argv[1]], sys.argv[2]
    planned, arguments = step_of(case)
    free = planned.with_options(memory_budget="1TiB", verify=None, effort="quick").plan(*arguments)
    options = {"verify": case.verify, "effort": effort}
    rows = []
    for share in SHARES:
        budget_bytes = int(share * free.peak_bytes)
        tried = planned.with_options(memory_budget=budget_bytes, **options)
        rows.append(replace(_row(tried, arguments, budget_bytes), share=share))
    print(json.dumps([asdict(row) for row in rows]))


def step_of(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step to plan and its abstract arguments."""
    module, config = case.model.module, case.model.config
    planned = kiwi.jit(
        module.make_train_step(config),
        mesh_shape=case.mesh_shape,
        profile=case.profile,
        donate_argnums=0,
        time_limit_seconds=1e5,
    )
    return planned, (module.abstract_state(config), module.abstract_batch(config))


def _row(planned: Any, arguments: tuple[Any, ...], budget_bytes: int) -> Planned:
    started, cpu_started = time.monotonic(), time.process_time()
    try:
        plan, error = planned.plan(*arguments), ""
    except kiwi.errors.BudgetNotMetError as refusal:
        plan, error = refusal.plan, refusal.what
    except kiwi.errors.KiwiError as refusal:
        plan, error = None, refusal.what
    took = time.process_time() - cpu_started, time.monotonic() - started
    if plan is None:
        digest = hashlib.sha256(error.encode()).hexdigest()[:16]
        return Planned(0.0, budget_bytes, digest, None, 0, True, error, *took)
    decided = repr((plan.decisions, plan.execution.schedule, plan.execution.kept_copies))
    result = plan.solve_result
    digest = hashlib.sha256(decided.encode()).hexdigest()[:16]
    seconds = plan.estimate.step_seconds
    outcome = seconds, result.work, result.deterministic, error
    return Planned(0.0, budget_bytes, digest, *outcome, *took)


if __name__ == "__main__":
    main()
