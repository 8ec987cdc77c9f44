"""Tunix's own package: the step of its trainers is planned, and they train under the plan."""

import dataclasses
import functools
import importlib
import importlib.util
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kiwi.errors import InvalidArgumentError
from kiwi.frameworks.tunix import Tunix, described, install_stand_ins
from kiwi.recipes import price

if importlib.util.find_spec("tunix") is None:
    pytest.skip("Tunix is not installed (docs/guides/tunix.md)", allow_module_level=True)
install_stand_ins()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Tunix imports what JAX deprecates.
    import optax
    import qwix
    from flax import nnx
    from tunix.distillation import distillation_trainer, strategies
    from tunix.models.qwen3 import model as qwen3
    from tunix.rl import common
    from tunix.rl import trainer as rl_trainer
    from tunix.rl.grpo import grpo_learner
    from tunix.sft import peft_trainer, utils

pytestmark = [pytest.mark.tunix, pytest.mark.filterwarnings("ignore")]

LENGTH = 16
QUICK = {"verify": None, "effort": "quick", "plan_cache": False}


def mesh():
    return jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def qwen(layers=2, remat=qwen3.RematConfig.NONE, seed=0):
    sizes = {"embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "head_dim": 8, "num_kv_heads": 2}
    config = replace(qwen3.ModelConfig.qwen3_0p6b(), num_layers=layers, vocab_size=64, **sizes)
    return qwen3.Qwen3(replace(config, remat_config=remat), rngs=nnx.Rngs(seed))


def with_adapters(model):
    shape = 1, LENGTH
    positions = jnp.broadcast_to(jnp.arange(LENGTH), shape)
    mask = jnp.ones((*shape, LENGTH), bool)
    provider = qwix.LoraProvider(module_path=".*_proj", rank=4, alpha=8.0, dropout=0.1)
    arguments = jnp.zeros(shape, jnp.int32), positions, None, mask
    model = qwix.apply_lora_to_model(model, provider, *arguments, rngs=nnx.Rngs(1))
    model.set_attributes(qwix_rngs=nnx.Rngs(dropout=3), raise_if_not_found=False)
    return model


def laid_out(model):
    state = nnx.state(model)
    specs = nnx.get_partition_spec(state)
    nnx.update(model, jax.lax.with_sharding_constraint(state, specs))
    return model


def model_inputs(batch):
    mask = batch.input_tokens != 0
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": utils.build_positions_from_mask(mask),
        "attention_mask": utils.make_causal_attn_mask(mask),
    }


def logits(model, input_tokens, input_mask):
    shape = input_tokens.shape
    positions = jnp.broadcast_to(jnp.arange(shape[1]), shape)
    mask = utils.make_causal_attn_mask(jnp.ones(shape, bool))
    return model(input_tokens, positions, None, mask)[0]


def settings(accumulation, of=peft_trainer.TrainingConfig):
    return of(eval_every_n_steps=100, max_steps=20, gradient_accumulation_steps=accumulation)


def tuned(accumulation=None, adapters=False, remat=qwen3.RematConfig.NONE, layers=2):
    model = qwen(layers, remat)
    model = laid_out(with_adapters(model) if adapters else model)
    trainer = peft_trainer.PeftTrainer(model, optax.adamw(1e-2), settings(accumulation))
    return trainer.with_gen_model_input_fn(model_inputs)


def distilled(accumulation=None):
    strategy = strategies.LogitStrategy(
        logits, logits, lambda input_tokens, input_mask: jax.nn.one_hot(input_tokens, 64)
    )
    config = settings(accumulation, distillation_trainer.TrainingConfig)
    models = laid_out(qwen()), laid_out(qwen(1, seed=5))
    return distillation_trainer.DistillationTrainer(*models, strategy, optax.adamw(1e-2), config)


def reinforced(accumulation=None):
    """The actor's trainer, as `GRPOLearner` sets it up."""
    model, config = laid_out(qwen()), grpo_learner.GRPOConfig(beta=0.0)
    config.temperature = 1.0
    trainer = rl_trainer.Trainer(model, optax.adamw(1e-2), settings(accumulation), dict)
    policy = importlib.import_module("tunix.rl.function_registry").get_policy_loss_fn("grpo")

    def loss(model, train_example, algo_config):
        return policy(model, train_example, algo_config=config, pad_id=0, eos_id=63)

    trainer.with_loss_fn(loss, has_aux=True)
    trainer.with_gen_model_input_fn(lambda x: {"train_example": x, "algo_config": config})
    trainer.with_rl_metrics_to_log({"pg_clipfrac": np.mean})
    return trainer


