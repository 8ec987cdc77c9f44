"""The options of `kiwi.plan` and `kiwi.jit`, and the `Settings` that follow from them.

An option is one field here, with its type, default and documentation, and with its flag where the
command line has one. `kiwi.plan`, `kiwi.jit`, `Settings`, the command line and plan files read the
fields. Python's type checkers cannot: they take the names and types from `OptionTypes`.
"""

import argparse
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
from typing_extensions import TypedDict

from kiwi.calls.constraints import Constraints, specs_of_text
from kiwi.corrections import NO_CORRECTIONS, Corrections
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.trips import DEFAULT_TRIPS, WhileTrips
from kiwi.mesh import DeviceMesh, Hardware, ProfileTable
from kiwi.mesh.shipped import find_table
from kiwi.messages import Note, topics
from kiwi.sizes import parse_size
from kiwi.solver.result import OnProgress

_Function = TypeVar("_Function", bound=Callable[..., Any])
Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh | DeviceMesh


@dataclass(frozen=True)
class Flag:
    """How the command line takes an option; `parse` turns its text into the option's value."""

    name: str
    help: str | None = None
    parse: Callable[[str], Any] = str
    metavar: str | None = None


def mesh_of_text(text: str) -> tuple[int, ...]:
    """The shape of a mesh, `2,4` or `2x4`."""
    return integers_of_text(text.replace("x", ","), f"{text!r} is no mesh; for example 2,4")


def _positions_of_text(text: str) -> tuple[int, ...]:
    return integers_of_text(text, f"{text!r} are no positions; for example 0,1")


def integers_of_text(text: str, complaint: str) -> tuple[int, ...]:
    """Numbers between commas; raises `argparse.ArgumentTypeError` with the complaint."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(complaint) from None


def _trips_of_text(text: str) -> WhileTrips:
    """A number, or numbers by a part of a name scope or of a source line."""
    complaint = f"{text!r} is no trip count; for example 25, or solve=40,train.py:12=7"
    named = [part.rpartition("=") for part in text.split(",")]
    if len(named) == 1 and not named[0][1]:
        return integers_of_text(text, complaint)[0]
    if not all(name for name, _, _ in named):
        raise argparse.ArgumentTypeError(complaint)
    return {name.strip(): integers_of_text(trips, complaint)[0] for name, _, trips in named}


def _is_yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no")
    return text == "yes"


def _option(default: Any, name: str, help: str | None = None, **more: Any) -> Any:
    """A field for an option that the command line has as well; the arguments are `Flag`'s."""
    return field(default=default, metadata={"flag": Flag(name, help, **more)})


