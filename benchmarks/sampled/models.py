"""Drawn models: training steps with the types of their arguments, by seed and index."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.families import Batch, Family, draw_alone, draw_family
from benchmarks.sampled.layers import all_checkpointed
from benchmarks.sampled.sizes import FULL, Scale, Sizes, draw_sizes
from benchmarks.sampled.training import State, Trained, Training, draw_training, trained

_DEVICES = 8
"""The number of devices for which the drawn bytes of a device hold."""

_SAVED_SHARE = 0.5
"""The share of a forward pass's results that counts as held until the backward pass."""

_MOST_EXAMPLES = 4096

ALONE = 1000
"""Models with this index or a larger one are single blocks, each kind in turn. They are planned in
seconds, and their deviations belong to the block."""

_ALONE_BYTES = 256 * 2**20 / _DEVICES
"""The approximate bytes of such a step on one device, divided by the number of devices."""


@dataclass(frozen=True, eq=False)
class DrawnModel:
    """A random training step.

    - `choices`: all drawn choices, by name.
    - `kinds`: the kinds of its blocks.
    - `batch_size`: the number of examples of a step, on all devices together.
    """

    seed: int
    index: int
    family: Family
    training: Training
    choices: Mapping[str, Any]
    batch_size: int

    @property
    def name(self) -> str:
        """The seed and the index, for example "20261129/7"."""
        return f"{self.seed}/{self.index}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its blocks, each once."""
        return tuple(dict.fromkeys(self.family.kinds))

    @functools.cached_property
    def _trained(self) -> Trained:
        return trained(self.family, self.training)

    def make_step(
        self, checkpoint: str | None = None
    ) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
        """Returns the step `step(state, batch) -> (state, losses)`.

        `checkpoint`: one of `benchmarks.sampled.layers.CHECKPOINTS` for all layers. None leaves
        each layer with its drawn policy.
        """

        def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
            with all_checkpointed(checkpoint):
                return self._trained.step(state, batch)

        return step

    @functools.cached_property
    def state(self) -> State:
        """The state as `jax.ShapeDtypeStruct`s."""
        return jax.eval_shape(self._trained.init, jax.random.key(0))

    @functools.cached_property
    def batch(self) -> Batch:
        """The batch as `jax.ShapeDtypeStruct`s."""
        return self.family.batch(self.batch_size)

    def make_arguments(self, seed: int = 0) -> tuple[State, Batch]:
        """Returns state and batch as arrays, for tiny models."""
        key = jax.random.key(seed)
        return self._trained.init(key), _filled(self.batch, jax.random.fold_in(key, 1))

    def __str__(self) -> str:
        parts = [f"{name}: {_shown(value)}" for name, value in self.choices.items()]
        head = f"Model {self.name}: {self.family.name} of {', '.join(self.kinds)}"
        return "\n".join([head, f"  batch: {self.batch_size}", *(f"  {part}" for part in parts)])


def draw_model(seed: int, index: int, scale: Scale = FULL) -> DrawnModel:
    """Returns the model of a seed and an index, which is always the same."""
    draw = Drawing(seed, index)
    sizes = draw_sizes(draw, scale)
    if index >= ALONE:
        return _drawn_alone(draw, sizes, seed, index)
    family = draw_family(draw, sizes)
    training = draw_training(draw.inside("training"), family)
    odd_batch = draw.chance("odd batch", 0.15)
    share = draw.log_uniform("bytes of a device, about", 1.0, 2048.0)
    batch_size = scale.batch
    choices = dict(draw.choices)
    if scale.least_bytes is None or scale.most_bytes is None:
        choices.pop("bytes of a device, about")
    else:
        low, high = scale.least_bytes, scale.most_bytes
        wanted = low * (high / low) ** (math.log(share) / math.log(2048.0))
        choices["bytes of a device, about"] = wanted
        batch_size = _batch_size(family, training, wanted)
    batch_size += 4 * training.microbatches if odd_batch else 0
    return DrawnModel(seed, index, family, training, choices, batch_size)


def _drawn_alone(draw: Drawing, sizes: Sizes, seed: int, index: int) -> DrawnModel:
    family = draw_alone(draw, sizes, index - ALONE)
    dtypes = draw.one_of("dtypes", ("float32", "bfloat16"))
    training = Training("SGD by hand", dtypes, False, 1, False, 1)
    batch_size = sizes.scale.batch
    if sizes.scale.least_bytes is not None:
        batch_size = _batch_size(family, training, _ALONE_BYTES)
    return DrawnModel(seed, index, family, training, dict(draw.choices), batch_size)


def _batch_size(family: Family, training: Training, wanted_bytes: float) -> int:
    """Returns a multiple of devices and microbatches with which a device holds about
    `wanted_bytes`."""
    unit = _DEVICES * training.microbatches
    held = training.members * _held_bytes(family, training, unit) / training.microbatches
    count = max(1, round(wanted_bytes * _DEVICES / held))
    # Usual batch sizes are powers of two, or small multiples of them.
    rounded = 2 ** max(0, math.floor(math.log2(count)) - 1)
    return min(unit * max(1, count // rounded * rounded), _MOST_EXAMPLES)


def _held_bytes(family: Family, training: Training, examples: int) -> float:
    """Returns the approximate bytes on all devices that the backward pass needs of so many
    examples."""
    params = jax.eval_shape(family.init, jax.random.key(0))
    objective = family.objectives[-1]
    key = jax.eval_shape(lambda: jax.random.key(0))
    traced = jax.make_jaxpr(objective.loss)(params, family.batch(examples), key)
    itemsize = 4 if training.dtypes == "float32" else 2
    return _SAVED_SHARE * itemsize * _elements(traced.jaxpr)


def _elements(jaxpr: Any) -> float:
    """Returns the number of elements of all floating-point results. Results in loops count once per
    iteration."""
    total = 0.0
    for equation in jaxpr.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        if inner:
            times = equation.params.get("length", 1)
            total += times * sum(_elements(getattr(p, "jaxpr", p)) for p in inner[:1])
        elif equation.primitive.name not in _COSTLESS:
            total += sum(
                math.prod(v.aval.shape)
                for v in equation.outvars
                if jnp.issubdtype(v.aval.dtype, jnp.floating)
            )
    return total


_COSTLESS = frozenset(
    {"broadcast_in_dim", "reshape", "transpose", "convert_element_type", "squeeze", "iota", "mul"}
)


def _filled(batch: Batch, key: jax.Array) -> Batch:
    """Returns a batch of random numbers. Integers are small enough for every table."""
    leaves, tree = jax.tree.flatten(batch)
    filled = [
        jax.random.randint(jax.random.fold_in(key, number), leaf.shape, 0, 8)
        if jnp.issubdtype(leaf.dtype, jnp.integer)
        else jax.random.normal(jax.random.fold_in(key, number), leaf.shape)
        for number, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, filled)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