def tokens(batch=16, length=LENGTH):
    return np.random.default_rng(0).integers(1, 63, (batch, length)).astype(np.int32)


def example(of=peft_trainer.TrainingInput):
    return of(input_tokens=tokens(), input_mask=np.ones_like(tokens()))


def experience():
    prompt, completion = np.split(tokens(), 2, axis=1)
    advantages = np.linspace(-1.0, 1.0, len(prompt)).astype(np.float32)
    ones = np.ones_like(prompt)
    old = np.full(completion.shape, -4.0, np.float32)
    return common.TrainExample(prompt, ones, completion, ones, advantages, None, old)


def losses(trainer, batch, count=40):
    """The losses of all calls, until the trainer has made its twenty updates."""
    found, kept = [], trainer._buffer_metrics

    def buffer(buffered, loss, step, **metrics):
        found.append(float(loss))
        return kept(buffered, loss=loss, step=step, **metrics)

    trainer._buffer_metrics = buffer
    with mesh():
        trainer.train([batch] * count)
    return found


TRAINERS = {
    "supervised": (tuned, example, {}),
    "accumulated": (functools.partial(tuned, 2), example, {}),
    "less memory": (
        functools.partial(tuned, None, remat=qwen3.RematConfig.DECODER),
        example,
        {"memory_budget": "2MiB"},
    ),
    "adapters with dropout": (functools.partial(tuned, 2, adapters=True), example, {}),
    "distilled": (distilled, lambda: example(distillation_trainer.TrainingInput), {}),
    "reinforced": (reinforced, experience, {}),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_twenty_losses_with_and_without_kiwi(name):
    make, make_batch, options = TRAINERS[name]
    with mesh():
        own, plain = make(), make()
    plan = Tunix(own, make_batch(), mesh()).train_under_plan(**QUICK, **options)
    expected, found = losses(plain, make_batch()), losses(own, make_batch())
    assert len(found) == 20 * (plain.config.gradient_accumulation_steps or 1)
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(found, expected, rtol=5e-5, atol=1e-6)
    assert plan.estimate.step_seconds > 0 and own.train_steps == 20


def test_another_loss_function_makes_the_trainers_own_step_again():
    with mesh():
        trainer = tuned()
    Tunix(trainer, example(), mesh()).train_under_plan(**QUICK)
    planned = trainer._jitted_train_step_fn
    trainer.with_loss_fn(trainer.loss_fn)
    with mesh():
        step, _ = trainer.jit_train_and_eval_step()
    assert step is not planned


def abstract_batch(size=16):
    leaf = jax.ShapeDtypeStruct((size, LENGTH), jnp.int32)
    return peft_trainer.TrainingInput(input_tokens=leaf, input_mask=leaf)


def made(size=16, **options):
    trainer = described(functools.partial(_trainer_of_shapes))
    abstract = jax.sharding.AbstractMesh((4, 2), ("fsdp", "tp"))
    return Tunix(trainer, abstract_batch(size), abstract, "v5e", "2x4", **options)


def _trainer_of_shapes():
    trainer = peft_trainer.PeftTrainer(qwen(), optax.adamw(1e-2), settings(None))
    return trainer.with_gen_model_input_fn(model_inputs)


def test_a_trainer_of_shapes_is_priced_for_chips_that_are_not_attached():
    step = made()
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(step.args))
    assert dict(step.recipe.mesh) == {"fsdp": 4, "tp": 2} and step.recipe.batch_size == 16
    own = price(step, step.recipe)
    weight = own.plan.in_shardings[0]["layers"][0]["mlp"]["gate_proj"]["kernel"]
    assert jax.tree.leaves(weight)[0] == jax.P("fsdp", "tp")
    other = price(step, replace(step.recipe, mesh={"fsdp": 8, "tp": 1}))
    assert own.seconds > 0 and other.seconds != own.seconds


def test_models_constrain_activations_for_chips_that_are_not_attached():
    step = made()(made().recipe)
    assert "sharding_constraint" in str(jax.make_jaxpr(step.function)(*step.args))
    attached = replace(made(), topology=None)
    step = attached(attached.recipe)
    assert "sharding_constraint" not in str(jax.make_jaxpr(step.function)(*step.args))


def test_a_trained_model_may_be_donated():
    assert made().donated == (1,) and made(donate_model=True).donated == (0, 1)


def test_what_cannot_be_trained_on_or_priced():
    with pytest.raises(InvalidArgumentError, match="not attached"):
        made().train_under_plan()
    with pytest.raises(InvalidArgumentError, match="16 samples"):
        made()(dataclasses.replace(made().recipe, batch_size=32))
