"""The measured models, in sizes for one card of 80 GB, and the variants of each."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.emission.variants import Case
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
from examples._common import Remat

ONE = (1,)

MODELS: Mapping[str, Case] = {
    "gpt": Case(gpt, gpt.GptConfig(6, 2048, 16, 16, 1024, 32768, dtype="bfloat16"), ONE),
    "llama": Case(llama, llama.LlamaConfig(8, 2048, 8192, 16, 8, 8, 2048, 32768), ONE),
    "encoder": Case(encoder, encoder.EncoderConfig(4, 2048, 16, batch=16, sequence=512), ONE),
    "encoder_decoder": Case(
        encoder_decoder,
        encoder_decoder.EncoderDecoderConfig(2, 1024, 16, 32, 512, 16384, dtype="bfloat16"),
        ONE,
    ),
    "vit": Case(vit, vit.VitConfig(4, 1024, 16, batch=64, image=256, patch=16), ONE),
    "moe": Case(moe, moe.MoeConfig(2, 1024, 16, batch=16, sequence=1024, dtype="bfloat16"), ONE),
    "mlp": Case(mlp, mlp.MlpConfig(8, 4096, batch=16384, optimizer="adam"), ONE),
    "convnet": Case(convnet, convnet.ConvnetConfig((64, 128, 256), image=64, batch=512), ONE),
    "unet": Case(unet, unet.UnetConfig((64, 128, 256), image=64, batch=64), ONE),
    "lstm": Case(lstm, lstm.LstmConfig(2, 1024, batch=256, sequence=128), ONE),
    "state_space": Case(
        state_space, state_space.StateSpaceConfig(4, 1024, batch=16, sequence=512), ONE
    ),
}

BY_HAND: Mapping[str, Remat] = {
    "as written": None,
    "jax.checkpoint full": "full",
    "jax.checkpoint dots": "dots",
}
"""The hand-written variants that are run beside plans, with their `remat`."""

FREE = "planned free"
TRACED = f"{FREE}, traced"
"""The free plan without CUDA graphs."""
SHARES: Mapping[str, int | None] = {
    FREE: None,
    "planned 70%": 70,
    "planned 50%": 50,
    "planned 35%": 35,
}
"""The budgets of plans, in % of the compiled peak of the plan without a budget."""

AT_PEAK_OF: Mapping[str, str] = {
    f"planned at the peak of {remat}": f"jax.checkpoint {remat}" for remat in ("dots", "full")
}
"""For each further plan, the hand-written variant whose compiled peak is its budget."""

WITH_HOST = " with host"
HOST_BUDGET = "64GiB"
OFFLOADING = ("gpt", "encoder", "mlp")
"""Models that are also planned with a budget of host memory."""


def by_hand(case: Case, remat: Remat) -> Callable[..., Any]:
    """Returns the step with one of the policies of `BY_HAND`. Not every example takes one."""
    return case.train_step(**({} if remat is None else {"remat": remat}))


def plan_file(name: str, key: str) -> str:
    """Returns the name of a plan's file."""
    return f"{name} {key}.plan".replace(" ", "_").replace("%", "")


def arguments(case: Case) -> tuple[Any, Any]:
    """Returns a state and a batch of a model, with arbitrary values if the example makes none."""
    if hasattr(case.module, "make_state"):
        return case.module.make_state(case.config), case.module.make_batch(case.config)
    leaves, tree = jax.tree.flatten(case.arguments)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return jax.tree.unflatten(tree, map(_arbitrary, keys, leaves))


def _arbitrary(key: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns arbitrary positive values: second moments of gradients are positive."""
    if jnp.issubdtype(like.dtype, jnp.integer):
        return jax.random.randint(key, like.shape, 0, 1000, like.dtype)
    return 0.02 * jnp.abs(jax.random.normal(key, like.shape, like.dtype))
