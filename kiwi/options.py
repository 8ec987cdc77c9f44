"""The options of `kiwi.plan` and `kiwi.jit`, and the `Settings` that follow from them.

An option is one field in this module, with its type, default and documentation, and with its flag
if the command line has one. `kiwi.plan`, `kiwi.jit`, `Settings`, the command line and plan files
read the fields. Type checkers cannot read the fields; they take the names and types from
`OptionTypes`.
"""

import argparse
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from typing_extensions import TypedDict

from kiwi.calls.constraints import Constraints, specs_of_text
from kiwi.corrections import NO_CORRECTIONS, Corrections
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.trips import DEFAULT_TRIPS, WhileTrips
from kiwi.mesh import DeviceMesh, Hardware, ProfileTable
from kiwi.mesh.device_mesh import checked_shape
from kiwi.mesh.shipped import find_table
from kiwi.messages import Note, topics
from kiwi.sizes import parse_size
from kiwi.solver.result import OnProgress

_Function = TypeVar("_Function", bound=Callable[..., Any])
Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh | DeviceMesh


GRANULARITIES = ("operators", "names")
"""The values of the option `granularity`: the things that have one residency each."""


MOST_SECONDS = 1e9
"""A longer time limit, or an infinite one, is cut to this one, which plan files can hold."""


@dataclass(frozen=True)
class Flag:
    """The command-line flag of an option. `parse` converts its text to the option's value."""

    name: str
    help: str | None = None
    parse: Callable[[str], Any] = str
    metavar: str | None = None


def mesh_of_text(text: str) -> tuple[int, ...]:
    """Returns the shape of a mesh from text such as `2,4` or `2x4`.

    **Raises:** `argparse.ArgumentTypeError` if the text is no shape.
    """
    return integers_of_text(text.replace("x", ","), f"{text!r} is no mesh; for example 2,4")


def _positions_of_text(text: str) -> tuple[int, ...]:
    return integers_of_text(text, f"{text!r} are no positions; for example 0,1")


def integers_of_text(text: str, complaint: str) -> tuple[int, ...]:
    """Returns the integers in a text, separated by commas.

    **Raises:** `argparse.ArgumentTypeError` with `complaint` if there are others.
    """
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(complaint) from None


def _trips_of_text(text: str) -> WhileTrips:
    """Returns a number of iterations, or several numbers, each for loops whose name scope or source
    line contains a text."""
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
    """Returns the field of an option with a flag on the command line. Parameters: as in `Flag`."""
    return field(default=default, metadata={"flag": Flag(name, help, **more)})


def _is_a(*types: type) -> Callable[[Any], bool]:
    """Returns a function that says whether a value has one of these types. A bool is no number."""
    return lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _is_one_or_several(kind: type) -> Callable[[Any], bool]:
    """Returns a function that says whether a value is of a kind, or a collection of such values."""
    is_one = _is_a(kind)

    def is_valid(value: Any) -> bool:
        is_several = isinstance(value, Collection) and not isinstance(value, str)
        return all(map(is_one, value)) if is_several else is_one(value)

    return is_valid


def _are_trips(value: Any) -> bool:
    is_number = _is_a(Integral)
    if isinstance(value, Mapping):
        return all(isinstance(part, str) and is_number(trips) for part, trips in value.items())
    return is_number(value)


_YES_OR_NO = _is_a(bool, np.bool_), "True or False"
_POSITIONS = _is_one_or_several(Integral), "a position, or a sequence of positions"
_NAMES = _is_one_or_several(str), "a name, or a sequence of names"
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "topology": (_is_a(str), 'text such as "2x4"'),
    "num_slices": (_is_a(Integral), "a whole number"),
    "solver": (_is_a(str), "the name of a solver"),
    "effort": (_is_a(str), '"quick", "normal" or "thorough"'),
    "time_limit_seconds": (_is_a(Real), "a number of seconds"),
    "gap": (_is_a(Real), "a fraction such as 0.01"),
    "seed": (_is_a(Integral), "a whole number"),
    "granularity": (_is_a(str), '"operators" or "names"'),
    "while_trips": (_are_trips, "a whole number, or a mapping of text to whole numbers"),
    "corrections": (_is_a(Corrections), "the corrections of a plan (plan.corrections)"),
    "on_progress": (callable, "a function"),
    "constraints": (_is_a(Constraints), "a kiwi.Constraints"),
    "static_argnums": _POSITIONS,
    "static_argnames": _NAMES,
    "donate_argnums": _POSITIONS,
    "donate_argnames": _NAMES,
    **dict.fromkeys(
        (
            *("respect_user_checkpoint", "respect_user_shardings", "equal_layers", "any_time"),
            *("open_loops", "offload_arguments", "plan_cache"),
        ),
        _YES_OR_NO,
    ),
}
"""For each option whose type can be told: whether a value other than None can be its value, and a
description of its values. Other checks follow where the option is used."""


