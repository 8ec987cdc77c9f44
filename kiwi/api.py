"""`kiwi.plan` and `kiwi.jit`.

JAX function ── trace ──▶ program ── lower ──▶ HloGraph ── group ──▶ units
units + mesh ── enumerate and price ──▶ Problem ── solve ──▶ solution
solution ──▶ Plan ── emit ──▶ jax.jit ── compile ──▶ memory and collectives
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from kiwi.calls.constraints import Constraints
from kiwi.calls.host_memory import OnHost, host_arguments
from kiwi.calls.signature import Call, JitOptions, bind
from kiwi.calls.traced import Traced
from kiwi.errors import InvalidArgumentError
from kiwi.mesh import DeviceMesh, Hardware, ProfileTable
from kiwi.mesh.shipped import find_table
from kiwi.options import Settings
from kiwi.planners.planning import check_settings, make_plan, trace_call
from kiwi.plans.plan import Plan
from kiwi.plans.processes import check_same_plan
from kiwi.plans.record import place_leaves
from kiwi.sizes import parse_size
from kiwi.solver.outcome import OnProgress
from kiwi.xla.compilers import prepared

DEFAULT_PROFILE = "h100-sxm"
DEFAULT_GAP = 0.01


@dataclass(frozen=True, eq=False)
class Options:
    """The options of `kiwi.plan` and `kiwi.jit`; see there."""

    mesh_shape: Sequence[int] | None = None
    mesh: "jax.sharding.Mesh | jax.sharding.AbstractMesh | DeviceMesh | None" = None
    memory_budget: int | str | None = None
    profile: str | Path | Hardware | ProfileTable = DEFAULT_PROFILE
    axis_names: Sequence[str] | None = None
    planner: str = "joint"
    solver: str = "auto"
    time_limit_seconds: float = 60.0
    verify: str | None = "cpu"
    seed: int = 0
    gap: float = DEFAULT_GAP
    respect_user_checkpoint: bool = False
    open_loops: bool = True
    on_progress: OnProgress | None = None
    static_argnums: int | Sequence[int] | None = None
    static_argnames: str | Sequence[str] | None = None
    donate_argnums: int | Sequence[int] | None = None
    donate_argnames: str | Sequence[str] | None = None
    in_shardings: Any = None
    out_shardings: Any = None
    constraints: Constraints | None = None


def plan(
    fun: "Callable[..., Any] | PlannedFunction",
    *args: Any,
    mesh_shape: Sequence[int] | None = None,
    mesh: "jax.sharding.Mesh | jax.sharding.AbstractMesh | DeviceMesh | None" = None,
    memory_budget: int | str | None = None,
    profile: str | Path | Hardware | ProfileTable = DEFAULT_PROFILE,
    axis_names: Sequence[str] | None = None,
    planner: str = "joint",
    solver: str = "auto",
    time_limit_seconds: float = 60.0,
    verify: str | None = "cpu",
    seed: int = 0,
    gap: float = DEFAULT_GAP,
    respect_user_checkpoint: bool = False,
    open_loops: bool = True,
    on_progress: OnProgress | None = None,
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

    **Arguments:**

    - `fun`: a function of pytrees of arrays, e.g. a training step. It is traced once.
    - `args`, `kwargs`: arrays or `jax.ShapeDtypeStruct`s. Keyword arguments of `fun` whose
      names this function takes itself can be planned with `kiwi.jit(fun, ...).plan(...)`.
    - `mesh_shape`, `axis_names`: the mesh, by default named "x", "y", "z". Instead, `mesh`: a
      `jax.sharding.Mesh` or `AbstractMesh`, or a `kiwi.mesh.DeviceMesh`, whose links and hardware
      are then priced instead of those of `profile`.
    - `memory_budget`: per device, in bytes or as "16GiB" or "40GB"; by default the profile's
      device memory.
    - `profile`: the hardware to price for, a name of the catalogue (`kiwi.mesh.CATALOGUE`) or
      a `kiwi.mesh.Hardware`; or what was measured, a `kiwi.mesh.ProfileTable`, the path of a
      saved one (any text that ends with ".json"), or the name of one that comes with Kiwi.
    - `planner`: "joint" decides sharding and recomputation together, "alpa" sharding alone;
      "alpa+dots", "alpa+megatron" and "two-pass" recompute by a rule and decide sharding then;
      "two-stage" decides sharding first, and recomputation of what was sharded then;
      "kiwi-full" and "kiwi-reduced" are the paper's models, for small steps;
      "xla" nothing: values are sharded as XLA does by itself from the shardings given. On a
      mesh of one device also a planner of `kiwi.solver.remat`, e.g. "remat".
    - `solver`: a backend of `kiwi.solver.solve`.
    - `time_limit_seconds`: for the solver. On expiry the best plan so far is returned, with
      its gap. A plan that has to be tightened may take up to three times as long.
    - `verify`: "cpu" compiles the planned step for virtual CPU devices ("cuda" for the
      profile's GPUs, without a GPU; "device" for the attached devices), fills
      `Plan.compiled`, and plans again under a tighter limit while the compiled peak is over
      the budget. None plans without compiling.
    - `seed`: same arguments, same seed, same plan, unless the time limit ended the search.
    - `gap`: the search may end once the plan is proven to be this close to the best one,
      relative to its step time.
    - `respect_user_checkpoint`: by default, what `jax.checkpoint` in `fun` recomputes is
      planned anew; True keeps it as it is.
    - `open_loops`: plans the body of a `jax.lax.scan` operator by operator, once for all its
      iterations. False plans each scan as one operator that is not sharded. Planners of schedules
      ("two-stage", the paper's models, those of one device) need False where there is a scan.
    - `constraints`: a `kiwi.Constraints`: shardings of arguments by path, and which arguments are
      not replicated. `kiwi.hint` pins values inside of `fun`.
    - `on_progress`: called with a `kiwi.solver.Progress` as the solver improves.
    - the rest: as `jax.jit`. Shardings that are given are respected; None leaves one open.

    **Raises:** subclasses of `kiwi.errors.KiwiError`: `InfeasibleBudgetError` (with the
    smallest budget found), `NoPlanFoundError`, `UnknownProfileError`, `UnknownPlannerError`,
    `InvalidMeshError`, `InvalidSizeError`, `InvalidFunctionError`, `InvalidArgumentError`,
    `ShardingConflictError`, `LoopNotSupportedError`, `CompileCheckError`,
    `CompilerUnavailableError`.
    """
    options = Options(
        mesh_shape=mesh_shape,
        mesh=mesh,
        memory_budget=memory_budget,
        profile=profile,
        axis_names=axis_names,
        planner=planner,
        solver=solver,
        time_limit_seconds=time_limit_seconds,
        verify=verify,
        seed=seed,
        gap=gap,
        respect_user_checkpoint=respect_user_checkpoint,
        open_loops=open_loops,
        on_progress=on_progress,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        constraints=constraints,
    )
    return PlannedFunction(_unwrapped(fun), options).plan(*args, **kwargs)


