"""Tunix: reads the training step of a trainer as a step and a recipe, and lets the trainer train
under a plan.

The trainers are `PeftTrainer` and its subclasses: supervised training, distillation, preferences
(DPO, ORPO), and the actor and critic of reinforcement learning. The step is the trainer's own, with
its loss function, adapters and accumulation of gradients. The module needs the package
`google-tunix`.
"""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from kiwi.api import PlannedFunction
from kiwi.errors import InvalidArgumentError
from kiwi.frameworks import stand_ins
from kiwi.frameworks.described import (
    described_devices,
    devices_are,
    planned_step,
    unattached,
)
from kiwi.messages import topics
from kiwi.plans.plan import Plan
from kiwi.recipes import Recipe, Step

STAND_INS = (
    *("datasets", "dotenv", "grain", "hf_transfer", "huggingface_hub", "kagglehub", "metrax"),
    *("omegaconf", "perfetto", "pylatexenc", "safetensors", "sentencepiece", "sympy", "tenacity"),
    *("tensorflow_datasets", "transformers"),
)
"""Packages that Tunix imports for data, logging and checkpoints. Where one is not installed, an
empty module can stand in for it."""

TRAINED, OPTIMIZER, OTHERS, FROZEN, BATCH = range(5)
"""The arguments of the step: the trained variables, the optimizer's, those that are neither trained
nor parameters (such as generators of random numbers), the frozen parameters, and the batch."""


def install_stand_ins() -> None:
    """Installs empty modules for the packages of `STAND_INS` that are not installed. They suffice
    for planning and for training without logs. Call it before Tunix is imported."""
    stand_ins.install(STAND_INS)


def described(make_trainer: Callable[[], Any]) -> Any:
    """A trainer whose model and optimizer have shapes instead of arrays.

    `make_trainer`: makes the model and its trainer. Its arrays are never allocated.
    """
    nnx, made = _nnx(), []

    def make() -> Any:
        made.append(make_trainer())
        return made[0].model, made[0].optimizer

    model, optimizer = nnx.eval_shape(make)
    trainer = made[0]
    trainer.model, trainer.optimizer = model, optimizer
    return trainer


@dataclass(frozen=True, eq=False)
class Tunix:
    """The training step of a Tunix trainer.

    - `trainer`: the trainer, with its loss function and its model's adapters.
    - `batch`: a batch as the trainer's data set yields it; arrays or `jax.ShapeDtypeStruct`s.
    - `mesh`: the mesh that the trainer trains on. With `topology` it needs no devices.
    - `profile`, `topology`, `num_slices`: as in `kiwi.plan`. With `topology`, the step is for
      devices that need not be attached.
    - `donate_model`: whether a step may overwrite the trained variables. Tunix lets it overwrite
      only the optimizer's. Leave it False if anything else holds the model's arrays.

    An object of this class is a function that makes a recipe's step, as `kiwi.recipes.price` takes
    it. The recipe's batch is the batch of one call: a trainer accumulates gradients over calls.
    """

    trainer: Any
    batch: Any
    mesh: Mesh | AbstractMesh
    profile: str = "h100-sxm"
    topology: str | None = None
    num_slices: int = 1
    donate_model: bool = False

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe of the trainer: its mesh and batch. Tunix's layouts of variables name mesh
        axes, and its models have no names of `checkpoint_name`."""
        sizes = dict(self.mesh.shape)
        return Recipe(sizes, batch_size=_batch_size(self._inputs), microbatches=1)

    @property
    def donated(self) -> tuple[int, ...]:
        """The arguments of the step that it overwrites."""
        return (TRAINED, OPTIMIZER) if self.donate_model else (OPTIMIZER,)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the step: the trainer's variables, and the batch."""
        return (*self._states(), self._inputs)

    def __call__(self, recipe: Recipe) -> Step:
        """Returns the step of a recipe, with the trainer's layouts of variables and batch."""
        self._check_batch(recipe)
        mesh = self._mesh(recipe.axes)
        options = {
            **self._options,
            "mesh": mesh,
            "in_shardings": tuple(map(functools.partial(_placed, mesh), self._specs(mesh))),
        }
        return Step(self._function(mesh), self.args, options)

    def plan(self, **options: Any) -> Plan:
        """Plans the step, free of Tunix's layouts of variables and of its recomputation.

        - `options`: options of `kiwi.plan`, such as `memory_budget`. With
          `respect_user_shardings=False` the plan is also free of Tunix's constraints of
          activations, with `respect_user_checkpoint=True` it recomputes as Tunix does.

        **Raises:** the errors of `kiwi.plan`.
        """
        return self._planned(options).plan(*self.args)

    def train_under_plan(self, **options: Any) -> Plan:
        """Plans the step as `plan`, and lets the trainer train under the plan. Returns the plan.

        The trainer makes its own step again if its loss function changes.

        **Raises:** the errors of `kiwi.plan`; `InvalidArgumentError` if the mesh has no devices.
        """
        if self.topology is not None or not isinstance(self.mesh, Mesh):
            raise unattached("give the mesh of attached devices")
        planned = self._planned(options)
        plan = planned.plan(*self.args)
        with self.mesh:
            self.trainer.jit_train_and_eval_step(cache_nnx_graph=True)
        self.trainer._jitted_train_step_fn = _PlannedStep(self.trainer, planned)
        return plan

    def _planned(self, options: Mapping[str, Any]) -> PlannedFunction:
        mesh = self._mesh(self.mesh.shape)
        batch_sharding = _placed(mesh, self._specs(mesh)[BATCH])
        layouts = {"mesh": mesh, "in_shardings": (None, None, None, None, batch_sharding)}
        return planned_step(self._function(mesh), {**self._options, **layouts, **options})

    @property
    def _options(self) -> Mapping[str, Any]:
        own = {"profile": self.profile, "topology": self.topology, "donate_argnums": self.donated}
        return own if self.num_slices == 1 else {**own, "num_slices": self.num_slices}

    @functools.cached_property
    def _inputs(self) -> Any:
        """The batch as the trainer prepares it, as types of arrays."""
        leaves, tree = jax.tree.flatten(self.batch)
        if all(hasattr(leaf, "dtype") for leaf in leaves):
            types = jax.tree.unflatten(tree, map(_type, leaves))
            return jax.eval_shape(lambda batch: _prepared(self.trainer, batch), types)
        return jax.tree.map(_type, self.trainer._prepare_inputs(self.batch))  # Text, for example.

    def _states(self) -> tuple[Any, Any, Any, Any]:
        _, *states = _split(self.trainer)
        return tuple(states)  # type: ignore[return-value]

    def _specs(self, mesh: Mesh) -> tuple[Any, ...]:
        spec = PartitionSpec(*self.trainer.config.data_sharding_axis)
        of_batch = jax.tree.map(lambda leaf: _divisible(spec, leaf.shape, mesh), self._inputs)
        return (*map(_nnx().get_partition_spec, self._states()), of_batch)

    def _mesh(self, sizes: Mapping[str, int]) -> Mesh:
        if self.topology is not None:
            devices: Any = described_devices(self.profile, self.topology, self.num_slices)
        elif isinstance(self.mesh, Mesh):
            devices = self.mesh.devices.flat
        else:
            devices = jax.devices()
        shape = tuple(sizes.values())
        chosen = np.array(list(devices)[: int(np.prod(shape))]).reshape(shape)
        return Mesh(chosen, tuple(sizes))

    def _check_batch(self, recipe: Recipe) -> None:
        if recipe.batch_size not in (None, self.recipe.batch_size):
            raise InvalidArgumentError(
                f"The batch has {self.recipe.batch_size} samples, the recipe {recipe.batch_size}.",
                topic=topics.RECIPE,
                suggestion="A Tunix(...) with a batch of that size.",
            )

    def _function(self, mesh: Mesh) -> Callable[..., Any]:
        nnx, trainer = _nnx(), self.trainer
        (model_graph, optimizer_graph), *_ = _split(trainer)

        def train_step(trained: Any, optimizer: Any, others: Any, frozen: Any, batch: Any) -> Any:
            model = nnx.merge(model_graph, trained, frozen, others)
            merged = nnx.merge(optimizer_graph, optimizer)
            with mesh, devices_are(mesh.devices):
                result = trainer.create_train_step_fn()(model, merged, batch)
            _, trained, _, others = nnx.split(model, trainer.optimizer.wrt, nnx.Param, ...)
            return result, (trained, nnx.state(merged), others)

        return train_step


