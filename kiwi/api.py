"""`kiwi.plan` and `kiwi.jit`.

JAX function ── trace ──▶ program ── lower ──▶ HloGraph ── group ──▶ units
units + mesh ── enumerate and price ──▶ Problem ── solve ──▶ solution
solution ──▶ Plan ── emit ──▶ jax.jit ── compile ──▶ memory and collectives
"""

import difflib
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import jax
from typing_extensions import Unpack

from kiwi.calls.constraints import Constraints
from kiwi.calls.host_memory import OnHost, given_memories, host_arguments
from kiwi.calls.signature import (
    Arguments,
    Call,
    JitOptions,
    bind,
    check_function,
    function_name,
    parameter_names,
)
from kiwi.campaign.host_arguments import plan_with_host_arguments
from kiwi.corrections import NO_CORRECTIONS, Corrections
from kiwi.errors import InvalidArgumentError
from kiwi.hlo import jax_internals
from kiwi.hlo.trips import DEFAULT_TRIPS, WhileTrips
from kiwi.memory.heap import HEAP_LOOPS
from kiwi.memory.order_search import ORDER_LOOPS
from kiwi.mesh import Hardware, ProfileTable
from kiwi.messages import topics
from kiwi.options import (
    Mesh,
    Options,
    OptionTypes,
    PlannerObject,
    Settings,
    documents_options,
    options_among,
)
from kiwi.planners.by_names import plan_by_names, settings_by_names
from kiwi.planners.planning import check_settings, make_plan, trace_call
from kiwi.planners.registry import planner_named
from kiwi.plans.dispatch import REFUSED, Dispatched, check_same_plan, users_mesh
from kiwi.plans.plan import Plan
from kiwi.plans.plan_cache import PlanCache
from kiwi.problem.step import StepToPlan
from kiwi.quiet import start_backends
from kiwi.solver.result import OnProgress
from kiwi.solver.warm_up import compile_loops
from kiwi.targets.registry import planned_target
from kiwi.timings import measured
from kiwi.xla.compilers import prepared, resolved


@documents_options
def plan(
    fun: "Callable[..., Any] | PlannedFunction",
    *args: Any,
    mesh_shape: Sequence[int] | None = None,
    mesh: Mesh | None = None,
    memory_budget: int | str | None = None,
    host_memory_budget: int | str | None = None,
    profile: str | Path | Hardware | ProfileTable = "h100-sxm",
    topology: str | None = None,
    num_slices: int | None = None,
    axis_names: Sequence[str] | None = None,
    planner: str | PlannerObject = "joint",
    solver: str = "auto",
    effort: str = "normal",
    time_limit_seconds: float = 600.0,
    gap: float = 0.01,
    seed: int = 0,
    verify: str | None = "auto",
    granularity: str = "operators",
    respect_user_checkpoint: bool = False,
    respect_user_shardings: bool = True,
    while_trips: WhileTrips = DEFAULT_TRIPS,
    equal_layers: bool = True,
    corrections: Corrections = NO_CORRECTIONS,
    on_progress: OnProgress | None = None,
    any_time: bool = False,
    open_loops: bool = True,
    offload_arguments: bool = False,
    plan_cache: bool = True,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    constraints: Constraints | None = None,
    **kwargs: Any,
) -> Plan:
    """Plans `fun(*args, **kwargs)` for a mesh. No devices are needed.

    - `fun`: a function of pytrees of arrays, such as a training step. It is traced once.
    - `args`: arrays or `jax.ShapeDtypeStruct`s.
    - `kwargs`: keyword arguments of `fun`. A keyword argument with the name of an option needs
      `kiwi.jit(fun, ...).plan(...)`.

    **Raises:** subclasses of `kiwi.errors.KiwiError`: `InfeasibleBudgetError` (with the
    smallest budget found), `NoPlanFoundError`, `UnknownProfileError`, `UnknownPlannerError`,
    `InvalidMeshError`, `InvalidSizeError`, `InvalidFunctionError`, `InvalidArgumentError`,
    `ShardingConflictError`, `LoopNotSupportedError`, `CompileCheckError`,
    `CompilerUnavailableError`.
    """
    options = options_among(locals())
    function = _unwrapped(fun)
    _check_keywords(function, kwargs)
    return PlannedFunction(function, Options(**options)).plan(*args, **kwargs)


