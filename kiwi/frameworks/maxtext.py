"""MaxText: reads a configuration as a step and a recipe, and writes a recipe as a file of
overrides.

The step is the one that MaxText's own `train_compile` compiles: its model, optimizer, shardings and
mesh, for devices that need not be attached. The module needs the package `maxtext`.
docs/guides/maxtext.md lists its other requirements, and the packages that may be missing.

MaxText sets JAX's default generator of random numbers to "unsafe_rbg". So does this module when it
reads a configuration.
"""

import contextlib
import functools
import importlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType

from kiwi.errors import InvalidArgumentError
from kiwi.frameworks import stand_ins
from kiwi.frameworks.described import described_devices, imported
from kiwi.hlo.checkpoint_names import DEVICE, OFFLOAD
from kiwi.json_file import write_text
from kiwi.messages import topics
from kiwi.quiet import start_backends
from kiwi.recipes import Recipe, Step
from kiwi.version import VERSION

STAND_INS = (
    *("array_record", "cloud_accelerator_diagnostics", "datasets", "google_cloud_mldiagnostics"),
    *("grain", "huggingface_hub", "jetstream", "ml_goodput_measurement", "pathwaysutils"),
    *("safetensors", "sentencepiece", "seqio", "tensorboardX", "tensorflow"),
    *("tensorflow_datasets", "tiktoken", "tokenizers", "transformers", "xprof"),
)
"""Packages that MaxText imports for data, logging and checkpoints. If a package is not installed,
an empty module stands in for it."""

_QUIET = {"dataset_type": "synthetic", "enable_checkpointing": False, "run_name": "kiwi"}
"""Settings with which MaxText needs no data and no storage. They do not change the step."""

_OF_AXES = {"stage": "pipeline", "model": "tensor"}
"""The names of mesh axes in MaxText's settings, for axes whose names differ."""

_NO_REMAT = "none"
"""MaxText's policy without any `jax.checkpoint`."""


