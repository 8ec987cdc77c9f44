"""The training steps whose plans are recorded: one layer or two, at real widths.

Only shapes are needed, so that widths cost nothing; the number of operators does.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from examples import (
    accumulation,
    convnet,
    equinox_vit,
    gpt,
    llama,
    lstm,
    mlp,
    moe,
    state_space,
    vit,
)

MESH_SHAPE = (2, 4)


@dataclass(frozen=True)
class Model:
    """A module of `examples` and a configuration of it.

    - `shares`: the budgets "loose" and "tight", as shares of the estimated peak of the free plan.
      A search for the least peak, which a budget that is too small asks for, takes ten times as
      long as a plan: most models have budgets that can be met.
    """

    module: str
    config: Any
    shares: tuple[float, float] = (0.75, 0.55)

    def step(self) -> Callable[..., Any]:
        """The training step."""
        return self._module.make_train_step(self.config)

    @functools.cached_property
    def arguments(self) -> tuple[Any, Any]:
        """The shapes of state and batch."""
        return self._shapes("state"), self._shapes("batch")

    def _shapes(self, what: str) -> Any:
        """`abstract_<what>` of the module; what it lacks is made, by shapes alone."""
        if hasattr(self._module, f"abstract_{what}"):
            return getattr(self._module, f"abstract_{what}")(self.config)
        return jax.eval_shape(lambda: getattr(self._module, f"make_{what}")(self.config))

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"examples.{self.module}")


# Layers alone; with a vocabulary it is the model of "accumulation".
_GPT = gpt.GptConfig(layers=1, width=1024, heads=16, batch=32, sequence=512)

MODELS: Mapping[str, Model] = {
    "mlp": Model(
        "mlp",
        mlp.MlpConfig(layers=3, width=512, batch=16384, optimizer="adam"),
        shares=(0.85, 0.75),
    ),
    "gpt": Model("gpt", _GPT, shares=(0.9, 0.84)),
    # bfloat16 parameters, fewer heads of keys than of queries, and a scan over the layers.
    "llama": Model(
        "llama",
        llama.LlamaConfig(
            layers=2,
            width=1024,
            hidden=2816,
            heads=16,
            kv_heads=8,
            batch=32,
            sequence=512,
            vocabulary=4096,
        ),
        shares=(0.9, 0.84),
    ),
    "vit": Model(
        "vit",
        vit.VitConfig(layers=1, width=512, heads=8, batch=64, image=128, patch=8),
        shares=(0.85, 0.78),
    ),
    "convnet": Model(
        "convnet",
        convnet.ConvnetConfig(stages=(64, 128), image=64, batch=256, classes=16),
        shares=(0.97, 0.93),
    ),
    "lstm": Model(
        "lstm", lstm.LstmConfig(layers=1, width=1024, batch=128, sequence=128), shares=(0.8, 0.65)
    ),
    "moe": Model(
        "moe",
        moe.MoeConfig(layers=1, width=1024, heads=16, batch=64, sequence=512),
        shares=(0.85, 0.75),
    ),
    "state_space": Model(
        "state_space",
        state_space.StateSpaceConfig(layers=1, width=512, batch=32, sequence=256),
        shares=(0.97, 0.9),
    ),
    "accumulation": Model(
        "accumulation", accumulation.Config(replace(_GPT, vocabulary=4096)), shares=(0.8, 0.7)
    ),
    "equinox_vit": Model(
        "equinox_vit",
        equinox_vit.Config(layers=1, width=512, heads=8, batch=64, image=64, patch=4),
        shares=(0.8, 0.7),
    ),
}


def use_devices() -> None:
    """Virtual CPU devices, as many as the mesh has; before anything else of jax is used."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(np.prod(MESH_SHAPE)))
