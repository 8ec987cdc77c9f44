"""Random small training steps with loops, their meshes and hardware, one for each seed."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

MESHES = ((4,), (8,), (2, 2), (2, 4))
PROFILES = ("cpu", "h100-sxm", "v5e")
KINDS = ("tanh", "gelu", "gate", "norm", "attention")
LOOPS = (
    "unrolled",
    "scan",
    "scan of checkpointed layers",
    "recurrence",
    "checkpointed recurrence",
    "recurrence of checkpointed chunks",
)
OPTIMIZERS: Mapping[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1e-2),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "adam": lambda: optax.adam(1e-3),
}
_HEAD_WIDTH = 16
_CHUNK = 8
_Parameters = Mapping[str, jax.Array]


@dataclass(frozen=True)
class Drawn:
    """A step to plan.

    - `rows`, `length`, `width`: the sizes of the batch.
    - `members`: the size of an ensemble that `jax.vmap` trains; 1 for a single model.
    - `yields_states`: whether the results of all layers leave the step.
    """

    kind: str
    loop: str
    optimizer: str
    layers: int
    rows: int
    length: int
    width: int
    members: int
    yields_states: bool
    mesh_shape: tuple[int, ...]
    profile: str

    @property
    def name(self) -> str:
        """The choices, in words."""
        words = [
            self.kind,
            self.loop,
            f"{self.layers} layers, {self.rows} x {self.length} x {self.width}",
            self.optimizer,
            f"{self.members} members" if self.members > 1 else "",
            "yields states" if self.yields_states else "",
        ]
        return ", ".join(filter(None, words))

    def arguments(self) -> tuple[Any, jax.ShapeDtypeStruct]:
        """Returns the shapes of the state of `step`, and of its batch [rows, length, width]."""
        state = jax.eval_shape(self._state)
        if self.members > 1:
            state = jax.tree.map(self._of_members, state)
        return state, jax.ShapeDtypeStruct((self.rows, self.length, self.width), jnp.float32)

    def step(self, state: Any, batch: jax.Array) -> Any:
        """Returns the next state, the loss, and the results of all layers or None.

        With an ensemble, each of them has a leading dimension [members].
        """
        step_of_one = functools.partial(self._step_of_one, batch=batch)
        return jax.vmap(step_of_one)(state) if self.members > 1 else step_of_one(state)

    def _state(self) -> Any:
        inner = 2 * self.width
        shapes = {"up": (self.width, inner), "down": (inner, self.width)}
        if self.kind == "gate":
            shapes["gate"] = (self.width, inner)
        if self._is_recurrent:
            shapes["state"] = (self.width, self.width)
        parameters = {name: jnp.zeros((self.layers, *shape)) for name, shape in shapes.items()}
        return parameters, OPTIMIZERS[self.optimizer]().init(parameters)

    def _of_members(self, one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.members, *one.shape), one.dtype)

    @property
    def _is_recurrent(self) -> bool:
        return "recurrence" in self.loop

    def _step_of_one(self, state: Any, batch: jax.Array) -> Any:
        parameters, moments = state
        (loss, results), gradients = jax.value_and_grad(self._loss, has_aux=True)(parameters, batch)
        updates, moments = OPTIMIZERS[self.optimizer]().update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), loss, results

    def _loss(self, parameters: _Parameters, x: jax.Array) -> tuple[jax.Array, Any]:
        def layer(x: jax.Array, own: _Parameters) -> tuple[jax.Array, jax.Array | None]:
            y = self._layer(own, x)
            return y, y if self.yields_states else None

        if self.loop == "unrolled":
            results = []
            for index in range(self.layers):
                x, result = layer(x, jax.tree.map(lambda p, at=index: p[at], parameters))
                results.append(result)
            return jnp.mean(x**2), results if self.yields_states else None
        is_checkpointed = self.loop == "scan of checkpointed layers"
        x, stacked = jax.lax.scan(
            jax.checkpoint(layer) if is_checkpointed else layer, x, parameters
        )
        return jnp.mean(x**2), stacked

    def _layer(self, own: _Parameters, x: jax.Array) -> jax.Array:
        if self._is_recurrent:
            x = x + self._recurrence(own, x)
        inner = x @ own["up"]
        return x + self._mixed(own, x, inner) @ own["down"]

    def _mixed(self, own: _Parameters, x: jax.Array, inner: jax.Array) -> jax.Array:
        if self.kind == "attention":
            heads = inner.reshape(*inner.shape[:2], -1, _HEAD_WIDTH)
            scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", heads, heads), axis=-1)
            return jnp.einsum("bhqk,bkhd->bqhd", scores, heads).reshape(inner.shape)
        if self.kind == "gate":
            return jax.nn.silu(x @ own["gate"]) * inner
        if self.kind == "norm":
            centred = inner - inner.mean(-1, keepdims=True)
            return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
        return jax.nn.gelu(inner) if self.kind == "gelu" else jnp.tanh(inner)

    def _recurrence(self, own: _Parameters, x: jax.Array) -> jax.Array:
        """Returns the states of an Elman network [rows, length, width]."""

        def cell(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jnp.tanh(x + state @ own["state"])
            return state, state

        def scan(state: jax.Array, steps: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.lax.scan(cell, state, steps)

        steps = jnp.swapaxes(x, 0, 1)
        first = jnp.zeros_like(x[:, 0])
        if self.loop == "recurrence":
            _, states = scan(first, steps)
        elif self.loop == "checkpointed recurrence":
            _, states = jax.checkpoint(scan)(first, steps)
        else:
            chunks = steps.reshape(-1, _CHUNK, *steps.shape[1:])
            _, states = jax.lax.scan(jax.checkpoint(scan), first, chunks)
            states = states.reshape(steps.shape)
        return jnp.swapaxes(states, 0, 1)


def drawn(seed: int) -> Drawn:
    """Returns the step of a seed."""
    rng = np.random.default_rng(seed)

    def one_of(options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    return Drawn(
        kind=one_of(KINDS),
        loop=one_of(LOOPS),
        optimizer=one_of(tuple(OPTIMIZERS)),
        layers=one_of((1, 2, 3, 4)),
        rows=one_of((8, 24, 32, 64, 128)),
        length=one_of((16, 32, 64, 128)),
        width=one_of((48, 64, 128, 256, 512)),
        members=one_of((1, 1, 1, 4)),
        yields_states=bool(rng.random() < 0.25),
        mesh_shape=one_of(MESHES),
        profile=one_of(PROFILES),
    )
