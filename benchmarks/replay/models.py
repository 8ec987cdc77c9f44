"""The training steps of the benchmark, small enough that a CPU computes several per second."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from examples import convnet, encoder, gpt, mlp


@dataclass(frozen=True)
class Model:
    """A module of `examples`, one of its configurations, and the plans to make.

    - `mesh_shape`: the mesh of virtual CPU devices.
    - `shares`: the budgets, as shares of the way from the smallest budget to the peak without a
      budget.
    - `recomputes_all`: whether a step that recomputes as much as possible is planned as well.
    """

    module: ModuleType
    config: Any
    mesh_shape: tuple[int, ...] = (1, 1)
    shares: tuple[float, ...] = ()
    recomputes_all: bool = False

    def step(self, remat: str | None = None) -> Callable[..., Any]:
        """Returns the training step, with `jax.checkpoint` as `remat` says."""
        return self.module.make_train_step(self.config, remat=remat)

    def arguments(self) -> tuple[Any, Any]:
        """Returns state and batch."""
        return self.module.make_state(self.config), self.module.make_batch(self.config)


MODELS: Mapping[str, Model] = {
    "mlp": Model(mlp, mlp.MlpConfig(layers=4, width=256, batch=2048, optimizer="adam")),
    "gpt": Model(
        gpt,
        gpt.GptConfig(layers=2, width=256, heads=4, batch=8, sequence=128, vocabulary=512),
        shares=(0.5, 0.2, 0.01),
        recomputes_all=True,
    ),
    "encoder": Model(
        encoder, encoder.EncoderConfig(layers=2, width=192, heads=4, batch=8, sequence=128)
    ),
    "convnet": Model(
        convnet, convnet.ConvnetConfig(stages=(16, 32, 64), image=32, batch=64, classes=16)
    ),
    "mlp-8": Model(mlp, mlp.MlpConfig(layers=2, width=256, batch=4096), mesh_shape=(8,)),
}
"""The models by name. The first four run on one device, the last one on eight devices that share
the machine's cores."""