@dataclass(frozen=True)
class MaxText:
    """A MaxText configuration for a machine.

    - `config`: the path of a YAML file, or the name of one that comes with MaxText ("base.yml").
    - `overrides`: settings by name, as they follow the file on MaxText's command line.
    - `profile`, `topology`, `num_slices`: as in `kiwi.plan`. Without `topology`, the step is for
      the devices that JAX has.

    An object of this class is a function that makes a recipe's step, as `kiwi.recipes.price` takes
    it.
    """

    config: str
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)
    profile: str = "v5e"
    topology: str | None = None
    num_slices: int = 1

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe of the configuration.

        **Raises:** `InvalidArgumentError` if MaxText refuses the configuration.
        """
        config = self._config({})
        sizes = dict(zip(config.mesh_axes, self._sizes(config, "ici"), strict=True))
        slices = dict(zip(config.mesh_axes, self._sizes(config, "dcn"), strict=True))
        return Recipe(
            sizes,
            {axis: count for axis, count in slices.items() if count > 1},
            tuple((rule[0], _axes(rule[1])) for rule in config.logical_axis_rules),
            self._residencies(config),
            int(config.global_batch_size_to_train_on),
            int(config.gradient_accumulation_steps),
            dict(_modules().max_utils.parse_libtpu_flags_to_dict(config.compile_xla_flags)),
        )

    def __call__(self, recipe: Recipe) -> Step:
        """Returns the step of a recipe, with MaxText's shardings of its state and batch."""
        modules, config = _modules(), self._config(self.changes(recipe))
        mesh = self._mesh(config)
        compiles, sharding = modules.train_compile, modules.sharding
        args, _, state, _, model = compiles.get_shaped_inputs(mesh, config)
        params, state = sharding.maybe_update_params_sharding_with_opt(config, state)
        state_shardings = sharding.build_zero1_input_state_mesh_shardings(config, state, params)
        data = sharding.get_input_data_sharding(config, mesh)
        function, in_shardings, out_shardings, _, donated = (
            modules.maxtext_utils.get_functional_train_with_signature(
                modules.train.train_step, data, state_shardings, model, config, params
            )
        )
        options = {
            "mesh": mesh,
            "profile": self.profile,
            "topology": self.topology,
            "in_shardings": in_shardings,
            "out_shardings": out_shardings,
            "donate_argnums": donated,
        }
        return Step(function, args, options, mesh=mesh)

    def changes(self, recipe: Recipe) -> dict[str, Any]:
        """The settings with which the configuration becomes a recipe's configuration.

        **Raises:** `InvalidArgumentError` if MaxText has no setting for a name's residency.
        """
        configured = self.recipe
        new_settings: dict[str, Any] = {}
        if recipe.residencies is not None and recipe.residencies != configured.residencies:
            new_settings |= self._residency_settings(recipe.residencies)
        elif recipe.residencies is None and self._config({}).remat_policy == _NO_REMAT:
            new_settings["remat_policy"] = "full"  # A policy needs a jax.checkpoint.
        if recipe.logical_rules != configured.logical_rules:
            rules = [[axis, _listed(cut)] for axis, cut in recipe.logical_rules]
            new_settings |= {"override_logical_axis_rules": True, "logical_axis_rules": rules}
        for kind, configured_sizes, recipe_sizes in (
            ("ici", configured.mesh, recipe.mesh),
            ("dcn", configured.slices, recipe.slices),
        ):
            for axis in recipe.mesh:
                count = recipe_sizes.get(axis, 1)
                if count != configured_sizes.get(axis, 1):
                    new_settings[f"{kind}_{_OF_AXES.get(axis, axis)}_parallelism"] = count
        if recipe.microbatches not in (None, configured.microbatches):
            new_settings["gradient_accumulation_steps"] = recipe.microbatches
        asked = recipe.batch_size, recipe.device_count, recipe.microbatches or 1
        if (
            asked != (configured.batch_size, configured.device_count, configured.microbatches)
            and recipe.batch_size
        ):
            samples = recipe.batch_size / recipe.device_count / (recipe.microbatches or 1)
            new_settings["per_device_batch_size"] = samples
        return new_settings

    def write_overrides(self, recipe: Recipe, path: str | Path) -> None:
        """Writes a configuration file of MaxText for a recipe. The file names this configuration's
        file as its base, and contains the overrides and the recipe's changes.

        **Raises:** `InvalidArgumentError` if the file cannot be written.
        """
        yaml: Any = importlib.import_module("yaml")
        content = {"base_config": str(Path(self._path).resolve())}
        content |= {name: _plain(value) for name, value in self.overrides.items()}
        content |= self.changes(recipe)
        head = f"# Written by Kiwi {VERSION}.\n"
        write_text(head + yaml.safe_dump(content, sort_keys=False), path)

    def _residency_settings(self, residencies: Mapping[str, str]) -> dict[str, Any]:
        """Returns the settings of the policy `custom`, with the residency of each tensor that
        MaxText's settings know. Tensors without a residency are recomputed."""
        config = self._config({})
        known = [name for name in residencies if hasattr(config, name)]
        lost = [name for name in set(residencies) - set(known) if residencies[name] != "remat"]
        if lost:
            raise InvalidArgumentError(
                f"MaxText has no setting for the residency of {', '.join(sorted(lost))}.",
                topic=topics.RECIPE,
            )
        return {"remat_policy": "custom"} | {name: residencies[name] for name in known}

    def _residencies(self, config: Any) -> dict[str, str] | None:
        """Returns the residencies of a policy that states them all; None for other policies, whose
        residencies come from the traced step."""
        if config.remat_policy not in ("custom", "qkv_proj_offloaded", "minimal_offloaded"):
            return None
        saved, offloaded = _modules().maxtext_utils.get_save_and_offload_names(config)
        return dict.fromkeys(saved, DEVICE) | dict.fromkeys(offloaded, OFFLOAD)

    @property
    def _path(self) -> str:
        modules = _modules()
        if Path(self.config).exists():
            return self.config
        return str(Path(modules.globals.MAXTEXT_CONFIGS_DIR) / self.config)

    def _config(self, changes: Mapping[str, Any]) -> Any:
        return _initialized(self._path, _Settings({**self.overrides, **self._target, **changes}))

    @property
    def _target(self) -> dict[str, Any]:
        if self.topology is None:
            return {"skip_jax_distributed_system": True}
        # MaxText calls a topology "internal" if it has no name for it.
        return {
            "internal_compile": True,
            "internal_compile_num_devices": len(self._devices),
            "compile_topology": f"{self.profile}:{self.topology}",
            "compile_topology_num_slices": self.num_slices,
        }

    @property
    def _devices(self) -> Sequence[Any]:
        if self.topology is None:
            return jax.devices()
        return described_devices(self.profile, self.topology, self.num_slices)

    def _sizes(self, config: Any, kind: str) -> Sequence[int]:
        """Returns the number of devices along each axis, with the size -1 of an open axis replaced.
        `kind`: "ici" for axes within a slice, "dcn" for axes across slices."""
        total = config.num_slices
        if kind == "ici":
            total = config.num_target_devices // max(config.num_slices, 1)
        sizes = list(getattr(config, f"{kind}_parallelism"))
        known = math.prod(n for n in sizes if n != -1)
        return [int(total // known) if n == -1 else int(n) for n in sizes]

    def _mesh(self, config: Any) -> jax.sharding.Mesh:
        name = "jax_remove_size_one_mesh_axis_from_type"
        jax.config.update(name, config.remove_size_one_mesh_axis_from_type)
        devices = _modules().maxtext_utils.create_device_mesh(config, self._devices)
        is_explicit = getattr(config.shard_mode, "value", config.shard_mode) == "explicit"
        axis_type = AxisType.Explicit if is_explicit else AxisType.Auto
        axes = config.mesh_axes
        return jax.sharding.Mesh(devices, axes, axis_types=(axis_type,) * len(axes))


class _Settings(dict[str, Any]):
    """Settings that can be hashed, to be the key of a cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


@functools.lru_cache(maxsize=16)
def _initialized(path: str, settings: _Settings) -> Any:
    """Returns MaxText's configuration of a file and settings.

    **Raises:** `InvalidArgumentError` if MaxText refuses the configuration.
    """
    all_settings = {**_QUIET, **settings}
    try:
        with _flags_kept():
            return _modules().pyconfig.initialize(["", path], **all_settings)
    except (ValueError, TypeError, AssertionError, OSError) as error:
        raise InvalidArgumentError(
            f"MaxText refuses the configuration: {error}", topic=topics.RECIPE
        ) from error


@contextlib.contextmanager
def _flags_kept() -> Iterator[None]:
    """A context manager that restores XLA's flags at its end. MaxText sets flags with which XLA
    dumps only MaxText's own steps. They would hide the programs that Kiwi reads."""
    start_backends()  # XLA reads its flags once.
    jax.jit(lambda: 0).lower().compile()
    before = os.environ.get("XLA_FLAGS")
    try:
        yield
    finally:
        os.environ.pop("XLA_FLAGS", None)
        if before is not None:
            os.environ["XLA_FLAGS"] = before


@functools.cache
def _modules() -> Any:
    """Returns MaxText's modules; raises `InvalidArgumentError` if MaxText cannot be imported."""
    stand_ins.install(STAND_INS)
    names = {
        "globals": "maxtext.utils.globals",
        "max_utils": "maxtext.utils.max_utils",
        "maxtext_utils": "maxtext.utils.maxtext_utils",
        "pyconfig": "maxtext.configs.pyconfig",
        "sharding": "maxtext.utils.sharding",
        "train": "maxtext.trainers.pre_train.train",
        "train_compile": "maxtext.trainers.pre_train.train_compile",
    }
    suggestion = "pip install maxtext; docs/guides/maxtext.md lists what it needs."
    modules = imported("MaxText", names, suggestion)
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    return modules


def _axes(cut: Any) -> Any:
    return tuple(cut) if isinstance(cut, list | tuple) else cut


def _listed(cut: Any) -> list[str]:
    return [] if cut is None else [cut] if isinstance(cut, str) else list(cut)


def _plain(value: Any) -> Any:
    """Returns a setting as a YAML value. Text from the command line is parsed as YAML."""
    yaml: Any = importlib.import_module("yaml")
    return yaml.safe_load(value) if isinstance(value, str) else value
