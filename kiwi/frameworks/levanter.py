"""Levanter: reads the training step of a trainer as a step and a recipe, lets the trainer train
under a plan, and writes a recipe as a configuration.

The step is the trainer's own, with its axis mappings, microbatches and mixed precision. The module
needs the package `marin-levanter`; docs/guides/levanter.md lists the packages that may be missing.
"""

import copy
import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from kiwi.api import PlannedFunction
from kiwi.errors import InvalidArgumentError
from kiwi.frameworks import stand_ins
from kiwi.frameworks.described import (
    described_devices,
    devices_are,
    imported,
    planned_step,
    unattached,
)
from kiwi.hlo.checkpoint_names import DEVICE, OFFLOAD
from kiwi.json_file import write_text
from kiwi.messages import topics
from kiwi.plans.export.partition_specs import LogicalRules, MeshAxes
from kiwi.plans.plan import Plan
from kiwi.recipes import Recipe, Step
from kiwi.version import VERSION

STAND_INS = (
    *("dataclasses_json", "datasets", "deepdiff", "finelog", "finestore", "fray", "git"),
    *("huggingface_hub", "humanfriendly", "iris", "jinja2", "pyarrow", "pydantic", "pytimeparse"),
    *("requests", "rigging", "safetensors", "tblib", "tokenizers", "tqdm_loggable"),
    *("transformers", "wandb", "zephyr"),
)
"""Packages that Levanter imports for data, logging, clusters and checkpoints. Where one is not
installed, an empty module can stand in for it."""

PARAMETERS, COMPUTE = "parameters/", "compute/"
"""What a recipe's logical axes begin with: the mapping that their rules belong to."""

_CARRY, _INPUT = "__carry", "__input"
"""The ends of the names that Haliax gives to a block's carry and to its other inputs. The names of
`Stacked` blocks end in `.carry` and `.input` in some versions."""


def install_stand_ins() -> None:
    """Installs empty modules for the packages of `STAND_INS` that are not installed. They suffice
    for planning, and for training without logs and checkpoints. Call it before Levanter is
    imported."""
    stand_ins.install(STAND_INS)


def described(trainer: Any, make_model: Callable[[], Any], is_trainable: Any = True) -> Any:
    """The trainer's state with shapes instead of arrays, for `Levanter`.

    - `make_model`: makes the model. Its arrays are never allocated.
    - `is_trainable`: as in `Trainer.initial_state`.
    """
    modules, config = _modules(), trainer.config

    def init() -> Any:
        return modules.trainer_state.TrainerState.init(
            trainer.optimizer,
            make_model(),
            key=jax.random.PRNGKey(0),
            is_trainable=is_trainable,
            mp=trainer.mp,
            quantization=config.quantization,
            model_averaging=config.model_averaging,
        )

    return modules.equinox.filter_eval_shape(init)


