"""MaxText's own package: its configuration is read, its step is planned, and its configuration is
written."""

import importlib.util
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from benchmarks.recipes.train_compile import memory_of, peak_bytes
from kiwi.cli.main import main
from kiwi.errors import InvalidArgumentError
from kiwi.frameworks.maxtext import MaxText
from kiwi.recipes import best, compare, price
from kiwi.xla.tpu.compiler import TPU

if importlib.util.find_spec("maxtext") is None:
    pytest.skip("MaxText is not installed (docs/guides/maxtext.md)", allow_module_level=True)
pytestmark = [pytest.mark.maxtext, pytest.mark.filterwarnings("ignore")]

SMALL = {
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_decoder_layers": 2,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "head_dim": 16,
    "vocab_size": 128,
    "max_target_length": 64,
    "per_device_batch_size": 2,
    "attention": "dot_product",
    "remat_policy": "save_qkv_proj",
    "dtype": "float32",
}
NAMES = {"query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo"}


def small(**overrides):
    return MaxText("base.yml", {**SMALL, **overrides}, "v5e", "2x4")


@pytest.fixture(scope="module")
def priced():
    made = small()
    return price(made, made.recipe)


def test_a_configuration_is_a_recipe(priced):
    recipe = priced.recipe
    assert recipe.axes["fsdp"] == recipe.device_count == 8
    assert (recipe.batch_size, recipe.microbatches) == (16, 1)
    assert "fsdp" in str(recipe.rules["embed"])
    named = priced.named.residencies
    assert named.keys() >= NAMES
    assert {n for n, r in named.items() if r == "device"} == {
        "query_proj",
        "key_proj",
        "value_proj",
    }


def test_the_policy_by_names_is_maxtexts_own(priced):
    """Residencies given to the traced step, and through MaxText's policy `custom`, are the same."""
    made = small()
    residencies = {"query_proj": "device", "mlpwi_0": "device", "out_proj": "offload"}
    own = price(made, replace(made.recipe, residencies=residencies))
    theirs = small(remat_policy="custom", decoder_layer_input="remat", **residencies)
    same = price(theirs, theirs.recipe)
    assert theirs.recipe.residencies == residencies
    assert same.seconds == own.seconds and same.peak_bytes == own.peak_bytes


def test_what_is_written_is_read_back(tmp_path):
    made = small()
    wanted = replace(
        made.recipe,
        mesh={**made.recipe.mesh, "fsdp": 4, "tensor": 2},
        residencies={"query_proj": "device", "mlpwi_0": "offload", "mlpwo": "remat"},
        batch_size=32,
        microbatches=2,
    )
    made.write_overrides(wanted, tmp_path / "overrides.yml")
    again = MaxText(str(tmp_path / "overrides.yml"), {}, "v5e", "2x4").recipe
    kept = {n: r for n, r in again.residencies.items() if r != "remat"}
    assert kept.pop("decoder_layer_input", "device") == "device"
    assert kept == {"query_proj": "device", "mlpwi_0": "offload"}
    assert (again.axes, again.batch_size, again.microbatches) == (wanted.axes, 32, 2)
    assert again.logical_rules == wanted.logical_rules


def test_rules_are_written(tmp_path):
    made = small()
    rules = tuple((a, None if a == "mlp" else cut) for a, cut in made.recipe.logical_rules)
    made.write_overrides(replace(made.recipe, logical_rules=rules), tmp_path / "rules.yml")
    again = MaxText(str(tmp_path / "rules.yml"), {}, "v5e", "2x4").recipe
    assert set(again.rules["mlp"]) == {None} and again.rules["heads"] == made.recipe.rules["heads"]


def test_two_slices():
    made = MaxText("base.yml", {**SMALL, "dcn_data_parallelism": 2}, "v5e", "2x4", 2)
    recipe = made.recipe
    assert (recipe.device_count, dict(recipe.slices)) == (16, {"data": 2})
    assert recipe.mesh["fsdp"] == 8 and recipe.axes["data"] == 2


def test_a_setting_that_maxtext_refuses():
    with pytest.raises(InvalidArgumentError, match="MaxText refuses"):
        assert small(no_such_setting=1).recipe


