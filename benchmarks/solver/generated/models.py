"""The training steps whose problems are perturbed: one layer or two, at real widths.

Planning needs only shapes, so large widths cost nothing. The number of operators decides the time.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from examples import (
    accumulation,
    convnet,
    encoder,
    encoder_decoder,
    equinox_vit,
    flax_linen_gpt,
    flax_nnx_gpt,
    gpt,
    lstm,
    mixed_precision,
    mlp,
    moe,
    moe_all_to_all,
    state_space,
    unet,
    vit,
)

MESH_SHAPE = (2, 4)
AXIS_NAMES = ("x", "y")

_GPT = gpt.GptConfig(layers=2, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096)
_GPT_1L = gpt.GptConfig(layers=1, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096)
_GPT_BFLOAT16 = gpt.GptConfig(
    layers=1, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096, dtype="bfloat16"
)


@dataclass(frozen=True)
class Model:
    """A module of `examples` and one of its configurations.

    - `batch_dimension`: the batch dimension of its inputs.
    """

    module: str
    config: Any
    batch_dimension: int = 0

    @functools.cached_property
    def takes_mesh(self) -> bool:
        """Whether the step is written for one mesh."""
        return "mesh" in inspect.signature(self._module.make_train_step).parameters

    def step(self, mesh_shape: Sequence[int] = MESH_SHAPE) -> Callable[..., Any]:
        """Returns the training step."""
        given = {"mesh": _mesh(mesh_shape)} if self.takes_mesh else {}
        return self._module.make_train_step(self.config, **given)

    @functools.cached_property
    def arguments(self) -> tuple[Any, Any]:
        """The shapes of state and batch."""
        make_state = functools.partial(self._module.make_state, self.config)
        make_batch = functools.partial(self._module.make_batch, self.config)
        return jax.eval_shape(make_state), jax.eval_shape(make_batch)

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"examples.{self.module}")


MODELS: Mapping[str, Model] = {
    "mlp": Model(
        "mlp",
        mlp.MlpConfig(layers=3, width=512, batch=16384, optimizer="adam"),
    ),
    "gpt": Model("gpt", _GPT),
    # This model is so small that latencies matter more than bandwidths.
    "gpt_tiny": Model("gpt", gpt.SIZES["tiny"]),
    "vit": Model("vit", vit.VitConfig(layers=1, width=512, heads=8, batch=64, image=128, patch=8)),
    "encoder": Model(
        "encoder",
        encoder.EncoderConfig(layers=1, width=1024, heads=16, batch=32, sequence=512),
    ),
    "encoder_decoder": Model(
        "encoder_decoder",
        encoder_decoder.EncoderDecoderConfig(
            layers=1, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096
        ),
    ),
    "convnet": Model(
        "convnet", convnet.ConvnetConfig(stages=(64, 128), image=64, batch=256, classes=16)
    ),
    "unet": Model("unet", unet.UnetConfig(stages=(64, 128), image=64, batch=32)),
    "lstm": Model("lstm", lstm.LstmConfig(layers=2, width=1024, batch=128, sequence=128)),
    "moe": Model("moe", moe.MoeConfig(layers=1, width=1024, heads=16, batch=64, sequence=512)),
    "moe_all_to_all": Model(
        "moe_all_to_all",
        moe_all_to_all.Config(width=512, experts=8, batch=64, sequence=128, vocabulary=4096),
    ),
    "state_space": Model(
        "state_space",
        state_space.StateSpaceConfig(layers=1, width=512, batch=32, sequence=256),
    ),
    "accumulation": Model("accumulation", accumulation.Config(_GPT_1L), batch_dimension=1),
    "mixed_precision": Model("mixed_precision", mixed_precision.Config(_GPT_BFLOAT16)),
    "equinox_vit": Model(
        "equinox_vit",
        equinox_vit.Config(layers=1, width=512, heads=8, batch=64, image=64, patch=4),
    ),
    "flax_linen_gpt": Model(
        "flax_linen_gpt",
        flax_linen_gpt.Config(
            layers=2, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096
        ),
    ),
    "flax_nnx_gpt": Model(
        "flax_nnx_gpt",
        flax_nnx_gpt.Config(
            layers=1, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096
        ),
    ),
}


def use_devices() -> None:
    """Makes as many virtual CPU devices as the mesh has. To be called before any other use of
    jax."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(np.prod(MESH_SHAPE)))


def _mesh(shape: Sequence[int]) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    types = (jax.sharding.AxisType.Auto,) * len(shape)
    return jax.sharding.Mesh(devices, AXIS_NAMES[: len(shape)], axis_types=types)
