"""The training of a drawn model: optimiser, dtypes, clipping, accumulation, averages, ensembles."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.sampled.blocks.block import Params
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.families import Batch, Family, Objective

State = dict[str, Any]
"""The state between steps: parameters, optimiser state, number of steps done, and values that the
way of training needs."""

_RANK = 8
"""The rank of the adapters that are trained beside int8 kernels."""

_LEAST_INT8 = 2**12
"""Kernels with at least this number of elements are stored in int8."""


@dataclass(frozen=True)
class Training:
    """The choices of one way of training.

    - `dtypes`: "float32", "bfloat16", "mixed" (float32 masters, computed in bfloat16), or "int8"
      (kernels frozen in int8, adapters of low rank trained).
    - `microbatches`: the number of microbatches over which a scan accumulates gradients.
    - `members`: the number of members of an ensemble under `jax.vmap`; 1 without an ensemble.
    """

    optimizer: str
    dtypes: str
    clips: bool
    microbatches: int
    averages: bool
    members: int


def draw_training(draw: Drawing, family: Family) -> Training:
    """Draws each choice of a way of training."""
    optimizer = draw.one_of("optimizer", tuple(_OPTIMIZERS), (2, 3, 2, 1, 1, 1))
    dtypes = draw.one_of("dtypes", ("float32", "bfloat16", "mixed", "int8"), (4, 3, 3, 0.8))
    clips = draw.chance("clipping", 0.4)
    microbatches = draw.one_of("microbatches", (1, 2, 4), (6, 1, 1))
    averages = draw.chance("average of parameters", 0.2)
    members = draw.one_of("members", (1, 2, 4), (8, 1, 1))
    return Training(optimizer, dtypes, clips, microbatches, averages, members)


def _sgd(rate: float = 0.01) -> optax.GradientTransformation:
    """Returns gradient descent with momentum, as people write it by hand."""

    def init(params: Params) -> Params:
        return jax.tree.map(jnp.zeros_like, params)

    def update(gradients: Params, state: Params, params: Params | None = None):
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradients)
        return jax.tree.map(lambda m: -rate * m, state), state

    return optax.GradientTransformation(init, update)


_OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "SGD by hand": _sgd,
    "AdamW": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000)),
    "Adam with a fixed rate": lambda: optax.adam(1e-3),
    "Adafactor": lambda: optax.adafactor(1e-3, min_dim_size_to_factor=8),
    "Lion": lambda: optax.lion(1e-4),
    "Muon": lambda: optax.contrib.muon(1e-3),
}


@dataclass(frozen=True)
class Trained:
    """A training step, and the function that makes its first state."""

    step: Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]
    init: Callable[[jax.Array], State]


def trained(family: Family, training: Training) -> Trained:
    """Returns the step `step(state, batch) -> (state, {"loss": ...})` and the function that makes
    its first state."""
    transforms = {o.part: _transform(training) for o in family.objectives}

    def init_one(key: jax.Array) -> State:
        params = family.init(key)
        frozen: Params = {}
        if training.dtypes == "bfloat16":
            params = _cast(params, jnp.bfloat16)
        if training.dtypes == "int8":
            params, frozen = _with_adapters(params, key)
        state: State = {
            "params": params,
            "optimizer": {
                part: transform.init(_part(params, part)) for part, transform in transforms.items()
            },
            "step": jnp.zeros((), jnp.int32),
        }
        if frozen:
            state["frozen"] = frozen
        if training.averages:
            state["average"] = params
        return state

    def init(key: jax.Array) -> State:
        if training.members == 1:
            return init_one(key)
        return jax.vmap(init_one)(jax.random.split(key, training.members))

    step = functools.partial(_step, family, training, transforms)
    if training.members > 1:
        step = jax.vmap(step, in_axes=(0, None))
    return Trained(step, init)


def _transform(training: Training) -> optax.GradientTransformation:
    transform = _OPTIMIZERS[training.optimizer]()
    if training.clips:
        return optax.chain(optax.clip_by_global_norm(1.0), transform)
    return transform


def _step(
    family: Family,
    training: Training,
    transforms: dict[str, optax.GradientTransformation],
    state: State,
    batch: Batch,
) -> tuple[State, dict[str, jax.Array]]:
    key = jax.random.fold_in(jax.random.key(7), state["step"])
    params, optimizer, losses_by_name = state["params"], dict(state["optimizer"]), {}
    for objective in family.objectives:
        loss = functools.partial(_loss, training, objective, params, state.get("frozen"))
        value, gradients = _gradients(training, loss, _part(params, objective.part), batch, key)
        updates, optimizer[objective.part] = transforms[objective.part].update(
            gradients, optimizer[objective.part], _part(params, objective.part)
        )
        changed = optax.apply_updates(_part(params, objective.part), updates)
        params = {**params, objective.part: changed} if objective.part else changed
        losses_by_name[f"{objective.part} loss".strip()] = value
    new = {**state, "params": params, "optimizer": optimizer, "step": state["step"] + 1}
    if training.averages:
        new["average"] = jax.tree.map(
            lambda a, p: (0.999 * a + 0.001 * p).astype(a.dtype), state["average"], params
        )
    return new, losses_by_name


def _part(params: Params, part: str) -> Params:
    return params[part] if part else params


def _loss(
    training: Training,
    objective: Objective,
    params: Params,
    frozen: Params | None,
    part: Params,
    batch: Batch,
    key: jax.Array,
) -> jax.Array:
    params = {**params, objective.part: part} if objective.part else part
    if training.dtypes == "int8":
        params = _merged(params, frozen or {})
    if training.dtypes in ("mixed", "int8"):
        params = _cast(params, jnp.bfloat16)
    return objective.loss(params, batch, key).astype(jnp.float32)


def _gradients(
    training: Training, loss: Callable[..., jax.Array], part: Params, batch: Batch, key: jax.Array
) -> tuple[jax.Array, Params]:
    count = training.microbatches
    if count == 1:
        return jax.value_and_grad(loss)(part, batch, key)
    parts = jax.tree.map(lambda t: t.reshape(count, t.shape[0] // count, *t.shape[1:]), batch)

    def add(total: tuple[jax.Array, Params], now: Batch):
        part_gradients = jax.value_and_grad(loss)(part, now, key)
        return jax.tree.map(jnp.add, total, part_gradients), None

    start = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, part))
    summed, _ = jax.lax.scan(add, start, parts)
    value, gradients = summed
    return value / count, jax.tree.map(lambda g: g / count, gradients)


def _cast(params: Params, dtype: Any) -> Params:
    def one(t: jax.Array) -> jax.Array:
        return t.astype(dtype) if jnp.issubdtype(t.dtype, jnp.floating) else t

    return jax.tree.map(one, params)


def _is_kernel(t: jax.Array) -> bool:
    return t.ndim == 2 and t.size >= _LEAST_INT8


def _with_adapters(params: Params, key: jax.Array) -> tuple[Params, Params]:
    """Returns the trained parameters and the frozen ones: int8 kernels with a scale for each
    column.

    Kernels that are matrices are replaced by pairs of matrices of low rank, at the same path.
    """
    leaves, tree = jax.tree.flatten(params)
    frozen = {}
    for number, leaf in enumerate(leaves):
        if _is_kernel(leaf):
            scale = jnp.abs(leaf).max(0) / 127 + 1e-8
            frozen[str(number)] = {
                "kernel": jnp.round(leaf / scale).astype(jnp.int8),
                "scale": scale,
            }
            left = 0.01 * jax.random.normal(jax.random.fold_in(key, number), (len(leaf), _RANK))
            leaves[number] = {"left": left, "right": jnp.zeros((_RANK, leaf.shape[1]))}
    return jax.tree.unflatten(tree, leaves), frozen


def _is_adapter(node: Any) -> bool:
    return isinstance(node, dict) and set(node) == {"left", "right"}


def _merged(params: Params, frozen: Params) -> Params:
    """Returns the parameters with the kernels that int8 values and adapters stand for, in
    bfloat16."""
    leaves, tree = jax.tree.flatten(params, is_leaf=_is_adapter)
    for number, leaf in enumerate(leaves):
        if _is_adapter(leaf):
            stored = frozen[str(number)]
            whole = stored["kernel"].astype(jnp.bfloat16) * stored["scale"].astype(jnp.bfloat16)
            left, right = (leaf[side].astype(jnp.bfloat16) for side in ("left", "right"))
            leaves[number] = whole + left @ right
    return jax.tree.unflatten(tree, leaves)
