"""The requests whose attempts are counted: steps, hardware and budgets of other benchmarks."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import kiwi

MESH_SHAPE = (2, 4)
LAYERS = {"mlp_adamw": 8, "gpt_with_metrics": 12, "gpt_13b_bfloat16": 4, "resnet": 16, "dcgan": 4}
"""The number of layers of some programs of `benchmarks.planning_time`. All other programs have
12."""

SHARES: Mapping[str, float | None] = {"free": None, "80": 0.8, "60": 0.6}
"""The budgets, as shares of the compiled peak of the plan without a budget. None: no budget."""


HOST: Mapping[str, Any] = {"host_memory_budget": "64GiB"}
ASKED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "offloading": ("mlp", HOST),
    "offloading_in_scans": ("llama", HOST),
    "arguments_on_the_host": ("mlp", {**HOST, "offload_arguments": True}),
    "schedule": ("mlp", {"planner": "rotor", "mesh_shape": (1,)}),
}
"""Requests for what no other suite asks for: a model of the goldens and the options."""


@dataclass(frozen=True)
class Case:
    """One step on one kind of hardware, under some budgets.

    - `suite`: "goldens", "fidelity", "field", "planning_time" or "asked".
    - `program`: the name of the step in its suite.
    - `target`: a target of the goldens, or a profile for the other suites.
    """

    suite: str
    program: str
    target: str

    @property
    def name(self) -> str:
        """The case's key in the results, without the budget."""
        return f"{self.suite} {self.program} {self.target}"

    def request(self) -> "Request":
        """Returns the request to plan. Imports the suite's programs here, because some take seconds
        to import."""
        return _REQUESTS[self.suite](self)


@dataclass(frozen=True, eq=False)
class Request:
    """A step to plan, and its budgets: in bytes, or as shares of the peak without a budget."""

    step: kiwi.PlannedFunction
    arguments: tuple[Any, ...]
    budgets: Mapping[str, float | int | None]
    context: Callable[[], Any] = field(default=nullcontext)


def _golden(case: Case) -> Request:
    from benchmarks.goldens.cells import TARGETS, Series
    from benchmarks.goldens.models import MODELS
    from benchmarks.goldens.planning import OPTIONS
    from benchmarks.goldens.work import RECORDED

    model, target = MODELS[case.program], TARGETS[case.target]
    series = Series(case.program, case.target)
    recorded = json.loads((RECORDED / f"{series.name}.json").read_text("utf-8"))
    step = kiwi.jit(model.step(), profile=target.profile, verify=target.verify, **OPTIONS)
    budgets = {budget: recorded["budgets_bytes"].get(budget) for budget in series.budgets}
    return Request(step, model.arguments, budgets)


def _planned(function: Any, profile: str, donated: Any) -> kiwi.PlannedFunction:
    return kiwi.jit(
        function,
        mesh_shape=MESH_SHAPE,
        profile=profile,
        donate_argnums=donated,
        plan_cache=False,
    )


def _of_field(case: Case) -> Request:
    from benchmarks.field.programs import PROGRAMS

    program = PROGRAMS[case.program]
    step, _ = program.make()
    shares = {name: SHARES[name] for name in ("free", "60")}
    planned = _planned(step, case.target, program.donated)
    return Request(planned, program.make_args(), shares, program.context)


def _of_fidelity(case: Case) -> Request:
    from benchmarks.fidelity.models import MODELS

    model = MODELS[case.program]
    step = model.module.make_train_step(model.config)
    state, batch = model.module.abstract_state, model.module.abstract_batch
    arguments = state(model.config), batch(model.config)
    return Request(_planned(step, case.target, 0), arguments, SHARES)


def _of_planning_time(case: Case) -> Request:
    from benchmarks.planning_time.programs import PROGRAMS

    program = PROGRAMS[case.program]
    step, arguments = program.make(LAYERS.get(case.program, 12))
    shares = {name: SHARES[name] for name in ("free", "60")}
    return Request(_planned(step, case.target, program.donated), arguments, shares)


def _asked(case: Case) -> Request:
    from benchmarks.goldens.models import MODELS

    model, options = ASKED[case.program]
    step = kiwi.jit(
        MODELS[model].step(),
        **{"mesh_shape": MESH_SHAPE, **options},
        profile=case.target,
        donate_argnums=0,
        plan_cache=False,
    )
    return Request(step, MODELS[model].arguments, {name: SHARES[name] for name in ("free", "80")})


_REQUESTS: Mapping[str, Callable[[Case], Request]] = {
    "goldens": _golden,
    "planning_time": _of_planning_time,
    "fidelity": _of_fidelity,
    "field": _of_field,
    "asked": _asked,
}
SUITES = tuple(_REQUESTS)


def cases(suites: tuple[str, ...], profiles: tuple[str, ...]) -> Iterator[Case]:
    """Yields all cases of some suites. `profiles` are used for the suites that name no hardware
    themselves."""
    from benchmarks.fidelity.models import MODELS
    from benchmarks.field.programs import PROGRAMS as FIELD
    from benchmarks.goldens.cells import all_series
    from benchmarks.planning_time.programs import PROGRAMS as TIMED

    if "goldens" in suites:
        for series in all_series():
            yield Case("goldens", series.model, series.target)
    suites_of_programs = {
        "planning_time": TIMED,
        "fidelity": MODELS,
        "asked": ASKED,
        "field": FIELD,
    }
    for suite, programs in suites_of_programs.items():
        for profile in profiles if suite in suites else ():
            for program in programs:
                if profile in (getattr(programs[program], "profiles", ()) or (profile,)):
                    yield Case(suite, program, profile)
