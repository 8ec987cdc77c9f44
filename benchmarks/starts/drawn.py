"""Random training steps, meshes and budgets, one for each seed."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples import convnet, encoder, gpt, lstm, mlp, moe, state_space, vit

MESHES = ((2,), (4,), (8,), (2, 2), (2, 4), (4, 2), (3,), (6,), (2, 3))
PROFILES = ("v100-sxm2", "a100-sxm", "h100-sxm", "v5e", "cpu")
GAPS = (0.3, 0.1, 0.05)
"""The gaps at which a search ends. A search that does less work misses more."""

LAYERS_SHARE = 0.6
"""The share of steps that are random layers. The others are models of `examples`."""


@dataclass(frozen=True)
class Drawn:
    """A case to plan. `budget_share` is 0 for the least memory of all starts, and 1 for the memory
    of the fastest start."""

    name: str
    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh_shape: tuple[int, ...]
    profile: str
    gap: float
    budget_share: float
    is_small: bool


def drawn(seed: int) -> Drawn:
    """Returns the case of a seed."""
    rng = np.random.default_rng(seed)
    mesh_shape = MESHES[rng.integers(len(MESHES))]
    # The number of chips of a TPU slice is a power of two.
    profiles = [p for p in PROFILES if p != "v5e" or not any(n % 3 == 0 for n in mesh_shape)]
    is_small = bool(rng.random() < LAYERS_SHARE)
    name, step, arguments = _layers(rng) if is_small else _example(rng)
    return Drawn(
        name,
        step,
        arguments,
        mesh_shape,
        profiles[rng.integers(len(profiles))],
        float(rng.choice(GAPS)),
        float(rng.uniform()),
        is_small,
    )


def _example(rng: np.random.Generator) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    width, batch = int(2 ** rng.integers(6, 11)), int(rng.choice([24, 32, 64]))
    like: dict[str, Any] = {"width": width, "batch": batch, "layers": int(rng.integers(1, 3))}
    heads, sequence = 4, int(rng.choice([32, 128]))
    made: list[tuple[ModuleType, Any]] = [
        (mlp, mlp.MlpConfig(**{**like, "batch": 64 * batch}, optimizer="adam")),
        (gpt, gpt.GptConfig(**like, heads=heads, sequence=sequence, vocabulary=512)),
        (encoder, encoder.EncoderConfig(**like, heads=heads, sequence=sequence)),
        (vit, vit.VitConfig(**like, heads=heads, image=64, patch=16, classes=64)),
        (moe, moe.MoeConfig(**like, heads=heads, sequence=sequence)),
        (lstm, lstm.LstmConfig(**like, sequence=sequence)),
        (state_space, state_space.StateSpaceConfig(**like, sequence=sequence)),
        (convnet, convnet.ConvnetConfig(stages=(32, 64), image=32, batch=batch, classes=16)),
    ]
    module, config = made[rng.integers(len(made))]
    arguments = module.abstract_state(config), module.abstract_batch(config)
    return module.__name__.rpartition(".")[2], module.make_train_step(config), arguments


KINDS = ("tanh", "gelu", "bias", "norm", "residual", "gate", "heads")


def _layers(rng: np.random.Generator) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    """Returns a step of gradient descent, with or without momentum, on a few layers of random kinds
    and widths."""
    kinds = [str(kind) for kind in rng.choice(KINDS, size=rng.integers(1, 5))]
    widths = [int(48 * 2 ** rng.integers(0, 6)) for _ in kinds]
    width, rows = int(48 * 2 ** rng.integers(0, 6)), int(48 * 2 ** rng.integers(0, 8))
    parameters = [
        _parameters(kind, width, inner) for kind, inner in zip(kinds, widths, strict=True)
    ]
    has_momentum = bool(rng.random() < 0.5)
    state = (parameters, parameters) if has_momentum else parameters
    step = functools.partial(_descend, kinds, has_momentum)
    name = f"{' '.join(kinds)}, {rows} x {width} ({' '.join(map(str, widths))})"
    return name + ", momentum" * has_momentum, step, (state, _array(rows, width))


def _parameters(kind: str, width: int, inner: int) -> dict[str, jax.ShapeDtypeStruct]:
    shapes = {"up": _array(width, inner), "down": _array(inner, width)}
    if kind == "gate":
        shapes["gate"] = _array(width, inner)
    if kind in ("bias", "norm"):
        shapes["bias"] = _array(inner)
    return shapes


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _layer(kind: str, p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    h = x @ p["up"]
    if kind == "heads":  # Attention among groups of eight rows.
        q = h.reshape(-1, 8, h.shape[1])
        scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, q), axis=-1)
        h = jnp.einsum("bqk,bkd->bqd", scores, q).reshape(h.shape)
    elif kind == "gate":
        h = jax.nn.silu(x @ p["gate"]) * h
    elif kind == "norm":
        h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
        h = h * p["bias"]
    elif kind == "bias":
        h = jax.nn.relu(h + p["bias"])
    else:
        h = jax.nn.gelu(h) if kind == "gelu" else jnp.tanh(h)
    y = h @ p["down"]
    return x + y if kind in ("residual", "heads", "norm") else y


def _descend(kinds: list[str], has_momentum: bool, state: Any, x: jax.Array) -> Any:
    parameters = state[0] if has_momentum else state

    def loss(parameters: Any) -> jax.Array:
        y = x
        for kind, p in zip(kinds, parameters, strict=True):
            y = _layer(kind, p, y)
        return jnp.mean(y**2)

    gradients = jax.grad(loss)(parameters)
    if not has_momentum:
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, state[1], gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, parameters, moments), moments
