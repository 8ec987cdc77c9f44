"""`kiwi.plan` and `kiwi.jit`.

JAX function ── trace ──▶ program ── lower ──▶ HloGraph ── group ──▶ units
units + mesh ── enumerate and price ──▶ Problem ── solve ──▶ solution
solution ──▶ Plan ── emit ──▶ jax.jit ── compile ──▶ memory and collectives
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, overload

import jax
from typing_extensions import Unpack

from kiwi.calls.constraints import Constraints
from kiwi.calls.host_memory import OnHost, given_memories, host_arguments
from kiwi.calls.signature import Arguments, Call, JitOptions, bind
from kiwi.errors import InvalidArgumentError
from kiwi.memory.heap import HEAP_LOOPS
from kiwi.memory.order_search import ORDER_LOOPS
from kiwi.options import Options, OptionTypes, OptionTypesAndOthers, Settings, shows_options, split
from kiwi.planners.host_arguments import plan_with_host_arguments
from kiwi.planners.planning import check_settings, make_plan, trace_call
from kiwi.planners.registry import planner_named
from kiwi.plans.dispatch import REFUSED, Dispatched, check_same_plan
from kiwi.plans.plan import Plan
from kiwi.plans.plan_cache import PlanCache
from kiwi.problem.step import StepToPlan
from kiwi.solver.warm_up import compile_loops
from kiwi.xla.compilers import predicted_compiler, prepared, resolved


@shows_options(others=True)
def plan(
    fun: "Callable[..., Any] | PlannedFunction", *args: Any, **options: Unpack[OptionTypesAndOthers]
) -> Plan:
    """Plans `fun(*args, **kwargs)` for a mesh, without devices.

    - `fun`: a function of pytrees of arrays, e.g. a training step. It is traced once.
    - `args`: arrays or `jax.ShapeDtypeStruct`s.
    - `options`: those of `kiwi.options.Options`; all others are keyword arguments of `fun`. A
      keyword argument with the name of an option needs `kiwi.jit(fun, ...).plan(...)`.

    **Raises:** subclasses of `kiwi.errors.KiwiError`: `InfeasibleBudgetError` (with the
    smallest budget found), `NoPlanFoundError`, `UnknownProfileError`, `UnknownPlannerError`,
    `InvalidMeshError`, `InvalidSizeError`, `InvalidFunctionError`, `InvalidArgumentError`,
    `ShardingConflictError`, `LoopNotSupportedError`, `CompileCheckError`,
    `CompilerUnavailableError`.
    """
    own, kwargs = split(options)
    return PlannedFunction(_unwrapped(fun), Options(**own)).plan(*args, **kwargs)


@overload
def jit(fun: Callable[..., Any], **options: Unpack[OptionTypes]) -> "PlannedFunction": ...
@overload
def jit(**options: Unpack[OptionTypes]) -> "Callable[[Callable[..., Any]], PlannedFunction]": ...
@shows_options(others=False)
def jit(fun: Callable[..., Any] | None = None, **options: Unpack[OptionTypes]) -> Any:
    """`jax.jit` that plans: sharding and recomputation are chosen on the first call.

    Usable bare (`@kiwi.jit`), as a factory (`@kiwi.jit(mesh_shape=(2, 4))`) and as a function
    (`kiwi.jit(fun, mesh_shape=(2, 4))`). Takes the options of `kiwi.options.Options`. Without
    `mesh_shape` and `mesh` the mesh is one axis over all attached devices.

    Plans are cached per abstract signature: shapes, dtypes, pytree structure, static values; and on
    disk, see `plan_cache`. Arguments that live elsewhere are moved to where the plan wants them.

    **Raises:** at once the errors about options, on the first call those of `kiwi.plan`, and
    `NotEnoughDevicesError` if the mesh is larger than what is attached, `PlanMismatchError` if
    processes that run one program have different plans.
    """
    if fun is None:
        return functools.partial(jit, **options)
    return PlannedFunction(_unwrapped(fun), Options(**options))


def _unwrapped(fun: Any) -> Callable[..., Any]:
    if not callable(fun):
        raise InvalidArgumentError(
            f"kiwi plans functions, not {type(fun).__name__}.",
            suggestion="@kiwi.jit(mesh_shape=(2, 4)), with options by keyword.",
        )
    return fun.function if isinstance(fun, PlannedFunction) else fun


class PlannedFunction:
    """What `kiwi.jit` returns: call it as the function it wraps."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fun)
        self.options = options
        self.function = fun
        self._table = options.table()
        options.budget_bytes(self._table)  # A budget that is no size is refused at once.
        self._jit_options = JitOptions.of(fun, vars(options))
        self._traced: dict[Any, StepToPlan] = {}
        self._plans: dict[Any, Plan] = {}
        self._dispatched: dict[Any, Dispatched] = {}
        self._latest: Dispatched | None = None
        if options.mesh_shape is not None or options.mesh is not None:
            check_settings(self.settings)

    def with_options(self, **changes: Unpack[OptionTypes]) -> "PlannedFunction":
        """The same function under other options; it is not traced again for the same arguments.

        For comparing budgets, meshes and profiles.
        """
        other = PlannedFunction(self.function, replace(self.options, **changes))
        if other._jit_options == self._jit_options:
            other._traced = self._traced
        return other

    @functools.cached_property
    def settings(self) -> Settings:
        """What plans are made for: the options, with mesh, budget in bytes, and compiler."""
        found = self.options.settings(self._table)
        verify, notes = resolved(found.verify, found.mesh.hardware)
        return replace(found, verify=verify, notes=notes)

    def traced(self, *args: Any, **kwargs: Any) -> StepToPlan:
        """The function traced and lowered for these arguments; cached."""
        call = bind(self.function, self._jit_options, args, kwargs)
        return self._trace_of(call, self._on_host(call))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments; `jax.ShapeDtypeStruct`s will do. Cached."""
        return self._plan_of(bind(self.function, self._jit_options, args, kwargs))

    def _plan_of(self, call: Call) -> Plan:
        if call.key not in self._plans:
            compile_loops((HEAP_LOOPS,), (ORDER_LOOPS,))
            with prepared(self.settings.verify, self.settings.mesh):
                self._plans[call.key] = self._made(call)
        return self._plans[call.key]

    def _made(self, call: Call) -> Plan:
        cache = PlanCache.of_user() if self.options.plan_cache else None
        may_offload = planner_named(self.settings.planner).may_offload(self.settings)
        if not (self.options.offload_arguments and may_offload):
            return make_plan(self._trace_of(call, self._on_host(call)), self.settings, cache)
        return plan_with_host_arguments(
            functools.partial(self._trace_of, call),
            given_memories(call, self.options.constraints or Constraints()),
            self.settings,
            functools.partial(make_plan, cache=cache),
        )

    _trace_options: Mapping[str, Any] = MappingProxyType({})
    """Those of `kiwi.hlo.tracing.trace` with which a saved plan was made."""

    def _trace_of(self, call: Call, on_host: OnHost) -> StepToPlan:
        keep, opened = self.options.respect_user_checkpoint, self.options.open_loops
        trips = self.options.while_trips
        compiler = predicted_compiler(self.settings.verify, self.settings.mesh.hardware)
        fused = compiler.rules.fused_maps
        key = (call.key, on_host, keep, opened, fused, str(trips), compiler.platforms)
        if key not in self._traced:
            kept = {"keep_checkpoints": keep, "open_loops": opened, "while_trips": trips}
            kept["fetches_elements"] = compiler.may_offload(in_scan=True)
            kept["platforms"] = compiler.platforms
            self._traced[key] = trace_call(call, on_host, fused, **kept | dict(self._trace_options))
        return self._traced[key]

    def _on_host(self, call: Call) -> OnHost:
        return OnHost(host_arguments(call, self.options.constraints or Constraints()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the planned function; plans it first for arguments of a new signature.

        The plan that ran last is asked first: `jax.jit` knows by itself whether the arguments are
        its own.
        """
        if self._latest is not None:
            try:
                return self._latest.run(*args, **kwargs)
            except REFUSED:
                pass  # Another signature, or arguments that have to be moved.
        arguments = Arguments.of(self.function, self._jit_options, args, kwargs)
        if arguments.key not in self._dispatched:
            call = bind(self.function, self._jit_options, args, kwargs)
            given = self.options.mesh
            devices = list(given.devices.flat) if isinstance(given, jax.sharding.Mesh) else None
            # Before planning, so that a lack of devices is cheap.
            jax_mesh = self.settings.mesh.jax_mesh(devices)
            found = self._plan_of(call)
            check_same_plan(found, jax_mesh)
            self._dispatched[arguments.key] = Dispatched(found, call, jax_mesh)
        self._latest = self._dispatched[arguments.key]
        return self._latest.move_and_run(arguments)