@overload
def jit(fun: Callable[..., Any], **options: Unpack[OptionTypes]) -> "PlannedFunction": ...
@overload
def jit(**options: Unpack[OptionTypes]) -> "Callable[[Callable[..., Any]], PlannedFunction]": ...
@documents_options
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    mesh_shape: Sequence[int] | None = None,
    mesh: Mesh | None = None,
    memory_budget: int | str | None = None,
    host_memory_budget: int | str | None = None,
    profile: str | Path | Hardware | ProfileTable = "h100-sxm",
    topology: str | None = None,
    num_slices: int | None = None,
    axis_names: Sequence[str] | None = None,
    planner: str | PlannerObject = "joint",
    solver: str = "auto",
    effort: str = "normal",
    time_limit_seconds: float = 600.0,
    gap: float = 0.01,
    seed: int = 0,
    verify: str | None = "auto",
    granularity: str = "operators",
    respect_user_checkpoint: bool = False,
    respect_user_shardings: bool = True,
    while_trips: WhileTrips = DEFAULT_TRIPS,
    equal_layers: bool = True,
    corrections: Corrections = NO_CORRECTIONS,
    on_progress: OnProgress | None = None,
    any_time: bool = False,
    open_loops: bool = True,
    offload_arguments: bool = False,
    plan_cache: bool = True,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    constraints: Constraints | None = None,
) -> Any:
    """`jax.jit` that plans: sharding and recomputation are chosen on the first call.

    `jit` is a decorator (`@kiwi.jit`), a factory of decorators (`@kiwi.jit(mesh_shape=(2, 4))`) and
    a function (`kiwi.jit(fun, mesh_shape=(2, 4))`). Without `mesh_shape` and `mesh`, the plan is
    for the mesh of the context (`jax.set_mesh`), or else for one axis over all attached devices.
    Results lie on the mesh of the context or on the given `mesh` if it has the plan's axes, so that
    the rest of the program can use them.

    Plans are cached in memory by shapes, dtypes, pytree structure and static values, and on disk
    (`plan_cache`). Arguments that lie elsewhere are moved to the plan's shardings.

    **Raises:** errors about options at once; on the first call the errors of `kiwi.plan`,
    `NotEnoughDevicesError` if the mesh is larger than the attached devices, and `PlanMismatchError`
    if the processes of one program have different plans.
    """
    options = options_among(locals())
    if fun is None:
        return functools.partial(jit, **options)
    return PlannedFunction(_unwrapped(fun), Options(**options))


def _unwrapped(fun: Any) -> Callable[..., Any]:
    check_function(fun)
    return fun.function if isinstance(fun, PlannedFunction) else fun