@dataclass(frozen=True, eq=False)
class Levanter:
    """The training step of a Levanter trainer.

    - `trainer`: the trainer.
    - `state`: its state, as `initial_state` or `described` make it.
    - `batch`: a batch as the trainer's data loader yields it; arrays or `jax.ShapeDtypeStruct`s in
      named arrays.
    - `profile`, `topology`, `num_slices`: as in `kiwi.plan`. With `topology`, the step is for
      devices that need not be attached.

    An object of this class is a function that makes a recipe's step, as `kiwi.recipes.price` takes
    it. The recipe's logical axes begin with "parameters/" or "compute/".
    """

    trainer: Any
    state: Any
    batch: Any
    profile: str = "v5e"
    topology: str | None = None
    num_slices: int = 1

    donated = (0,)
    """The arguments of the step that it overwrites: the state."""

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe of the trainer's configuration. Residencies come from the traced step."""
        config = self.trainer.config
        with devices_are(self._mesh(config).devices):
            within, across = config.mesh.axis_shapes(jax.device_count(), self.num_slices)
            batch_size, microbatch = _batch_size(config), config.microbatch_size
        mappings = (
            (PARAMETERS, config.parameter_axis_mapping),
            (COMPUTE, config.compute_axis_mapping),
        )
        rules = [(kind + axis, cut) for kind, mapping in mappings for axis, cut in mapping.items()]
        return Recipe(
            {**within, **dict.fromkeys(across, 1)},
            {axis: count for axis, count in across.items() if count > 1},
            tuple(rules),
            batch_size=batch_size,
            microbatches=1 if microbatch is None else batch_size // microbatch,
        )

    @property
    def args(self) -> tuple[Any, Any]:
        """The arguments of the step: the arrays of the state and of the batch."""
        return _arrays(self.state), _arrays(((self.batch,), {}))

    def __call__(self, recipe: Recipe) -> Step:
        """Returns the step of a recipe, with Levanter's layouts of its state and batch."""
        trainer = self._trainer(recipe)
        mesh = self._mesh(trainer.config)
        batch = _resized(self.batch, trainer.config.batch_axis_name, recipe.batch_size)
        args = _arrays(self.state), _arrays(((batch,), {}))
        mappings = trainer.parameter_axis_mapping, trainer.compute_axis_mapping
        layouts = tuple(
            _layouts(part, mapping, mesh) for part, mapping in zip(args, mappings, strict=True)
        )
        function, _ = self._function(trainer, mesh, batch)
        options = {**self._options, "mesh": mesh, "in_shardings": layouts}
        return Step(function, args, options, mesh=self._context(mesh))

    def plan(self, **options: Any) -> Plan:
        """Plans the step, free of Levanter's layouts and of its gradient checkpointing.

        - `options`: options of `kiwi.plan`, such as `memory_budget`. With
          `respect_user_shardings=True` the plan follows Levanter's constraints of activations and
          results, with `respect_user_checkpoint=True` its gradient checkpointing.

        **Raises:** the errors of `kiwi.plan`.
        """
        planned, _, context = self._planned(options)
        with context:
            return planned.plan(*self.args)

    def train_under_plan(self, **options: Any) -> Plan:
        """Plans the step as `plan`, and lets the trainer train under the plan. Returns the plan.

        Steps at which a callback looks into the step (`JitCallback`) stay Levanter's own.

        **Raises:** the errors of `kiwi.plan`; `InvalidArgumentError` if the devices are not
        attached.
        """
        if self.topology is not None:
            raise unattached("leave out the topology")
        planned, rest, context = self._planned(options)
        with context:
            plan = planned.plan(*self.args)
        vars(self.trainer)["_jit_train_step_fn_no_hook"] = _PlannedStep(planned, rest)
        return plan

    def policy(self, recipe: Recipe) -> Any:
        """The `ScanCheckpointPolicy` that gives names the residencies of a recipe.

        **Raises:** `InvalidArgumentError` if the recipe has no residencies.
        """
        return _modules().scan.ScanCheckpointPolicy(**_policy(recipe))

    def axis_mapping(self, plan: Plan) -> LogicalRules:
        """The axis mapping of parameters that comes nearest to a plan of the step, and the
        parameters that lie differently under it."""
        return plan.logical_rules((_axis_names(self.args[0]), _axis_names(self.args[1])))

    def changes(self, recipe: Recipe) -> dict[str, Any]:
        """The settings with which the configuration becomes a recipe's, as in Levanter's
        configuration files: of the trainer, and of the model's gradient checkpointing.

        **Raises:** `InvalidArgumentError` if Levanter has no setting for the recipe's slices.
        """
        configured, trainer = self.recipe, {}
        if (recipe.mesh, recipe.slices, recipe.logical_rules) != (
            configured.mesh,
            configured.slices,
            configured.logical_rules,
        ):
            trainer["mesh"] = _mesh_settings(recipe, self._axes_across_slices)
        if recipe.batch_size not in (None, configured.batch_size):
            trainer["train_batch_size"] = recipe.batch_size
        asked = recipe.microbatches or 1, recipe.batch_size, recipe.axes
        if asked != (configured.microbatches, configured.batch_size, configured.axes):
            trainer["per_device_parallelism"] = _per_device(recipe)
        settings: dict[str, Any] = {"trainer": trainer} if trainer else {}
        if recipe.residencies is not None:
            settings["model"] = {"gradient_checkpointing": _policy(recipe)}
        return settings

    def write_overrides(self, recipe: Recipe, path: str | Path) -> None:
        """Writes the changes of a recipe as a file in the form of Levanter's configuration files.

        **Raises:** `InvalidArgumentError` if the file cannot be written.
        """
        yaml: Any = importlib.import_module("yaml")
        head = f"# Written by Kiwi {VERSION}.\n"
        write_text(head + yaml.safe_dump(self.changes(recipe), sort_keys=False), path)

    @property
    def _axes_across_slices(self) -> list[str]:
        return [*_modules().mesh.DEFAULT_DCN_AXIS_SPEC | self.trainer.config.mesh.dcn_axes]

    @property
    def _options(self) -> dict[str, Any]:
        own = {"profile": self.profile, "topology": self.topology, "donate_argnums": self.donated}
        return own if self.num_slices == 1 else {**own, "num_slices": self.num_slices}

    def _planned(self, options: Mapping[str, Any]) -> tuple[PlannedFunction, list[Any], Any]:
        """Returns the step to plan, the list that receives the rest of its result, and the context
        in which it is planned."""
        mesh = self._mesh(self.trainer.config)
        function, rest = self._function(self.trainer, mesh, self.batch)
        free = {"respect_user_shardings": False, "in_shardings": (None, self._batch_layout(mesh))}
        planned = planned_step(function, {**self._options, "mesh": mesh, **free, **options})
        return planned, rest, Step(function, self.args, mesh=self._context(mesh)).context()

    def _context(self, mesh: Mesh) -> Mesh | AbstractMesh:
        """Returns the mesh of the context in which the step is traced."""
        return mesh if self.topology is None else mesh.abstract_mesh

    def _batch_layout(self, mesh: Mesh) -> Any:
        return _layouts(self.args[1], self.trainer.compute_axis_mapping, mesh)

    def _mesh(self, config: Any) -> Mesh:
        if self.topology is None:
            return config.device_mesh
        devices = described_devices(self.profile, self.topology, self.num_slices)
        within, across = config.mesh.axis_shapes(len(devices), self.num_slices)
        return _modules().mesh.create_mesh_from_axis_specs(
            ici_axes=within, dcn_axes=across, devices=devices
        )

    def _trainer(self, recipe: Recipe) -> Any:
        """Returns the trainer with a recipe's configuration."""
        changes = self.changes(replace(recipe, residencies=None)).get("trainer", {})
        if not changes:
            return self.trainer
        config = self.trainer.config
        if "mesh" in changes:
            changes["mesh"] = replace(config.mesh, **changes["mesh"])
        trainer = copy.copy(self.trainer)
        trainer.config = replace(config, **changes)
        for name in ("loss_fn", "_jit_train_step_fn", "_jit_train_step_fn_no_hook"):
            vars(trainer).pop(name, None)
        return trainer

    def _function(
        self, trainer: Any, mesh: Mesh, batch: Any
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Returns the step as a function of arrays, and a list that receives the rest of its result
        when it is traced."""
        equinox, haliax = _modules().equinox, _modules().haliax
        rest_of_result: list[Any] = []
        rest = equinox.partition((self.state, ((batch,), {})), _is_array)[1]

        def parted(result: Any) -> tuple[Any, list[Any]]:
            arrays, rest = equinox.partition(result, _is_array)
            return arrays, [rest]

        def train_step(state: Any, batch: Any) -> Any:
            whole_state, (args, kwargs) = equinox.combine((state, batch), rest)
            with devices_are(mesh.devices), haliax.axis_mapping(trainer.parameter_axis_mapping):
                result = trainer._train_step(whole_state, args, kwargs, _no_hooks=True)
            arrays, rest_of_result[:] = parted(result)
            return arrays

        return train_step, rest_of_result


class _PlannedStep:
    """A planned step in the form in which a trainer keeps its compiled step."""

    def __init__(self, planned: PlannedFunction, rest: list[Any]) -> None:
        self._planned, self._rest = planned, rest

    def __call__(self, state: Any, batch: Any, batch_kwargs: Any) -> Any:
        arrays = self._planned(_arrays(state), _arrays((batch, batch_kwargs)))
        return _modules().equinox.combine(arrays, self._rest[0])

    def lower(self, state: Any, batch: Any, batch_kwargs: Any) -> Any:
        """The lowered step, which Levanter logs."""
        args = _arrays(state), _arrays((batch, batch_kwargs))
        return jax.jit(lambda *args: self._planned(*args)).lower(*args)


def _policy(recipe: Recipe) -> dict[str, Any]:
    """Returns the fields of the policy that gives names the residencies of a recipe."""
    if recipe.residencies is None:
        raise InvalidArgumentError(
            "The recipe states no residencies.",
            topic=topics.RECIPE,
            suggestion="kiwi.recipes.best(...).recipe, or the `named` recipe of a priced one.",
        )
    fields: dict[str, Any] = {"save_carries": False, "save_inputs": False}
    kept: list[str] = []
    offloaded: list[str] = []
    for name, residency in recipe.residencies.items():
        value = {DEVICE: True, OFFLOAD: "offload"}.get(residency, False)
        if name.endswith(_CARRY):
            fields["save_carries"] = value
        elif name.endswith(_INPUT):
            fields["save_inputs"] = value
        elif value:
            (kept if residency == DEVICE else offloaded).append(name)
    return {**fields, "save_block_internals": kept, "offload_block_internals": offloaded}


def _mesh_settings(recipe: Recipe, across: Sequence[str]) -> dict[str, Any]:
    """Returns the settings of a recipe's mesh and axis mappings. Levanter has other axes across
    slices (`across`) than within a slice."""
    within = [axis for axis in recipe.slices if axis not in across]
    if within:
        raise InvalidArgumentError(
            f"In Levanter the axis {within[0]!r} lies within a slice.",
            topic=topics.RECIPE,
            suggestion=f"Slices along {', '.join(across)}.",
        )
    mappings: dict[str, dict[str, Any]] = {PARAMETERS: {}, COMPUTE: {}}
    for axis, cut in recipe.logical_rules:
        for kind, mapping in mappings.items():
            if axis.startswith(kind):
                mapping[axis.removeprefix(kind)] = _listed(cut)
    return {
        "axes": {axis: n for axis, n in recipe.mesh.items() if axis not in across},
        "dcn_axes": {axis: recipe.slices.get(axis, 1) for axis in across},
        "param_mapping": mappings[PARAMETERS],
        "compute_mapping": mappings[COMPUTE],
    }


def _listed(cut: MeshAxes) -> Any:
    return list(cut) if isinstance(cut, tuple) else cut


def _per_device(recipe: Recipe) -> int:
    """Returns the samples of one device that are computed at once."""
    cut = recipe.rules.get(COMPUTE + "batch", (None,))[0]
    axes = (cut,) if isinstance(cut, str) else cut or ()
    parts = math.prod(recipe.axes[axis] for axis in axes) * (recipe.microbatches or 1)
    return (recipe.batch_size or 0) // parts


def _batch_size(config: Any) -> int:
    size = config.train_batch_size
    return int(size if isinstance(size, int) else config.batch_axis_at_step(0).size)


def _resized(batch: Any, axis: str, size: int | None) -> Any:
    """Returns the types of a batch with another number of samples."""
    named_array = _modules().haliax.NamedArray

    def resized(leaf: Any) -> Any:
        if size is None or not isinstance(leaf, named_array) or axis not in leaf.axis_names:
            return leaf
        place = leaf.axis_names.index(axis)
        shape = (*leaf.array.shape[:place], size, *leaf.array.shape[place + 1 :])
        return named_array(jax.ShapeDtypeStruct(shape, leaf.array.dtype), leaf.axis_names)

    return jax.tree.map(resized, batch, is_leaf=lambda node: isinstance(node, named_array))


def _layouts(tree: Any, mapping: Mapping[str, Any], mesh: Mesh) -> Any:
    return _modules().partitioning.infer_resource_partitions(tree, mapping, mesh)


def _axis_names(tree: Any) -> Any:
    """Returns the names of each array's axes, None for an array without names."""
    named_array = _modules().haliax.NamedArray
    names = lambda leaf: leaf.axis_names if isinstance(leaf, named_array) else None  # noqa: E731
    return jax.tree.map(names, tree, is_leaf=lambda node: isinstance(node, named_array))


def _arrays(tree: Any) -> Any:
    return _modules().equinox.filter(tree, _is_array)


def _is_array(leaf: Any) -> bool:
    return _modules().equinox.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


@functools.cache
def _modules() -> Any:
    """Returns Levanter's modules; raises `InvalidArgumentError` if Levanter cannot be imported."""
    names = {
        "equinox": "equinox",
        "haliax": "haliax",
        "mesh": "levanter.utils.mesh",
        "partitioning": "haliax.partitioning",
        "scan": "haliax.nn",
        "trainer_state": "levanter.trainer_state",
    }
    suggestion = "pip install marin-levanter; docs/guides/levanter.md lists what it needs."
    return imported("Levanter", names, suggestion)