class _PlannedStep:
    """A planned step in the form in which a trainer keeps its compiled step."""

    def __init__(self, trainer: Any, planned: PlannedFunction) -> None:
        self._trainer, self._planned = trainer, planned

    @property
    def func(self) -> "_PlannedStep":
        return self

    jitted_fn = func

    def _cache_size(self) -> int:
        return 1

    def __call__(self, batch: Any) -> Any:
        trainer, nnx = self._trainer, _nnx()
        _, *states = _split(trainer)
        result, (trained, optimizer, others) = self._planned(*states, batch)
        nnx.update(trainer.model, trained, others)
        nnx.update(trainer.optimizer, optimizer)
        return result


def _split(trainer: Any) -> tuple[Any, ...]:
    """Returns the graphs of a trainer's model and optimizer, and the variables in the order of the
    step's arguments."""
    nnx = _nnx()
    model, trained, frozen, others = nnx.split(trainer.model, trainer.optimizer.wrt, nnx.Param, ...)
    optimizer, state = nnx.split(trainer.optimizer)
    return (model, optimizer), trained, state, others, frozen


def _prepared(trainer: Any, batch: Any) -> Any:
    """Returns the batch as a trainer prepares it, in a trace. The models that prepare it, such as a
    teacher, become models of the trace: Flax changes no model of another one."""
    nnx = _nnx()
    own = {
        name: value
        for name, value in vars(trainer).items()
        if isinstance(value, nnx.Module) and name not in ("model", "optimizer")
    }
    try:
        vars(trainer).update({name: nnx.merge(*nnx.split(m), copy=True) for name, m in own.items()})
        return trainer._prepare_inputs(batch)
    finally:
        vars(trainer).update(own)


def _placed(mesh: Mesh, specs: Any) -> Any:
    is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def _divisible(spec: PartitionSpec, shape: Sequence[int], mesh: Mesh) -> PartitionSpec:
    """Returns the layout of a batch's array as Tunix chooses it: whole, if the mesh does not divide
    it."""
    if not shape or len(shape) < len(spec):
        return PartitionSpec()
    for size, axes in zip(shape, spec, strict=False):
        named = () if axes is None else (axes,) if isinstance(axes, str) else axes
        if size % int(np.prod([mesh.shape[axis] for axis in named], dtype=int)):
            return PartitionSpec()
    return spec


def _type(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)


def _batch_size(inputs: Any) -> int | None:
    leaves = [leaf for leaf in jax.tree.leaves(inputs) if leaf.ndim]
    return int(leaves[0].shape[0]) if leaves else None


@functools.cache
def _nnx() -> Any:
    return importlib.import_module("flax.nnx")