class PlannerObject(Protocol):
    """A planner as an object; every `kiwi.planners.planner.Planner` is one."""

    @property
    def name(self) -> str:
        """By which plans, their files and errors call it."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetOptions:
    """What to plan for.

    - `mesh_shape`, `axis_names`: the mesh, by default named "x", "y", "z". Instead, `mesh`: a
      `jax.sharding.Mesh` or `AbstractMesh`, or a `kiwi.mesh.DeviceMesh`, whose links and hardware
      are then priced instead of those of `profile`. With none of them, or with a `mesh_shape` that
      is its shape, the mesh of the context (`jax.set_mesh`) or else of the arguments' shardings.
    - `memory_budget`: per device, in bytes or as "16GiB" or "40GB"; by default the profile's
      device memory.
    - `host_memory_budget`: of each host, in bytes or as text, shared by its devices: values of the
      forward pass may be copied to the host and fetched back (docs/guides/host_memory.md). By
      default none is, beyond the arguments of `constraints`.
    - `profile`: the hardware to price for, a name of the catalogue (`kiwi.mesh.CATALOGUE`) or
      a `kiwi.mesh.Hardware`; or a `kiwi.mesh.ProfileTable` of measurements, the path of a
      saved one (any text that ends with ".json"), or the name of one that comes with Kiwi.
    - `topology`: of TPUs, the chips of a slice along each of its dimensions, "2x4" or "4x4x4"; by
      default the most compact one of as many devices as the mesh has. `num_slices`: how many such
      slices there are, connected by a network; by default as few as will do.
    """

    mesh_shape: Sequence[int] | None = _option(
        None, "--mesh", "devices along each axis, e.g. 2,4", parse=mesh_of_text
    )
    mesh: Mesh | None = None
    memory_budget: int | str | None = _option(
        None, "--budget", "memory per device, e.g. 16GiB (default: the device's)"
    )
    host_memory_budget: int | str | None = _option(
        None, "--host-budget", "host memory for offloaded values, e.g. 64GiB (default: none)"
    )
    profile: str | Path | Hardware | ProfileTable = _option(  # noqa: RUF009
        "h100-sxm", "--profile", "hardware, see `kiwi hardware` ({default}); or TABLE.json"
    )
    topology: str | None = _option(
        None, "--topology", "chips of a TPU slice, e.g. 2x4 (default: the most compact)"
    )
    num_slices: int | None = _option(
        None, "--num-slices", "TPU slices (default: as few as will do)", parse=int
    )
    axis_names: Sequence[str] | None = _option(
        None,
        "--axis-names",
        "names of the mesh axes, e.g. data,model",
        parse=lambda text: tuple(name.strip() for name in text.split(",")),
    )

    def table(self) -> ProfileTable:
        """The profile, as a table without measurements where there are none; raises
        `UnknownProfileError`, `ProfileFileError`."""
        if isinstance(self.mesh, DeviceMesh):
            return self.mesh.table or ProfileTable(self.mesh.hardware)
        if isinstance(self.profile, ProfileTable):
            return self.profile
        if isinstance(self.profile, Hardware):
            return ProfileTable(self.profile)
        return find_table(self.profile)

    @property
    def takes_context_mesh(self) -> bool:
        """Whether the mesh of the context may be the one to plan for."""
        return self.mesh is None and self.axis_names is None

    def device_mesh(
        self,
        table: ProfileTable,
        context: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
    ) -> DeviceMesh:
        """The mesh, with the links and the measurements of `table`; raises `InvalidMeshError`;
        `InvalidArgumentError` if two meshes are given.

        - `context`: the mesh that the caller works under, which is taken where none is given, or
          only its shape.
        """
        chips = self.topology, self.num_slices
        if self.takes_context_mesh and context is not None and self._is_shape_of(context):
            found = DeviceMesh.from_jax(context, table.hardware, *chips)
        elif self.mesh is None:
            shape = (jax.device_count(),) if self.mesh_shape is None else self.mesh_shape
            found = DeviceMesh.create(shape, table.hardware, self.axis_names, *chips)
        elif self.mesh_shape is not None or self.axis_names is not None:
            raise InvalidArgumentError(
                "Both mesh and mesh_shape or axis_names are given.",
                topic=topics.TWO_MESHES,
                suggestion="An existing mesh has a shape and names of its own.",
            )
        elif isinstance(self.mesh, DeviceMesh):
            return self.mesh
        else:
            found = DeviceMesh.from_jax(self.mesh, table.hardware, *chips)
        return found if table.environment is None else replace(found, table=table)

    def _is_shape_of(self, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> bool:
        return self.mesh_shape is None or tuple(self.mesh_shape) == tuple(mesh.axis_sizes)

    def budget_bytes(self, table: ProfileTable) -> int:
        """The budget of one device; raises `InvalidSizeError`."""
        if self.memory_budget is None:
            return table.hardware.memory_bytes
        return parse_size(self.memory_budget)

    def host_budget_bytes(self) -> int | None:
        """The budget of one host; raises `InvalidSizeError`."""
        return None if self.host_memory_budget is None else parse_size(self.host_memory_budget)


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchOptions:
    """How to plan.

    - `planner`: "joint" decides sharding and recomputation together, "alpa" sharding alone;
      "alpa+dots", "alpa+megatron" and "two-pass" recompute by a rule and decide sharding then;
      "two-stage" decides sharding first, and then recomputation of the sharded values;
      "kiwi-full" and "kiwi-reduced" are the paper's models, for small steps;
      "xla" decides nothing: values are sharded as XLA does by itself from the shardings given. On
      a mesh of one device also those that recompute, as "rotor", or copy values to the host, as
      "pofo". In place of a name a planner with parameters of its own:
      `kiwi.literature.planners.Rotor(slots=200)`.
    - `solver`: a backend of `kiwi.solver.solve`.
    - `effort`: how much work the search does, "quick", "normal" or "thorough": the same on every
      machine, so that the plan is, too. On one as fast as the documentation's they end after 10, 60
      and 240 s if not before; a plan that has to be tightened may take up to three times as long.
    - `time_limit_seconds`: ends the search whatever it has done by then. The best plan so far is
      returned, with its gap and a note: another run may find another one.
    - `gap`: the search may end once the plan is proven to be this close to the best one,
      relative to its step time.
    - `seed`: same arguments, same seed, same plan, unless the time limit ended the search.
    - `verify`: who compiles the planned step. "auto" takes the compiler of the profile's hardware,
      which needs none of that hardware; it fills `Plan.compiled`, and Kiwi plans again while
      the compiled peak is over the budget. Another compiler than the hardware's, "cpu" for virtual
      CPU devices, say, compiles the plan once, fills `Plan.cross_check` and changes no decision;
      "auto" falls back to that where the hardware's own is not installed. "device" compiles for
      the attached devices. None compiles nothing.
    - `respect_user_checkpoint`: by default, the recomputation that `jax.checkpoint` in `fun` asks
      for is planned anew; True keeps it as it is.
    - `respect_user_shardings`: whether what the function and its arguments say of shardings
      (`with_sharding_constraint`, `reshard`, `out_sharding`, sharded `jax.ShapeDtypeStruct`s) binds
      the plan. False leaves it out, and with it each `shard_map` around nothing but kernels with a
      sharding rule. `in_shardings`, `out_shardings`, `constraints` and hints always bind.
    - `while_trips`: how often the body of a `while` is taken to run where its condition does not
      tell: a number, or numbers by a part of the name scope or of the source line of the loop.
    - `equal_layers`: repeated layers of an unrolled program are planned alike where that costs less
      than 0.5 % of the step time. False lets each differ.
    - `corrections`: of another plan of the same model (`Plan.corrections`), on a mesh of the same
      shape: what its compiled programs taught of prices is used from the beginning.
    - `on_progress`: called with a `kiwi.solver.Progress` as the solver improves its solution or
      its bound.
    - `any_time`: the first Ctrl-C ends the search, and the best plan so far is returned, where
      there is one, instead of raising `KeyboardInterrupt`. The command `kiwi plan` sets it.
    """

    planner: str | PlannerObject = _option(  # noqa: RUF009
        "joint", "--planner", "{default} by default."
    )
    solver: str = _option("auto", "--solver", "a backend of kiwi.solver ({default})")
    effort: str = _option("normal", "--effort", "quick, normal or thorough ({default})")
    time_limit_seconds: float = _option(
        600.0, "--time-limit", "ends the search ({default:g})", parse=float, metavar="SECONDS"
    )
    gap: float = _option(0.01, "--gap", "stop once proven this close ({default})", parse=float)
    seed: int = _option(0, "--seed", parse=int)
    verify: str | None = _option(
        "auto",
        "--verify",
        "compile check: auto, cpu, cuda, tpu, device or none ({default})",
        parse=lambda text: None if text == "none" else text,
    )
    respect_user_checkpoint: bool = _option(
        False,
        "--respect-user-checkpoint",
        "recompute what jax.checkpoint asks for: yes or no (no)",
        parse=_is_yes,
    )
    respect_user_shardings: bool = _option(
        True,
        "--respect-user-shardings",
        "follow the function's own sharding constraints: yes or no (yes)",
        parse=_is_yes,
    )
    while_trips: WhileTrips = _option(  # noqa: RUF009
        DEFAULT_TRIPS,
        "--while-trips",
        "how often a while runs that does not tell ({default}); or by scope or line: "
        "solve=40,train.py:12=7",
        parse=_trips_of_text,
    )
    equal_layers: bool = _option(
        True, "--equal-layers", "plan repeated layers alike: yes or no (yes)", parse=_is_yes
    )
    corrections: Corrections = field(default=NO_CORRECTIONS, metadata={"in_files": False})
    on_progress: OnProgress | None = field(default=None, metadata={"in_files": False})
    any_time: bool = field(default=False, metadata={"in_files": False})

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_limit_seconds", float(self.time_limit_seconds))

    @property
    def planner_name(self) -> str:
        """The name of the planner, also of one that is given as an object."""
        return self.planner if isinstance(self.planner, str) else self.planner.name


@dataclass(frozen=True, eq=False, kw_only=True)
class Options(SearchOptions, TargetOptions):
    """Further options.

    - `open_loops`: plans the body of a `scan` or a `while`, once for all its iterations, and the
      branches of a `cond` or `switch` operator by operator. False plans each of them as one
      operator that is not sharded. Planners of schedules ("two-pass", "two-stage", the paper's
      models, those of one device) need False where there is one.
    - `offload_arguments`: within `host_memory_budget`, arguments that results replace in the next
      step (moments, master weights, parameters) may lie in the host's memory, where that makes the
      step faster or lets it fit. It plans the step several times.
    - `plan_cache`: an equal request (function, arguments, options, hardware, versions) that was
      planned before is answered from the user's cache folder, without a search. False neither
      reads nor writes there. The environment variable `KIWI_PLAN_CACHE` names another folder, or
      is "off".
    - `constraints`: a `kiwi.Constraints`: shardings of arguments by path, and which arguments are
      not replicated. `kiwi.hint` pins values inside of `fun`.
    - `static_argnums`, `static_argnames`, `donate_argnums`, `donate_argnames`, `in_shardings`,
      `out_shardings`: as of `jax.jit`. Shardings that are given are respected; None leaves one
      open.
    """

    open_loops: bool = True
    offload_arguments: bool = _option(
        False,
        "--offload-arguments",
        "arguments may lie in the host's memory: yes or no (no)",
        parse=_is_yes,
    )
    plan_cache: bool = _option(
        True, "--plan-cache", "take equal requests' plans from disk: yes or no (yes)", parse=_is_yes
    )
    static_argnums: int | Sequence[int] | None = None
    static_argnames: str | Sequence[str] | None = None
    donate_argnums: int | Sequence[int] | None = _option(
        None, "--donate", "donated arguments by position, e.g. 0", parse=_positions_of_text
    )
    donate_argnames: str | Sequence[str] | None = None
    in_shardings: Any = _option(  # noqa: RUF009
        None,
        "--in-shardings",
        "how the positional arguments lie, e.g. 'x,-;y': entries as of --pin, arguments apart by "
        "semicolons, nothing for an open one",
        parse=specs_of_text,
    )
    out_shardings: Any = None
    constraints: Constraints | None = None

    def settings(
        self,
        table: ProfileTable,
        context: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
    ) -> "Settings":
        """What a plan is made for, with the profile's table and the mesh of the context; raises
        `InvalidMeshError`, `InvalidSizeError`; `InvalidArgumentError` if two meshes are given, or
        arguments may be offloaded without a budget of the host."""
        if self.offload_arguments and self.host_memory_budget is None:
            raise InvalidArgumentError(
                "offload_arguments=True, and no host_memory_budget.",
                topic=topics.OFFLOAD_WITHOUT_BUDGET,
            )
        return Settings(
            mesh=self.device_mesh(table, context),
            memory_budget_bytes=self.budget_bytes(table),
            host_budget_bytes=self.host_budget_bytes(),
            constraints=self.constraints or Constraints(),
            **{f.name: getattr(self, f.name) for f in fields(SearchOptions)},
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Settings(SearchOptions):
    """What a plan is made for: the search's options, and the mesh and the budget of one device.

    - `constraints`: what the caller pins of arguments; `dropped_pins`: labels of pins, of these
      and of hints, that are not heeded.
    - `notes`: what the reader of a plan should know of its settings.
    - `host_budget_bytes`: of one host; None offloads nothing.
    """

    mesh: DeviceMesh
    memory_budget_bytes: int
    host_budget_bytes: int | None = None
    constraints: Constraints = field(default_factory=Constraints)
    dropped_pins: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = ()

    @property
    def host_limit_bytes(self) -> int | None:
        """What one device may take of its host's memory."""
        if self.host_budget_bytes is None:
            return None
        devices = self.mesh.hardware.devices_per_host or self.mesh.hardware.devices_per_node
        return self.host_budget_bytes // min(devices or self.mesh.shape[-1], self.mesh.size)


