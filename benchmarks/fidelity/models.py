"""The training steps of the benchmark, in sizes at which activations dominate the peak."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from examples import (
    convnet,
    encoder,
    encoder_decoder,
    gpt,
    llama,
    lstm,
    mlp,
    moe,
    state_space,
    unet,
    vit,
)


@dataclass(frozen=True)
class Model:
    """A module of `examples` and one of its configurations."""

    module: ModuleType
    config: Any


# Each batch and each number of heads, channels and experts is divisible by 8. Each hand-written
# sharding therefore exists on each mesh.
MODELS: Mapping[str, Model] = {
    "mlp": Model(mlp, mlp.MlpConfig(layers=4, width=1024, batch=16384, optimizer="adam")),
    "gpt": Model(
        gpt,
        gpt.GptConfig(layers=2, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096),
    ),
    "encoder": Model(
        encoder,
        encoder.EncoderConfig(layers=2, width=1024, heads=16, batch=32, sequence=512),
    ),
    "encoder_decoder": Model(
        encoder_decoder,
        encoder_decoder.EncoderDecoderConfig(
            layers=1, width=1024, heads=16, batch=32, sequence=512, vocabulary=4096
        ),
    ),
    "vit": Model(
        vit,
        vit.VitConfig(layers=2, width=1024, heads=16, batch=64, image=256, patch=16, classes=1000),
    ),
    "convnet": Model(
        convnet, convnet.ConvnetConfig(stages=(64, 128, 256), image=64, batch=256, classes=16)
    ),
    "unet": Model(unet, unet.UnetConfig(stages=(64, 128, 256), image=128, batch=32)),
    "moe": Model(moe, moe.MoeConfig(layers=1, width=1024, heads=16, batch=64, sequence=512)),
    "lstm": Model(lstm, lstm.LstmConfig(layers=2, width=1024, batch=128, sequence=128)),
    "state_space": Model(
        state_space, state_space.StateSpaceConfig(layers=2, width=512, batch=32, sequence=1024)
    ),
}

LARGE: Mapping[str, Model] = {
    "llama_8b": Model(llama, llama.LlamaConfig(32, 4096, 14336, 32, 8, 32, 2048)),
}
"""Models in the size in which they are trained."""

ALL: Mapping[str, Model] = {**MODELS, **LARGE}