class PlannerObject(Protocol):
    """A planner that is given as an object. Every `kiwi.planners.planner.Planner` is one."""

    @property
    def name(self) -> str:
        """The planner's name in plans, plan files and errors."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetOptions:
    """The goal of a plan.

    - `mesh_shape`, `axis_names`: the shape of the mesh and the names of its axes. Axes are named
      "x", "y", "z" by default.
    - `mesh`: an existing mesh instead: a `jax.sharding.Mesh` or `AbstractMesh`, or a
      `kiwi.mesh.DeviceMesh`, whose links and hardware then replace the profile's. If `mesh`,
      `mesh_shape` and `axis_names` are missing, the plan is for the mesh of the context
      (`jax.set_mesh`), or else for the mesh of the arguments' shardings. This is also the case if
      only a `mesh_shape` is given that equals the shape of that mesh.
    - `memory_budget`: the memory of one device, in bytes or as text such as "16GiB" or "40GB"; by
      default the profile's device memory.
    - `host_memory_budget`: the memory of one host, which its devices share, in bytes or as text.
      Values of the forward pass may then be copied to the host and fetched back
      (docs/guides/host_memory.md). By default nothing is copied, except arguments that
      `constraints` put on the host.
    - `profile`: the hardware to price for: a name in the catalogue (`kiwi.mesh.CATALOGUE`), a
      `kiwi.mesh.Hardware`, or measurements. Measurements are a `kiwi.mesh.ProfileTable`, the path
      of a saved table (any text that ends with ".json"), or the name of a table that comes with
      Kiwi.
    - `topology`: for TPUs, the number of chips along each dimension of a slice, such as "2x4" or
      "4x4x4"; by default the most compact slice with as many devices as the mesh.
    - `num_slices`: for TPUs, the number of slices, which a network connects; by default as few as
      possible.
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
        """The profile as a table. A profile without measurements gives an empty table.

        **Raises:** `UnknownProfileError` if there is no such profile; `ProfileFileError` if a file
        of measurements cannot be read.
        """
        if isinstance(self.mesh, DeviceMesh):
            return self.mesh.table or ProfileTable(self.mesh.hardware)
        if isinstance(self.profile, ProfileTable):
            return self.profile
        if isinstance(self.profile, Hardware):
            return ProfileTable(self.profile)
        return find_table(self.profile)

    @property
    def takes_context_mesh(self) -> bool:
        """Whether the plan may be for the mesh of the context."""
        return self.mesh is None and self.axis_names is None

    def device_mesh(
        self,
        table: ProfileTable,
        context: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
    ) -> DeviceMesh:
        """The mesh to plan for, with the links and the measurements of `table`.

        - `context`: the mesh in the caller's context. It is used if the options give no mesh, or
          only its shape.

        **Raises:** `InvalidMeshError` for an invalid mesh; `InvalidArgumentError` if two meshes are
        given.
        """
        chips = self.topology, self.num_slices
        if self.takes_context_mesh and context is not None and self._is_shape_of(context):
            new_mesh = DeviceMesh.from_jax(context, table.hardware, *chips)
        elif self.mesh is None:
            shape = (jax.device_count(),) if self.mesh_shape is None else self.mesh_shape
            new_mesh = DeviceMesh.create(shape, table.hardware, self.axis_names, *chips)
        elif self.mesh_shape is not None or self.axis_names is not None:
            raise InvalidArgumentError(
                "Both mesh and mesh_shape or axis_names are given.",
                topic=topics.TWO_MESHES,
                suggestion="An existing mesh has a shape and names of its own.",
            )
        elif isinstance(self.mesh, DeviceMesh):
            return self.mesh
        else:
            new_mesh = DeviceMesh.from_jax(self.mesh, table.hardware, *chips)
        return new_mesh if table.environment is None else replace(new_mesh, table=table)

    def _is_shape_of(self, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> bool:
        return self.mesh_shape is None or checked_shape(self.mesh_shape) == tuple(mesh.axis_sizes)

    def budget_bytes(self, table: ProfileTable) -> int:
        """The memory budget of one device; raises `InvalidSizeError` for an invalid size."""
        if self.memory_budget is None:
            return table.hardware.memory_bytes
        return parse_size(self.memory_budget)

    def host_budget_bytes(self) -> int | None:
        """The memory budget of one host, or None; raises `InvalidSizeError` for an invalid size."""
        return None if self.host_memory_budget is None else parse_size(self.host_memory_budget)


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchOptions:
    """The search for a plan.

    - `planner`: "joint" decides sharding and recomputation together. "alpa" decides only sharding.
      "alpa+dots", "alpa+megatron" and "two-pass" first recompute by a rule and then decide
      sharding. "two-stage" first decides sharding, then recomputation of the sharded values.
      "kiwi-full" and "kiwi-reduced" are the paper's models, for small steps. "xla" decides nothing:
      XLA propagates the given shardings. On a mesh of one device there are also planners that
      recompute, such as "rotor", or that copy values to the host, such as "pofo". An object gives a
      planner its own parameters: `kiwi.literature.planners.Rotor(slots=200)`.
    - `solver`: a backend of `kiwi.solver.solve`.
    - `effort`: the work of the search: "quick", "normal" or "thorough". Work is counted and not
      timed, so that the plan is the same on every machine. On a machine as fast as the
      documentation's, a search ends after at most 10, 60 and 240 s. A plan that has to be tightened
      may take up to three times as long.
    - `time_limit_seconds`: the wall time after which the search ends. The best plan so far is
      returned with its gap and a note that another run may find another plan.
    - `gap`: the search may end once the plan's step time is proven to be within this fraction of
      the best step time.
    - `seed`: equal arguments and an equal seed give equal plans, unless the time limit ended the
      search.
    - `verify`: the compiler that checks the planned step. "auto" is the compiler of the profile's
      hardware, which works without the hardware. It fills `Plan.compiled`, and Kiwi plans again
      while the compiled peak is over the budget. Another compiler, such as "cpu" for virtual CPU
      devices, compiles the plan once, fills `Plan.cross_check` and changes no decision. "auto"
      falls back to such a compiler if the hardware's own compiler is not installed. "device"
      compiles for the attached devices. None compiles nothing.
    - `granularity`: "operators" decides for each operator whether it is recomputed. "names" gives
      each name of `jax.ad_checkpoint.checkpoint_name` one residency for all layers, as policies of
      `jax.checkpoint` and recipes of frameworks do (docs/guides/recipes.md). The planner is then
      "joint", which decides shardings, or "xla", which takes the function's own shardings.
    - `respect_user_checkpoint`: True keeps the recomputation that `jax.checkpoint` in `fun` asks
      for. By default, Kiwi plans all recomputation itself.
    - `respect_user_shardings`: True makes shardings in the function and of its arguments bind the
      plan (`with_sharding_constraint`, `reshard`, `out_sharding`, sharded
      `jax.ShapeDtypeStruct`s). False ignores them, and ignores each `shard_map` that contains only
      kernels with a sharding rule. `in_shardings`, `out_shardings`, `constraints` and hints always
      bind.
    - `while_trips`: the assumed number of iterations of a `while` whose condition does not show it:
      one number, or several numbers, each for loops whose name scope or source line contains a
      text.
    - `equal_layers`: True plans repeated layers of an unrolled program alike, if that costs less
      than 0.5 % of the step time. False lets each layer differ.
    - `corrections`: the prices that the compiled programs of another plan of the same model
      corrected (`Plan.corrections`), on a mesh of the same shape.
    - `on_progress`: called with a `kiwi.solver.Progress` when the solver improves its solution or
      its bound.
    - `any_time`: True lets the first Ctrl-C end the search and return the best plan so far. If
      there is no plan yet, `KeyboardInterrupt` is raised. The command `kiwi plan` sets this option.
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
    granularity: str = _option(
        "operators", "--granularity", "what has one residency: operators or names ({default})"
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
        for name, (is_valid, description) in _VALUES.items():
            value = getattr(self, name, None)
            if value is not None and not is_valid(value):
                raise InvalidArgumentError(
                    f"{name}={value!r} is not {description}.",
                    topic=topics.ARGUMENT,
                    suggestion=f"Pass {description}, or leave {name} out.",
                )
        for name in ("time_limit_seconds", "gap", "seed", "effort", "solver"):
            if getattr(self, name) is None:
                raise InvalidArgumentError(
                    f"{name}=None has no meaning.",
                    topic=topics.ARGUMENT,
                    suggestion=f"Leave {name} out, which takes the default.",
                )
        seconds = min(float(self.time_limit_seconds), MOST_SECONDS)
        object.__setattr__(self, "time_limit_seconds", seconds)

    @property
    def planner_name(self) -> str:
        """The name of the planner, whether it is given by name or as an object."""
        return self.planner if isinstance(self.planner, str) else self.planner.name


@dataclass(frozen=True, eq=False, kw_only=True)
class Options(SearchOptions, TargetOptions):
    """All options.

    - `open_loops`: True plans the body of a `scan` or a `while` operator by operator, once for all
      its iterations. The branches of a `cond` or `switch` are planned in the same way. False plans
      each loop or conditional as one replicated operator. Planners of schedules ("two-pass",
      "two-stage", the paper's models, and the planners for one device) need False for a step with
      loops or branches.
    - `offload_arguments`: True lets arguments that results replace in the next step (moments,
      master weights, parameters) lie in host memory, within `host_memory_budget`, if that makes the
      step faster or lets it fit. The step is then planned several times.
    - `plan_cache`: True takes the plan of an earlier equal request (same function, arguments,
      options, hardware and versions) from the user's cache folder. False neither reads nor writes
      this folder. The environment variable `KIWI_PLAN_CACHE` names another folder, or is "off".
    - `constraints`: a `kiwi.Constraints`: shardings of arguments by path, and arguments that must
      not be replicated. `kiwi.hint` pins values inside `fun`.
    - `static_argnums`, `static_argnames`, `donate_argnums`, `donate_argnames`, `in_shardings`,
      `out_shardings`: as in `jax.jit`. A given sharding is respected; None leaves it to the
      planner.
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
        """The settings of a plan.

        - `table`: the profile's table.
        - `context`: the mesh in the caller's context.

        **Raises:** `InvalidMeshError` or `InvalidSizeError` for an invalid mesh or size;
        `InvalidArgumentError` if two meshes are given, or if arguments may be offloaded without a
        host budget.
        """
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
            **{option.name: getattr(self, option.name) for option in fields(SearchOptions)},
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Settings(SearchOptions):
    """The settings of a plan: the options of the search, the mesh, and the budgets.

    - `memory_budget_bytes`: the budget of one device.
    - `host_budget_bytes`: the budget of one host; None offloads nothing.
    - `constraints`: the caller's pins of arguments.
    - `dropped_pins`: the labels of pins, of arguments or from hints, that are ignored.
    - `notes`: notes about the settings for the reader of a plan.
    """

    mesh: DeviceMesh
    memory_budget_bytes: int
    host_budget_bytes: int | None = None
    constraints: Constraints = field(default_factory=Constraints)
    dropped_pins: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = ()

    @property
    def host_limit_bytes(self) -> int | None:
        """The part of the host's budget that one device may use, in bytes; None offloads
        nothing."""
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
    granularity: str
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
    """Yields the options that the command line has, with their flags."""
    for option in fields(Options):
        if "flag" in option.metadata:
            yield option, option.metadata["flag"]


IN_FILES = tuple(
    option.name for option in fields(SearchOptions) if option.metadata.get("in_files", True)
)
"""The names of the options of the search that plan files contain."""


def options_among(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a mapping whose names are options."""
    names = {option.name for option in fields(Options)}
    return {name: value for name, value in given.items() if name in names}


def documents_options(function: _Function) -> _Function:
    """Appends the documentation of all options to the docstring of a function that takes them."""
    documented = (function, TargetOptions, SearchOptions, Options)
    function.__doc__ = "\n\n".join(
        inspect.cleandoc(documented_object.__doc__ or "") for documented_object in documented
    )
    return function


def shows_options(function: _Function) -> _Function:
    """Gives a function with `**options` the signature and the documentation of all options, for
    `help` and `inspect.signature`."""
    signature = inspect.signature(function)
    explicit = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    parameters = [*explicit, *inspect.signature(Options).parameters.values()]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return documents_options(function)