def _check_keywords(fun: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Checks that keywords are arguments of the function. A keyword that is not is as a rule a
    misspelt option.

    **Raises:** `InvalidArgumentError` for an unknown keyword.
    """
    known = parameter_names(fun)
    unknown = [name for name in kwargs if known is not None and name not in known]
    if unknown:
        name, options = unknown[0], [option.name for option in fields(Options)]
        near = difflib.get_close_matches(name, [*options, *(known or ())], 1)
        raise InvalidArgumentError(
            f"kiwi.plan has no option {name!r}, and {function_name(fun)} takes no such argument.",
            topic=topics.NO_SUCH_OPTION_NAME,
            suggestion=f"{near[0]}=" if near else None,
        )


class PlannedFunction:
    """A function under a plan, made by `kiwi.jit`. It is called like the function that it wraps."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fun)
        self.options = options
        self.function = fun
        self._table = options.table()
        options.budget_bytes(self._table)  # Raises at once for a budget that is no size.
        self._jit_options = JitOptions.of(fun, vars(options))
        self._traced: dict[Any, StepToPlan] = {}
        self._plans: dict[Any, Plan] = {}
        self._settings: dict[Any, Settings] = {}
        self._dispatched: dict[Any, list[Dispatched]] = {}
        self._latest: Dispatched | None = None
        if options.mesh_shape is not None or options.mesh is not None:
            check_settings(self.settings)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Returns the function as a method, whose first argument is the instance."""
        return self if instance is None else types.MethodType(self, instance)

    def with_options(self, **changes: Unpack[OptionTypes]) -> "PlannedFunction":
        """The same function under other options, for example to compare budgets, meshes and
        profiles. The function is not traced again for the same arguments."""
        derived = PlannedFunction(self.function, replace(self.options, **changes))
        if derived._jit_options == self._jit_options:
            derived._traced = self._traced
        return derived

    @property
    def settings(self) -> Settings:
        """The settings of plans: the options, the mesh, the budget in bytes, and the compiler.

        If the options name no mesh, the mesh of the context (`jax.set_mesh`) is used.
        """
        return self._settings_under(jax_internals.context_mesh())

    def _settings_under(self, context: Any) -> Settings:
        """Returns the settings for a caller with the mesh `context` in the context; None for
        none."""
        key = context if self.options.takes_context_mesh else None
        if key not in self._settings:
            settings = self.options.settings(self._table, key)
            verify, notes = resolved(settings.verify, settings.mesh.hardware)
            planner = planner_named(settings.planner)
            settings = replace(settings, verify=verify, notes=notes)
            self._settings[key] = planner.settings_for(settings)
        return self._settings[key]

    def traced(self, *args: Any, **kwargs: Any) -> StepToPlan:
        """The function, traced and lowered for these arguments. The result is cached."""
        start_backends()
        call = bind(self.function, self._jit_options, args, kwargs)
        return self._trace_of(call, self._on_host(call))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments, which may be `jax.ShapeDtypeStruct`s. The result is
        cached."""
        start_backends()
        return self._plan_of(bind(self.function, self._jit_options, args, kwargs))

    @jax_internals.without_mesh()
    def _plan_of(self, call: Call) -> Plan:
        if call.traced_key not in self._plans:
            settings = self._settings_under(call.mesh)
            compile_loops((HEAP_LOOPS,), (ORDER_LOOPS,))
            with measured(), prepared(settings.verify, settings.mesh):
                self._plans[call.traced_key] = self._made(call, settings)
        return self._plans[call.traced_key]

    def _made(self, call: Call, settings: Settings) -> Plan:
        cache = PlanCache.of_user() if self.options.plan_cache else None
        may_offload = planner_named(settings.planner).may_offload(settings)
        if settings.granularity == "names":
            on_host = self._on_host(call)
            return plan_by_names(
                lambda residencies: self._trace_of(call, on_host, residencies),
                settings_by_names(settings),
                functools.partial(make_plan, cache=cache),
            )
        if not (self.options.offload_arguments and may_offload):
            return make_plan(self._trace_of(call, self._on_host(call)), settings, cache)
        return plan_with_host_arguments(
            functools.partial(self._trace_of, call),
            given_memories(call, self.options.constraints or Constraints()),
            settings,
            functools.partial(make_plan, cache=cache),
        )

    _trace_options: Mapping[str, Any] = MappingProxyType({})
    """The options of `kiwi.hlo.tracing.trace` that a saved plan was made with; empty otherwise."""

    @jax_internals.without_mesh()
    def _trace_of(
        self, call: Call, on_host: OnHost, residencies: Mapping[str, str] | None = None
    ) -> StepToPlan:
        settings = self._settings_under(call.mesh)
        if residencies is not None:
            settings = settings_by_names(settings)
        keep, opened = settings.respect_user_checkpoint, self.options.open_loops
        trips, follows = settings.while_trips, settings.respect_user_shardings
        hardware = settings.mesh.hardware
        target = planned_target(settings.verify, hardware)
        facts = target.facts(hardware)
        known_axes = settings.mesh.shape, settings.mesh.axis_names
        named = None if residencies is None else tuple(sorted(residencies.items()))
        key = (call.traced_key, on_host, keep, opened, facts.target, str(trips), follows, named)
        for known in (key, (key, known_axes)):
            if known in self._traced:
                return self._traced[known]
        trace_options = {"keep_checkpoints": keep, "open_loops": opened, "while_trips": trips}
        trace_options |= {"fetches_elements": facts.may_offload(in_scan=True)}
        trace_options |= {"follows_shardings": follows}
        trace_options |= {"platforms": target.compiler.platforms, "residencies": residencies}
        step = trace_call(
            call,
            on_host,
            facts.fusion,
            mesh=settings.mesh,
            **trace_options | dict(self._trace_options),
        )
        # A trace under the plan's mesh is valid only for this mesh.
        step_key = key if step.call.context == call.context else (key, known_axes)
        self._traced[step_key] = step
        return step

    def _on_host(self, call: Call) -> OnHost:
        return OnHost(host_arguments(call, self.options.constraints or Constraints()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the planned function. Arguments of a new signature are planned for first.

        The plan that ran last is tried first, because `jax.jit` itself detects whether the
        arguments fit. During a trace, the planned program becomes part of the traced program.
        """
        mesh = jax_internals.context_mesh()
        if jax_internals.is_tracing():
            arguments = Arguments.of(self.function, self._jit_options, args, kwargs)
            with jax.ensure_compile_time_eval():
                dispatched = self._dispatched_for(arguments, mesh, args, kwargs)
            return dispatched.trace(arguments)
        if self._latest is not None and self._latest.is_under(mesh):
            try:
                return self._latest.run(*args, **kwargs)
            except REFUSED:
                pass  # Another signature, or arguments that have to be moved.
        arguments = Arguments.of(self.function, self._jit_options, args, kwargs)
        self._latest = self._dispatched_for(arguments, mesh, args, kwargs)
        return self._latest.move_and_run(arguments)

    def _dispatched_for(
        self, arguments: Arguments, mesh: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        """Returns the dispatched plan for arguments: a known plan, or a new one."""
        known = self._dispatched.setdefault((arguments.key, mesh), [])
        dispatched = next((candidate for candidate in known if candidate.is_for(arguments)), None)
        if dispatched is None:
            call = bind(self.function, self._jit_options, args, kwargs)
            dispatched = self._newly_dispatched(call, mesh)
            known.append(dispatched)
        return dispatched

    @jax_internals.without_mesh()
    def _newly_dispatched(self, call: Call, context: Any) -> Dispatched:
        start_backends()
        # Before planning, so that the error for too few devices comes at once.
        mesh = users_mesh(self._settings_under(call.mesh).mesh, self.options.mesh, call.mesh)
        plan = self._plan_of(call)
        check_same_plan(plan, mesh)
        return Dispatched(plan, call, mesh, context)