def jit(fun: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`jax.jit` that plans: sharding and recomputation are chosen on the first call.

    Usable bare (`@kiwi.jit`), as a factory (`@kiwi.jit(mesh_shape=(2, 4))`) and as a function
    (`kiwi.jit(fun, mesh_shape=(2, 4))`). Takes the options of `kiwi.plan`. Without
    `mesh_shape` and `mesh` the mesh is one axis over all attached devices.

    Plans are cached per abstract signature: shapes, dtypes, pytree structure, static values.
    Arguments that live elsewhere are moved to where the plan wants them.

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


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A plan on concrete devices: `run` takes leaves in `shardings` and returns flat results."""

    plan: Plan
    shardings: list[jax.sharding.NamedSharding]
    run: Callable[..., list[Any]]


class PlannedFunction:
    """What `kiwi.jit` returns: call it as the function it wraps."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fun)
        self.options = options
        self.function = fun
        self._table = _profile_table(options)
        self._hardware = self._table.hardware
        self._budget = None if options.memory_budget is None else parse_size(options.memory_budget)
        self._jit_options = JitOptions.of(
            fun,
            options.static_argnums,
            options.static_argnames,
            options.donate_argnums,
            options.donate_argnames,
            options.in_shardings,
            options.out_shardings,
        )
        self._traced: dict[Any, Traced] = {}
        self._plans: dict[Any, Plan] = {}
        self._compiled: dict[Any, _Compiled] = {}
        if options.mesh_shape is not None or options.mesh is not None:
            check_settings(self._settings)

    def with_options(self, **changes: Any) -> "PlannedFunction":
        """The same function under other options; it is not traced again for the same arguments.

        For comparing budgets, meshes and profiles.
        """
        other = PlannedFunction(self.function, replace(self.options, **changes))
        if other._jit_options == self._jit_options:
            other._traced = self._traced
        return other

    @property
    def settings(self) -> Settings:
        """What plans are made for: the options, checked and in bytes."""
        return self._settings

    def traced(self, *args: Any, **kwargs: Any) -> Traced:
        """The function traced and lowered for these arguments; cached."""
        return self._trace_of(bind(self.function, self._jit_options, args, kwargs))

    @functools.cached_property
    def _settings(self) -> Settings:
        o = self.options
        return Settings(
            mesh=_device_mesh(o.mesh_shape, o.mesh, o.axis_names, self._table),
            memory_budget_bytes=self._budget or self._hardware.memory_bytes,
            planner=o.planner,
            time_limit_seconds=float(o.time_limit_seconds),
            verify=o.verify,
            solver=o.solver,
            seed=o.seed,
            gap=o.gap,
            respect_user_checkpoint=o.respect_user_checkpoint,
            on_progress=o.on_progress,
            constraints=o.constraints or Constraints(),
        )

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments; `jax.ShapeDtypeStruct`s will do. Cached."""
        return self._plan_of(bind(self.function, self._jit_options, args, kwargs))

    def _plan_of(self, call: Call) -> Plan:
        if call.key not in self._plans:
            settings, given = self._settings, self._jit_options.out_shardings
            with prepared(settings.verify, settings.mesh):
                traced = self._trace_of(call)
                self._plans[call.key] = make_plan(traced, given, settings)
        return self._plans[call.key]

    def _trace_of(self, call: Call) -> Traced:
        keep = self.options.respect_user_checkpoint
        opened, on_host = self.options.open_loops, self._on_host(call)
        key = (call.key, keep, opened, on_host)
        if key not in self._traced:
            self._traced[key] = trace_call(
                call,
                keep_checkpoints=keep,
                open_loops=opened,
                on_host=on_host,
            )
        return self._traced[key]

    def _on_host(self, call: Call) -> OnHost:
        return OnHost(host_arguments(call, self.options.constraints or Constraints()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the planned function; plans it first for arguments of a new signature."""
        call = bind(self.function, self._jit_options, args, kwargs)
        if call.key not in self._compiled:
            jax_mesh = self._concrete_mesh()
            found = self._plan_of(call)
            check_same_plan(found, jax_mesh)
            shardings = found.leaf_shardings(jax_mesh)
            self._compiled[call.key] = _Compiled(found, shardings, found.jit(jax_mesh))
        compiled = self._compiled[call.key]
        leaves = place_leaves(call.leaves, compiled.shardings)
        results = compiled.run(*leaves)
        return jax.tree.unflatten(compiled.plan.trees.out_tree, results)

    def _concrete_mesh(self) -> jax.sharding.Mesh:
        """The devices to run on; asked for before planning, so that a lack of them is cheap."""
        given = self.options.mesh
        devices = list(given.devices.flat) if isinstance(given, jax.sharding.Mesh) else None
        return self._settings.mesh.jax_mesh(devices)


def _profile_table(options: Options) -> ProfileTable:
    """The profile, as a table without measurements where it is from documents."""
    profile = options.profile
    if isinstance(options.mesh, DeviceMesh):
        return options.mesh.table or ProfileTable(options.mesh.hardware)
    if isinstance(profile, ProfileTable):
        return profile
    return ProfileTable(profile) if isinstance(profile, Hardware) else find_table(profile)


def _device_mesh(
    mesh_shape: Sequence[int] | None,
    mesh: "jax.sharding.Mesh | jax.sharding.AbstractMesh | DeviceMesh | None",
    axis_names: Sequence[str] | None,
    profile: ProfileTable,
) -> DeviceMesh:
    if mesh is not None:
        if mesh_shape is not None or axis_names is not None:
            raise InvalidArgumentError(
                "Both mesh and mesh_shape or axis_names are given.",
                suggestion="An existing mesh has a shape and names of its own.",
            )
        if isinstance(mesh, DeviceMesh):
            return mesh
        found = DeviceMesh.from_jax(mesh, profile.hardware)
    else:
        shape = (jax.device_count(),) if mesh_shape is None else mesh_shape
        found = DeviceMesh.create(shape, profile.hardware, axis_names)
    return found if profile.environment is None else replace(found, table=profile)
