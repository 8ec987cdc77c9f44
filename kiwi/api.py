"""`kiwi.plan` and `kiwi.jit`.

JAX function ── trace ──▶ program ── lower ──▶ HloGraph ── group ──▶ units
units + mesh ── enumerate and price ──▶ Problem ── solve ──▶ solution
solution ──▶ Plan ── emit ──▶ jax.jit ── compile ──▶ memory and collectives
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from kiwi.errors import InvalidArgumentError
from kiwi.mesh import DeviceMesh, Hardware, hardware
from kiwi.plan.budget import parse_size
from kiwi.plan.plan import Plan
from kiwi.plan.planner import Settings, make_plan
from kiwi.plan.signature import Call, JitOptions, bind
from kiwi.solver.outcome import OnProgress

DEFAULT_PROFILE = "h100-sxm"
DEFAULT_GAP = 0.01


def plan(
    fun: "Callable[..., Any] | PlannedFunction",
    *args: Any,
    mesh_shape: Sequence[int] | None = None,
    mesh: "jax.sharding.Mesh | jax.sharding.AbstractMesh | None" = None,
    memory_budget: int | str | None = None,
    profile: str | Hardware = DEFAULT_PROFILE,
    axis_names: Sequence[str] | None = None,
    planner: str = "joint",
    solver: str = "auto",
    time_limit_seconds: float = 60.0,
    verify: str | None = "cpu",
    seed: int = 0,
    gap: float = DEFAULT_GAP,
    respect_user_checkpoint: bool = False,
    on_progress: OnProgress | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    **kwargs: Any,
) -> Plan:
    """Plans `fun(*args, **kwargs)` for a mesh, without devices.

    **Arguments:**

    - `fun`: a function of pytrees of arrays, e.g. a training step. It is traced once.
    - `args`, `kwargs`: arrays or `jax.ShapeDtypeStruct`s. Keyword arguments of `fun` whose
      names this function takes itself can be planned with `kiwi.jit(fun, ...).plan(...)`.
    - `mesh_shape`, `axis_names`: the mesh, by default named "x", "y", "z". Instead, `mesh`: a
      `jax.sharding.Mesh` or `AbstractMesh`.
    - `memory_budget`: per device, in bytes or as "16GiB" or "40GB"; by default the profile's
      device memory.
    - `profile`: the hardware to price for, a name of the catalogue (`kiwi.mesh.CATALOGUE`) or
      a `kiwi.mesh.Hardware`.
    - `planner`: "joint" decides sharding and recomputation together, "alpa" sharding alone.
    - `solver`: a backend of `kiwi.solver.solve`.
    - `time_limit_seconds`: for each run of the solver. On expiry the best plan so far is
      returned, with its gap.
    - `verify`: "cpu" compiles the planned step for virtual CPU devices, fills
      `Plan.compiled`, and plans again under a tighter limit while the compiled peak is over
      the budget. None plans without compiling.
    - `seed`: same arguments, same seed, same plan, unless the time limit ended the search.
    - `gap`: the search may end once the plan is proven to be this close to the best one,
      relative to its step time.
    - `respect_user_checkpoint`: by default, what `jax.checkpoint` in `fun` recomputes is
      planned anew; True keeps it as it is.
    - `on_progress`: called with a `kiwi.solver.Progress` as the solver improves.
    - the rest: as `jax.jit`. Shardings that are given are respected; None leaves one open.

    **Raises:** subclasses of `kiwi.errors.KiwiError`: `InfeasibleBudgetError` (with the
    smallest budget found), `NoPlanFoundError`, `UnknownProfileError`, `UnknownPlannerError`,
    `InvalidMeshError`, `InvalidSizeError`, `InvalidFunctionError`, `InvalidArgumentError`,
    `ShardingConflictError`, `CompileCheckError`.
    """
    planned = jit(
        fun,
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
        on_progress=on_progress,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
    )
    return planned.plan(*args, **kwargs)


def jit(fun: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`jax.jit` that plans: sharding and recomputation are chosen on the first call.

    Usable bare (`@kiwi.jit`), as a factory (`@kiwi.jit(mesh_shape=(2, 4))`) and as a function
    (`kiwi.jit(fun, mesh_shape=(2, 4))`). Takes the options of `kiwi.plan`. Without
    `mesh_shape` and `mesh` the mesh is one axis over all attached devices.

    Plans are cached per abstract signature: shapes, dtypes, pytree structure, static values.
    Arguments that live elsewhere are moved to where the plan wants them.

    **Raises:** at once the errors about options, on the first call those of `kiwi.plan`, and
    `NotEnoughDevicesError` if the mesh is larger than what is attached.
    """
    if fun is None:
        return functools.partial(jit, **options)
    if not callable(fun):
        raise InvalidArgumentError(
            f"kiwi.jit takes a function, not {type(fun).__name__}.",
            suggestion="@kiwi.jit(mesh_shape=(2, 4)), with options by keyword.",
        )
    if isinstance(fun, PlannedFunction):
        fun = fun.function
    return PlannedFunction(fun, **options)


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A plan on concrete devices: `run` takes and returns flat leaves."""

    plan: Plan
    mesh: jax.sharding.Mesh
    run: Callable[..., list[Any]]


class PlannedFunction:
    """What `kiwi.jit` returns: call it as the function it wraps."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        mesh_shape: Sequence[int] | None = None,
        mesh: "jax.sharding.Mesh | jax.sharding.AbstractMesh | None" = None,
        memory_budget: int | str | None = None,
        profile: str | Hardware = DEFAULT_PROFILE,
        axis_names: Sequence[str] | None = None,
        planner: str = "joint",
        solver: str = "auto",
        time_limit_seconds: float = 60.0,
        verify: str | None = "cpu",
        seed: int = 0,
        gap: float = DEFAULT_GAP,
        respect_user_checkpoint: bool = False,
        on_progress: OnProgress | None = None,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
        donate_argnums: int | Sequence[int] | None = None,
        donate_argnames: str | Sequence[str] | None = None,
        in_shardings: Any = None,
        out_shardings: Any = None,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._hardware = hardware(profile) if isinstance(profile, str) else profile
        self._mesh_request = (mesh_shape, mesh, axis_names)
        self._budget = None if memory_budget is None else parse_size(memory_budget)
        self._jit_options = JitOptions.of(
            fun,
            static_argnums,
            static_argnames,
            donate_argnums,
            donate_argnames,
            in_shardings,
            out_shardings,
        )
        self._solving = {
            "planner": planner,
            "time_limit_seconds": float(time_limit_seconds),
            "verify": verify,
            "solver": solver,
            "seed": seed,
            "gap": gap,
            "respect_user_checkpoint": respect_user_checkpoint,
            "on_progress": on_progress,
        }
        self._plans: dict[Any, Plan] = {}
        self._compiled: dict[Any, _Compiled] = {}
        if mesh_shape is not None or mesh is not None:
            self._settings.check()

    @functools.cached_property
    def _settings(self) -> Settings:
        mesh = _device_mesh(*self._mesh_request, self._hardware)
        budget = self._hardware.memory_bytes if self._budget is None else self._budget
        return Settings(mesh, budget, **self._solving)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments; `jax.ShapeDtypeStruct`s will do. Cached."""
        return self._plan_of(bind(self._fun, self._jit_options, args, kwargs))

    def _plan_of(self, call: Call) -> Plan:
        if call.key not in self._plans:
            self._plans[call.key] = make_plan(call, self._jit_options.out_shardings, self._settings)
        return self._plans[call.key]

    @property
    def function(self) -> Callable[..., Any]:
        """The function as it was given."""
        return self._fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the planned function; plans it first for arguments of a new signature."""
        call = bind(self._fun, self._jit_options, args, kwargs)
        if call.key not in self._compiled:
            jax_mesh = self._concrete_mesh()
            found = self._plan_of(call)
            self._compiled[call.key] = _Compiled(found, jax_mesh, found.jit(jax_mesh))
        compiled = self._compiled[call.key]
        leaves = compiled.plan.place_leaves(call.leaves, compiled.mesh)
        results = compiled.run(*leaves)
        return jax.tree.unflatten(compiled.plan.trees.out_tree, results)

    def _concrete_mesh(self) -> jax.sharding.Mesh:
        """The devices to run on; asked for before planning, so that a lack of them is cheap."""
        _, given, _ = self._mesh_request
        devices = list(given.devices.flat) if isinstance(given, jax.sharding.Mesh) else None
        return self._settings.mesh.jax_mesh(devices)


def _device_mesh(
    mesh_shape: Sequence[int] | None,
    mesh: "jax.sharding.Mesh | jax.sharding.AbstractMesh | None",
    axis_names: Sequence[str] | None,
    profile: Hardware,
) -> DeviceMesh:
    if mesh is not None:
        if mesh_shape is not None or axis_names is not None:
            raise InvalidArgumentError(
                "Both mesh and mesh_shape or axis_names are given.",
                suggestion="An existing mesh has a shape and names of its own.",
            )
        return DeviceMesh.from_jax(mesh, profile)
    shape = (jax.device_count(),) if mesh_shape is None else mesh_shape
    return DeviceMesh.create(shape, profile, axis_names)
