"""A variational autoencoder written with NumPyro, like NumPyro's example: `SVI`, `Trace_ELBO`.

The networks come from `jax.example_libraries.stax`; `numpyro.module` puts them into the model and
the guide. Images are binary. A training step is `SVI.update`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax.example_libraries import stax
from numpyro import distributions, optim
from numpyro.infer import SVI, Trace_ELBO

from examples._common import Batch


@dataclass(frozen=True)
class Config:
    """Size and training. Images are vectors of `pixels` values."""

    pixels: int
    hidden: int
    latent: int
    batch: int
    learning_rate: float = 1e-3


SIZES = {
    "tiny": Config(pixels=64, hidden=32, latent=8, batch=32),
    "small": Config(pixels=784, hidden=400, latent=48, batch=512),
    "full": Config(pixels=64 * 64 * 3, hidden=8192, latent=256, batch=16384),
}


def _encoder(config: Config) -> Any:
    """Returns the network from images to means and deviations of the latent variables."""
    return stax.serial(
        stax.Dense(config.hidden),
        stax.Softplus,
        stax.Dense(config.hidden),
        stax.Softplus,
        stax.FanOut(2),
        stax.parallel(stax.Dense(config.latent), stax.serial(stax.Dense(config.latent), stax.Exp)),
    )


def _decoder(config: Config) -> Any:
    """Returns the network from latent variables to logits of pixels."""
    return stax.serial(
        stax.Dense(config.hidden),
        stax.Softplus,
        stax.Dense(config.hidden),
        stax.Softplus,
        stax.Dense(config.pixels),
    )


def _svi(config: Config) -> SVI:
    def model(images: jax.Array) -> None:
        decode = numpyro.module("decoder", _decoder(config), (len(images), config.latent))
        with numpyro.plate("batch", len(images)):
            prior = distributions.Normal(0, 1).expand([config.latent]).to_event(1)
            logits = decode(numpyro.sample("z", prior))
            pixels = distributions.Bernoulli(logits=logits).to_event(1)
            numpyro.sample("images", pixels, obs=images)

    def guide(images: jax.Array) -> None:
        encode = numpyro.module("encoder", _encoder(config), (len(images), config.pixels))
        means, deviations = encode(images)
        with numpyro.plate("batch", len(images)):
            numpyro.sample("z", distributions.Normal(means, deviations).to_event(1))

    return SVI(model, guide, optim.Adam(config.learning_rate), Trace_ELBO())


def _initialised(config: Config, seed: int) -> tuple[SVI, Any]:
    """Returns an `SVI` and its first state. `SVI.init` stores the model's structure in the object,
    which a step needs."""
    svi = _svi(config)
    return svi, svi.init(jax.random.PRNGKey(seed), make_batch(config)["images"])


def make_state(config: Config, seed: int = 0) -> Any:
    """Returns the `SVIState` before the first step: the optimizer's state and a random key."""
    return _initialised(config, seed)[1]


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns random binary images [B, P], in which four neighbouring pixels are equal."""
    shape = (config.batch, config.pixels // 4)
    coarse = jax.random.bernoulli(jax.random.key(seed), 0.3, shape)
    return {"images": jnp.repeat(coarse, 4, axis=1).astype(jnp.float32)}


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})`."""
    initialised: list[SVI] = []
    jax.eval_shape(lambda: initialised.append(_initialised(config, 0)[0]))
    (svi,) = initialised

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        state, value = svi.update(state, batch["images"])
        return state, {"loss": value / config.batch}

    return train_step
