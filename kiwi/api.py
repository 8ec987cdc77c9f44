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
    """Plans `fun(*args, **kwargs)` for a mesh, without devices.

    - `fun`: a function of pytrees of arrays, e.g. a training step. It is traced once.
    - `args`: arrays or `jax.ShapeDtypeStruct`s.
    - `kwargs`: keyword arguments of `fun`. One with the name of an option needs
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

    Usable bare (`@kiwi.jit`), as a factory (`@kiwi.jit(mesh_shape=(2, 4))`) and as a function
    (`kiwi.jit(fun, mesh_shape=(2, 4))`). Without `mesh_shape` and `mesh` the plan is for the mesh
    of the context (`jax.set_mesh`), or else for one axis over all attached devices. Results lie on
    the mesh of the context or on the given `mesh` if it has the plan's axes, so that the rest of
    the program takes them.

    Plans are cached by shapes, dtypes, pytree structure and static values; and on disk, see
    `plan_cache`. Arguments that live elsewhere are moved to where the plan wants them.

    **Raises:** errors about options at once; on the first call those of `kiwi.plan`,
    `NotEnoughDevicesError` if the mesh is larger than what is attached, and `PlanMismatchError` if
    the processes of one program have different plans.
    """
    options = options_among(locals())
    if fun is None:
        return functools.partial(jit, **options)
    return PlannedFunction(_unwrapped(fun), Options(**options))


def _unwrapped(fun: Any) -> Callable[..., Any]:
    if not callable(fun):
        raise InvalidArgumentError(
            f"kiwi plans functions, not {type(fun).__name__}.",
            topic=topics.NOT_A_FUNCTION,
        )
    return fun.function if isinstance(fun, PlannedFunction) else fun


def _check_keywords(fun: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raises `InvalidArgumentError` for a keyword that is neither an option nor an argument of the
    function. As a rule it is a misspelt option."""
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
    """A function under a plan, made by `kiwi.jit`. It is called as the function that it wraps."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fun)
        self.options = options
        self.function = fun
        self._table = options.table()
        options.budget_bytes(self._table)  # A budget that is no size is refused at once.
        self._jit_options = JitOptions.of(fun, vars(options))
        self._traced: dict[Any, StepToPlan] = {}
        self._plans: dict[Any, Plan] = {}
        self._settings: dict[Any, Settings] = {}
        self._dispatched: dict[Any, list[Dispatched]] = {}
        self._latest: Dispatched | None = None
        if options.mesh_shape is not None or options.mesh is not None:
            check_settings(self.settings)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function as a method, whose first argument is the instance."""
        return self if instance is None else types.MethodType(self, instance)

    def with_options(self, **changes: Unpack[OptionTypes]) -> "PlannedFunction":
        """The same function under other options; it is not traced again for the same arguments.

        For comparing budgets, meshes and profiles.
        """
        other = PlannedFunction(self.function, replace(self.options, **changes))
        if other._jit_options == self._jit_options:
            other._traced = self._traced
        return other

    @property
    def settings(self) -> Settings:
        """What plans are made for: the options, the mesh, the budget in bytes, and the compiler.

        The mesh is that of the context (`jax.set_mesh`) if the options name none.
        """
        return self._settings_under(jax_internals.context_mesh())

    def _settings_under(self, context: Any) -> Settings:
        """The settings for a caller who works under the mesh `context`, or under none."""
        key = context if self.options.takes_context_mesh else None
        if key not in self._settings:
            found = self.options.settings(self._table, key)
            verify, notes = resolved(found.verify, found.mesh.hardware)
            planner = planner_named(found.planner)
            found = replace(found, verify=verify, notes=notes)
            self._settings[key] = planner.settings_for(found)
        return self._settings[key]

    def traced(self, *args: Any, **kwargs: Any) -> StepToPlan:
        """The function traced and lowered for these arguments; cached."""
        start_backends()
        call = bind(self.function, self._jit_options, args, kwargs)
        return self._trace_of(call, self._on_host(call))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments; `jax.ShapeDtypeStruct`s will do. Cached."""
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
    """The options of `kiwi.hlo.tracing.trace` with which a saved plan was made."""

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
        kept = {"keep_checkpoints": keep, "open_loops": opened, "while_trips": trips}
        kept |= {"fetches_elements": facts.may_offload(in_scan=True)}
        kept |= {"follows_shardings": follows}
        kept |= {"platforms": target.compiler.platforms, "residencies": residencies}
        found = trace_call(
            call, on_host, facts.fusion, mesh=settings.mesh, **kept | dict(self._trace_options)
        )
        # A trace under the plan's mesh is for this mesh alone.
        own = key if found.call.context == call.context else (key, known_axes)
        self._traced[own] = found
        return found

    def _on_host(self, call: Call) -> OnHost:
        return OnHost(host_arguments(call, self.options.constraints or Constraints()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the planned function; plans it first for arguments of a new signature.

        The plan that ran last is asked first: `jax.jit` knows by itself whether the arguments are
        its own. Where jax traces, the planned program becomes part of the traced one.
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
        """The plan for arguments: a known one, or a new one."""
        known = self._dispatched.setdefault((arguments.key, mesh), [])
        found = next((d for d in known if d.is_for(arguments)), None)
        if found is None:
            call = bind(self.function, self._jit_options, args, kwargs)
            found = self._newly_dispatched(call, mesh)
            known.append(found)
        return found

    @jax_internals.without_mesh()
    def _newly_dispatched(self, call: Call, context: Any) -> Dispatched:
        start_backends()
        # Before planning, so that a lack of devices is cheap.
        mesh = users_mesh(self._settings_under(call.mesh).mesh, self.options.mesh, call.mesh)
        plan = self._plan_of(call)
        check_same_plan(plan, mesh)
        return Dispatched(plan, call, mesh, context)
