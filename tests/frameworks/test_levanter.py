"""Levanter's own package: the step of its trainer is planned, the trainer trains under the plan,
and a recipe becomes a configuration."""

import dataclasses
import importlib.util
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kiwi.errors import InvalidArgumentError
from kiwi.frameworks.levanter import Levanter, described, install_stand_ins
from kiwi.recipes import best, price

if importlib.util.find_spec("levanter") is None:
    pytest.skip("Levanter is not installed (docs/guides/levanter.md)", allow_module_level=True)
install_stand_ins()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Levanter imports what JAX deprecates.
    import draccus
    import haliax as hax
    import levanter.tracker
    import optax
    import yaml
    from haliax.nn import ScanCheckpointPolicy
    from levanter.layers.attention import AttentionMask
    from levanter.models.gpt2 import Gpt2Config
    from levanter.models.llama import LlamaConfig
    from levanter.models.lm_model import LmExample
    from levanter.tracker import NoopConfig, NoopTracker
    from levanter.trainer import Trainer, TrainerConfig
    from levanter.utils.mesh import MeshConfig

pytestmark = [pytest.mark.levanter, pytest.mark.filterwarnings("ignore")]

LLAMA = LlamaConfig(
    max_seq_len=32, hidden_dim=32, intermediate_dim=64, num_heads=4, num_kv_heads=4, num_layers=2
)
GPT2 = Gpt2Config(max_seq_len=32, hidden_dim=32, num_heads=4, num_layers=2, resid_pdrop=0.1)
QUICK = {"verify": None, "effort": "quick", "plan_cache": False}
VOCABULARY = hax.Axis("vocab", 64)
CARRY, INPUT = "scan(layer)__carry", "scan(layer)__input"


@pytest.fixture(scope="module", autouse=True)
def no_tracker():
    levanter.tracker.set_global_tracker(NoopTracker())


def make_model(config):
    return config.build(VOCABULARY, key=jax.random.PRNGKey(1))


def loss(model, batch, *, key=None):
    return model.compute_next_token_loss(batch, key=key)


def make_trainer(accumulation=1, **settings):
    config = TrainerConfig(
        id="kiwi",
        tracker=NoopConfig(),
        train_batch_size=16,
        per_device_parallelism=2 // accumulation,
        num_train_steps=20,
        load_checkpoint=False,
        require_accelerator=False,
        log_jaxprs=False,
        **{"log_xla_hlo": False, **settings},
    )
    return Trainer(config, optax.adamw(1e-2), loss, add_default_hooks=False)


def make_batch(trainer):
    numbers = np.random.default_rng(0).integers(0, 64, (16, 32)).astype(np.int32)
    tokens = hax.named(jnp.asarray(numbers), (trainer.TrainBatch, "position"))
    return hax.vmap(LmExample.causal, trainer.TrainBatch)(tokens)


def losses(trainer, model, **options):
    with trainer:
        key = jax.random.PRNGKey(0)
        state = trainer.initial_state(key, model_init=lambda: make_model(model))
        batch, found = make_batch(trainer), []
        if options:
            step = Levanter(trainer, state, batch, "h100-sxm")
            plan = step.train_under_plan(**options)
            assert plan.estimate.step_seconds > 0
        for info in trainer.training_steps(state, iter([batch] * 20)):
            found.append(info.loss)
    assert len(found) == 20
    return found


@pytest.mark.parametrize(
    ("model", "accumulation", "options"),
    [
        (LLAMA, 1, {"memory_budget": "40MiB"}),
        (LLAMA, 2, {"respect_user_shardings": True}),
        (GPT2, 2, {}),
    ],
    ids=["llama", "accumulated", "dropout"],
)
def test_twenty_losses_with_and_without_kiwi(model, accumulation, options):
    expected = losses(make_trainer(accumulation), model)
    found = losses(make_trainer(accumulation), model, **QUICK, **options)
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(found, expected, rtol=5e-5)


def abstract_batch(size=16):
    def array(dtype):
        return hax.NamedArray(jax.ShapeDtypeStruct((size, 32), dtype), ("batch", "position"))

    return LmExample(array(jnp.int32), array(jnp.float32), AttentionMask.causal())


