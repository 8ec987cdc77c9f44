"""Training steps of google-tunix models with AdamW, for a constructor of `ModelConfig` or for a
small model.

Needs `pip install --no-deps google-tunix safetensors qwix`.
"""

import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples._common import Batch

_CLASSES = {"qwen3": "Qwen3", "llama3": "Llama3", "gemma": "Gemma"}
_ADAPTED = ".*(_proj|_einsum)"
"""The matmuls of attention and of the feed-forward network, by their names in the models."""


def library(family: str) -> Any:
    """Returns the library's module of a model family. Importing its packages would import trainers
    and their data sets, which models do not need, so empty packages replace them."""
    folder = _package()
    for name in ("tunix", f"tunix.models.{family}"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(folder, *name.split(".")[1:])]
        sys.modules[name] = package
    return importlib.import_module(f"tunix.models.{family}.model")


@functools.cache
def _package() -> str:
    spec = importlib.util.find_spec("tunix")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("pip install --no-deps google-tunix safetensors qwix")
    return spec.submodule_search_locations[0]


def model(name: str, changes: Mapping[str, Any], rank: int = 0) -> Any:
    """Returns the model of a constructor of `ModelConfig`. `changes` replaces the fields that the
    configuration has.

    `rank`: the rank of the adapters that qwix adds to the matrices of all layers; 0 for none.
    """
    family = next(f for f in _CLASSES if name.startswith(f))
    module = library(family)
    config = getattr(module.ModelConfig, name)()
    known = {field.name for field in dataclasses.fields(config)}
    config = dataclasses.replace(config, **{k: v for k, v in changes.items() if k in known})
    plain_model = getattr(module, _CLASSES[family])(config, rngs=nnx.Rngs(0))
    return _adapted(plain_model, rank) if rank else plain_model


def _adapted(model: Any, rank: int) -> Any:
    import qwix

    shape = 1, 16
    arguments = (
        jnp.zeros(shape, jnp.int32),
        jnp.broadcast_to(jnp.arange(shape[1]), shape),
        None,
        jnp.ones((*shape, shape[1]), bool),
    )
    provider = qwix.LoraProvider(module_path=_ADAPTED, rank=rank, alpha=2.0 * rank)
    return qwix.apply_lora_to_model(model, provider, *arguments, rngs=nnx.Rngs(1))


def trained(rank: int) -> Any:
    """Returns the kind of variable that is trained."""
    return nnx.LoRAParam if rank else nnx.Param


def training_step(
    make: Callable[[], Any], rank: int, learning_rate: float
) -> tuple[Callable[..., Any], Any, Any, Any]:
    """Returns the step, and the types of the trained variables, the optimiser's state and the
    constant variables."""
    graph, params, rest = nnx.split(nnx.eval_shape(make), trained(rank), ...)
    optimiser = optax.adamw(learning_rate)

    def loss(params: Any, rest: Any, tokens: jax.Array) -> jax.Array:
        shape = batch, length = tokens.shape[0], tokens.shape[1] - 1
        positions = jnp.broadcast_to(jnp.arange(length), shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
        logits, _ = nnx.merge(graph, params, rest)(tokens[:, :-1], positions, None, mask)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def step(params: Any, state: Any, rest: Any, tokens: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, rest, tokens)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, params, jax.eval_shape(optimiser.init, params), rest


@dataclasses.dataclass(frozen=True)
class Config:
    """A model like the one of a constructor, with few and small layers in float32."""

    constructor: str
    layers: int
    width: int
    batch: int
    sequence: int
    vocabulary: int
    rank: int = 0
    experts: int = 0
    learning_rate: float = 1e-3

    @property
    def changes(self) -> dict[str, Any]:
        """The fields to replace, for any of the `ModelConfig`s."""
        fields: dict[str, Any] = {
            "num_layers": self.layers,
            "vocab_size": self.vocabulary,
            "num_embed": self.vocabulary,
            "embed_dim": self.width,
            "hidden_dim": 4 * self.width,
            "num_heads": 8,
            "head_dim": self.width // 8,
        }
        if self.constructor != "gemma_2b":  # It has one head of keys and values.
            fields["num_kv_heads"] = 4
        if self.experts:
            fields |= {"num_experts": self.experts, "num_experts_per_tok": 2}
        return fields

    def make(self) -> Any:
        """Returns the model."""
        return model(self.constructor, self.changes, self.rank)


def _sizes(constructor: str, **changes: Any) -> dict[str, Config]:
    return {
        "tiny": Config(constructor, 1, 32, 8, 16, 64, **changes),
        "small": Config(constructor, 3, 128, 16, 64, 512, **changes),
    }


@dataclasses.dataclass(frozen=True)
class Example:
    """One of the library's models, with the functions of a module of `examples`."""

    SIZES: Mapping[str, Config]

    def make_state(self, config: Config) -> Any:
        """Returns the trained variables, the optimizer's state and the constant variables before
        the first step."""
        _, params, rest = nnx.split(config.make(), trained(config.rank), ...)
        return params, optax.adamw(config.learning_rate).init(params), rest

    def make_batch(self, config: Config, seed: int = 0) -> Batch:
        """Returns random tokens, one more than there are positions."""
        shape = config.batch, config.sequence + 1
        key = jax.random.key(seed)
        return {"tokens": jax.random.randint(key, shape, 0, config.vocabulary, jnp.int32)}

    def make_train_step(self, config: Config) -> Any:
        """Returns `train_step(state, batch) -> (state, {"loss"})`."""
        step, *_ = training_step(config.make, config.rank, config.learning_rate)

        def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
            params, opt_state, rest = state
            params, opt_state, value = step(params, opt_state, rest, batch["tokens"])
            return (params, opt_state, rest), {"loss": value}

        return train_step


EXAMPLES = {
    "tunix_qwen3": Example(_sizes("qwen3_0p6b")),
    "tunix_qwen3_moe": Example(_sizes("qwen3_30b_a3b", experts=8)),
    "tunix_llama3": Example(_sizes("llama3p2_1b")),
    "tunix_gemma": Example(_sizes("gemma_2b")),
    "tunix_llama3_lora": Example(_sizes("llama3p2_1b", rank=4)),
}
"""The models by name, with the sizes "tiny" and "small"."""