def filled(path, leaf, seed=0):
    """Returns a value for one leaf of the state. Moments start with zeros."""
    shape, dtype = leaf.shape, leaf.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(seed, impl="unsafe_rbg"), shape)
    is_weight = "model" in jax.tree_util.keystr(path) and jnp.issubdtype(dtype, jnp.floating)
    if not is_weight:
        return jnp.zeros(shape, dtype)
    numbers = np.random.default_rng(len(jax.tree_util.keystr(path)) + seed)
    return jnp.asarray(numbers.normal(0.0, 0.1, shape), dtype)


def losses(run, step, count=20):
    state_shape, batch_shape = step.args
    state = jax.tree_util.tree_map_with_path(filled, state_shape)
    numbers = np.random.default_rng(0)
    found = []
    tokens = numbers.integers(0, 100, next(iter(batch_shape.values())).shape)
    for _ in range(count):
        batch = {
            name: jnp.asarray(
                tokens
                if name in ("inputs", "targets")
                else np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
                if "position" in name
                else np.ones_like(tokens),
                leaf.dtype,
            )
            for name, leaf in batch_shape.items()
        }
        placed = jax.device_put((state, batch), step.options["in_shardings"])
        state, metrics = run(*placed)
        found.append(float(metrics["scalar"]["learning/loss"]))
    return found


@pytest.mark.parametrize("accumulation", [1, 4])
def test_twenty_losses_with_and_without_kiwi(accumulation):
    rate = {"learning_rate": 1e-2, "warmup_steps_fraction": 0.0, "steps": 40}
    overrides = {"gradient_accumulation_steps": accumulation, **rate}
    made = MaxText("base.yml", {**SMALL, **overrides}, "cpu")
    step = made(made.recipe)
    jitted = {k: step.options[k] for k in ("in_shardings", "out_shardings", "donate_argnums")}
    other = replace(made.recipe, residencies={"query_proj": "remat", "mlpwi_0": "device"})
    with step.context():
        plain = losses(jax.jit(step.under(made.recipe), **jitted), step)
        written = made(other)
        residencies = losses(jax.jit(written.under(other), **jitted), written)
        planned = kiwi.jit(
            step.under(made.recipe), **step.options, verify=None, effort="quick", plan_cache=False
        )
        own = losses(planned, step)
    assert plain[-1] < 0.9 * plain[0]
    np.testing.assert_allclose(residencies, plain, rtol=1e-6)
    np.testing.assert_allclose(own, plain, rtol=2e-5)


def test_the_best_recipe_is_no_slower(priced):
    own = best(small(), priced.recipe, memory_budget=priced.peak_bytes)
    assert own.seconds <= priced.seconds and own.peak_bytes <= priced.peak_bytes
    assert "peak memory" in str(compare(own, priced))


def test_the_command(tmp_path, capsys):
    path = tmp_path / "overrides.yml"
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    budget = ["--budget", "recipe", "--out", str(path)]
    assert main(["maxtext", "base.yml", *settings, "--topology", "2x4", *budget]) == 0
    assert "peak memory" in capsys.readouterr().out
    again = MaxText(str(path), {}, "v5e", "2x4")
    assert price(again, again.recipe).seconds > 0


def test_overrides_compile_in_maxtexts_own_train_compile(tmp_path):
    """With the options of Kiwi's program: it has the memory that Kiwi compiled."""
    made = small(base_num_decoder_layers=4, per_device_batch_size=8, dtype="bfloat16")
    residencies = {"query_proj": "device", "mlpwi_0": "device", "decoder_layer_input": "device"}
    priced = price(made, replace(made.recipe, residencies=residencies), verify="tpu")
    made.write_overrides(priced.recipe, path := tmp_path / "overrides.yml")
    compiled = priced.plan.compiled
    assert compiled is not None
    options = (TPU, *TPU.overlapping)[compiled.overlap].check_options
    found = peak_bytes(memory_of(path, "v5e-8", options=options))
    assert found == pytest.approx(compiled.peak_bytes, rel=0.05)