def made(**settings):
    trainer = make_trainer(**settings)
    state = described(trainer, lambda: make_model(LLAMA))
    return Levanter(trainer, state, abstract_batch(), "v5e", "2x4")


def test_a_trainer_is_a_recipe():
    recipe = made(accumulation=2).recipe
    assert recipe.axes == {"data": 8, "replica": 1, "model": 1, "replica_dcn": 1}
    assert recipe.rules["parameters/embed"] == ("data",)
    assert recipe.rules["compute/batch"] == (("replica_dcn", "replica", "data"),)
    assert (recipe.batch_size, recipe.microbatches) == (16, 2)


def test_recipes_are_priced_for_chips_that_are_not_attached():
    step = made()
    own = price(step, step.recipe)
    assert own.named.residencies.keys() == {CARRY, INPUT}
    (q_proj,) = jax.tree.leaves(
        own.plan.in_shardings[0].model.transformer.layers.stacked.self_attn.q_proj.weight
    )
    assert "data" in q_proj
    tensor = replace(step.recipe, mesh={"data": 4, "replica": 1, "model": 2, "replica_dcn": 1})
    larger = replace(step.recipe, batch_size=32, microbatches=2)
    assert price(step, tensor).seconds != own.seconds
    assert price(step, larger).seconds > own.seconds
    found = best(step, step.recipe, host_memory_budget="64GiB")
    assert found.seconds <= own.seconds


def test_the_policy_by_names_is_levanters_own():
    """The residencies of the traced step are priced as the policy that has them."""
    step = made()
    residencies = {CARRY: "device", INPUT: "remat"}
    recipe = replace(step.recipe, residencies=residencies)
    policy = step.policy(recipe)
    assert policy == ScanCheckpointPolicy(
        save_carries=True, save_inputs=False, save_block_internals=[]
    )
    model = dataclasses.replace(LLAMA, gradient_checkpointing=policy)
    state = described(step.trainer, lambda: make_model(model))
    theirs = dataclasses.replace(step, state=state)
    own, same = price(step, recipe), price(theirs, theirs.recipe)
    assert own.seconds == same.seconds and own.peak_bytes == same.peak_bytes
    offloaded = replace(recipe, residencies={CARRY: "offload", "mlp_up": "device", "q": "offload"})
    assert step.policy(offloaded) == ScanCheckpointPolicy(
        save_carries="offload", save_block_internals=["mlp_up"], offload_block_internals=["q"]
    )


def test_what_is_written_is_read_back(tmp_path):
    step = made()
    wanted = replace(
        step.recipe,
        mesh={"data": 4, "replica": 1, "model": 2, "replica_dcn": 1},
        residencies={CARRY: "offload", INPUT: "remat"},
        batch_size=32,
        microbatches=2,
    )
    step.write_overrides(wanted, path := tmp_path / "overrides.yml")
    settings = yaml.safe_load(path.read_text("utf-8"))
    policy = draccus.decode(ScanCheckpointPolicy, settings["model"]["gradient_checkpointing"])
    assert policy == step.policy(wanted)
    trainer = settings["trainer"]
    mesh = draccus.decode(MeshConfig, trainer.pop("mesh"))
    again = made(accumulation=1)
    again.trainer.config = dataclasses.replace(again.trainer.config, mesh=mesh, **trainer)
    assert again.recipe == replace(wanted, residencies=None)


def test_the_axis_mapping_of_a_plan():
    with (trainer := make_trainer(log_xla_hlo=False)):
        state = trainer.initial_state(jax.random.PRNGKey(0), model_init=lambda: make_model(LLAMA))
        step = Levanter(trainer, state, make_batch(trainer), "v5e")
        mapping = step.axis_mapping(step.train_under_plan(**QUICK))
    assert {"embed", "mlp", "vocab"} <= dict(mapping.rules).keys()
    assert dict(mapping.rules)["batch"] == "data"


def test_a_trainer_cannot_train_on_chips_that_are_not_attached():
    with pytest.raises(InvalidArgumentError, match="not attached"):
        made().train_under_plan()
    with pytest.raises(InvalidArgumentError, match="within a slice"):
        made().changes(replace(made().recipe, slices={"data": 2}))
    with pytest.raises(InvalidArgumentError, match="no residencies"):
        made().policy(made().recipe)
