"""Training steps for batches of any size. They have few operators and large arrays, so that one
more part of the batch is a visible part of the memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import kiwi
from examples import gpt, llama, mlp, moe, vit
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError


@dataclass(frozen=True)
class TrainingStep:
    """A function of state and batch, and the shapes of both. The state is donated."""

    function: Callable[[Any, Any], Any]
    state: Any
    batch: Any

    def plan(self, **options: Any) -> kiwi.Plan:
        """Plans the step with the options of `kiwi.plan`."""
        return kiwi.plan(self.function, self.state, self.batch, donate_argnums=0, **options)

    def nearest(self, budget: int | str | None, **options: Any) -> tuple[kiwi.Plan, bool]:
        """Returns the plan under a budget, or the nearest plan, and whether the budget is met."""
        try:
            return self.plan(memory_budget=budget, **options), True
        except BudgetNotMetError as error:
            return error.plan, False
        except InfeasibleBudgetError as error:
            return self.nearest(error.least_peak_bytes, **options)[0], False


def of_mlp(batch: int) -> TrainingStep:
    """Returns the step of a residual MLP over sets of 4,096 rows."""
    config = mlp.MlpConfig(layers=6, width=2048, batch=batch, optimizer="adam")
    rows = jax.ShapeDtypeStruct((batch, 4096, config.width), jnp.float32)
    step, state = mlp.make_train_step(config), mlp.abstract_state(config)
    return TrainingStep(step, state, {"inputs": rows, "targets": rows})


def of_gpt(batch: int) -> TrainingStep:
    """Returns the step of a GPT with sequences of 1,024 tokens."""
    config = gpt.GptConfig(
        layers=4, width=2048, heads=16, batch=batch, sequence=1024, vocabulary=16384
    )
    return of_module(gpt, config)


def of_vit(batch: int) -> TrainingStep:
    """Returns the step of a vision transformer over 1,024 patches."""
    config = vit.VitConfig(
        layers=4, width=2048, heads=16, batch=batch, image=512, patch=16, classes=1000
    )
    return of_module(vit, config)


def of_llama(batch: int) -> TrainingStep:
    """Returns the step of the Llama of 1.2 billion parameters, with 16 scanned layers."""
    return of_module(llama, llama.LlamaConfig(16, 2048, 8192, 32, 8, batch, 2048))


def of_moe(batch: int) -> TrainingStep:
    """Returns the step of a transformer with eight experts in each layer."""
    config = moe.MoeConfig(layers=2, width=2048, heads=16, batch=batch, sequence=1024)
    return of_module(moe, config)


def of_module(module: Any, config: Any) -> TrainingStep:
    """Returns the step of a module of `examples`."""
    step = module.make_train_step(config)
    return TrainingStep(step, module.abstract_state(config), module.abstract_batch(config))


GROWING: Mapping[str, Callable[[int], TrainingStep]] = {
    "mlp": of_mlp,
    "gpt": of_gpt,
    "vit": of_vit,
    "llama_1b": of_llama,
    "moe": of_moe,
}
"""For each name, a training step for any batch that is a multiple of 8."""
