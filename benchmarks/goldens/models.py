"""The training steps whose plans are recorded: one layer or two, at real widths.

Planning needs only shapes, so large widths cost nothing. The number of operators decides the time.
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
    """A module of `examples` and one of its configurations.

    - `shares`: the budgets "loose" and "tight", as shares of the estimated peak of the free plan. A
      budget that is too small starts a search for the least peak, which takes ten times as long as
      a plan. Most models therefore have budgets that can be met.
    """

    module: str
    config: Any
    shares: tuple[float, float] = (0.75, 0.55)

    def step(self) -> Callable[..., Any]:
        """Returns the training step."""
        return self._module.make_train_step(self.config)

    @functools.cached_property
    def arguments(self) -> tuple[Any, Any]:
        """The shapes of state and batch."""
        return self._shapes("state"), self._shapes("batch")

    def _shapes(self, what: str) -> Any:
        """Returns `abstract_<what>` of the module, or the shapes of `make_<what>` if the module
        lacks the former."""
        if hasattr(self._module, f"abstract_{what}"):
            return getattr(self._module, f"abstract_{what}")(self.config)
        return jax.eval_shape(lambda: getattr(self._module, f"make_{what}")(self.config))

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"examples.{self.module}")


# The stack of layers without a vocabulary. With a vocabulary it is the model of "accumulation".
_GPT = gpt.GptConfig(layers=1, width=1024, heads=16, batch=32, sequence=512)

MODELS: Mapping[str, Model] = {
    "mlp": Model(
        "mlp",
        mlp.MlpConfig(layers=3, width=512, batch=16384, optimizer="adam"),
        shares=(0.85, 0.75),
    ),
    "gpt": Model("gpt", _GPT, shares=(0.9, 0.84)),
    # The parameters are bfloat16, keys have fewer heads than queries, and the layers are scanned.
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
    """Makes as many virtual CPU devices as the mesh has. To be called before any other use of
    jax."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(np.prod(MESH_SHAPE)))