class OptionTypes(TypedDict, total=False):
    """The fields of `Options` for type checkers, which cannot unpack a dataclass."""

    mesh_shape: Sequence[int] | None
    mesh: Mesh | None
    memory_budget: int | str | None
    host_memory_budget: int | str | None
    profile: str | Path | Hardware | ProfileTable
    topology: str | None
    num_slices: int | None
    axis_names: Sequence[str] | None
    planner: str | PlannerObject
    solver: str
    effort: str
    time_limit_seconds: float
    gap: float
    seed: int
    verify: str | None
    respect_user_checkpoint: bool
    respect_user_shardings: bool
    while_trips: WhileTrips
    equal_layers: bool
    corrections: Corrections
    on_progress: OnProgress | None
    any_time: bool
    open_loops: bool
    offload_arguments: bool
    plan_cache: bool
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    in_shardings: Any
    out_shardings: Any
    constraints: Constraints | None


def flags() -> Iterator[tuple[Field[Any], Flag]]:
    """The options that the command line has, with their flags."""
    for option in fields(Options):
        if "flag" in option.metadata:
            yield option, option.metadata["flag"]


IN_FILES = tuple(f.name for f in fields(SearchOptions) if f.metadata.get("in_files", True))
"""The options of the search that plan files keep."""


def options_among(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some names and values that are options."""
    names = {option.name for option in fields(Options)}
    return {name: value for name, value in given.items() if name in names}


def documents_options(function: _Function) -> _Function:
    """Adds what the options mean to the docstring of a function that takes them."""
    documented = (function, TargetOptions, SearchOptions, Options)
    function.__doc__ = "\n\n".join(inspect.cleandoc(d.__doc__ or "") for d in documented)
    return function


def shows_options(function: _Function) -> _Function:
    """Names and documents all options where `function` has `**options`, for `help` and
    `inspect.signature`."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters = [*own, *inspect.signature(Options).parameters.values()]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return documents_options(function)
