"""Random models: always the same ones, which plain jax runs; and estimates as recorded."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from benchmarks.sampled.blocks import IMAGE_BLOCKS, SEQUENCE_BLOCKS
from benchmarks.sampled.by_hand import VARIANTS, baseline
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.goldens import INDICES, SLACK, errors_of, read_goldens, relative_error
from benchmarks.sampled.measure import Measuring
from benchmarks.sampled.models import ALONE, DrawnModel, draw_model
from benchmarks.sampled.report import markdown, picture
from benchmarks.sampled.rows import Asked, Key, append_row, read_rows
from benchmarks.sampled.sizes import TINY
from benchmarks.sampled.summary import against_hand, by_kind, errors, plans_of, refused, spread
from benchmarks.sampled.training import Training, trained

SEED = 20261129


def test_a_model_is_the_same_each_time():
    one, again = (draw_model(SEED, 3, TINY) for _ in range(2))
    assert str(one) == str(again) and one.training == again.training
    assert str(one) != str(draw_model(SEED, 4, TINY)) != str(draw_model(SEED + 1, 4, TINY))
    jaxprs = [str(jax.make_jaxpr(m.make_step())(m.state, m.batch)) for m in (one, again)]
    assert jaxprs[0] == jaxprs[1]


def test_tiny_models_are_drawn_as_full_ones():
    for index in (0, 5, 9):
        tiny, full = draw_model(SEED, index, TINY), draw_model(SEED, index)
        assert (tiny.family.name, tiny.kinds) == (full.family.name, full.kinds)
        assert tiny.training == full.training


def test_a_choice_takes_one_number_however_many_options():
    few, many = Drawing(1, 2), Drawing(1, 2)
    few.one_of("size", (1, 2))
    many.one_of("size", range(1000))
    assert few.inside("a").log_uniform("rest", 1, 9) == many.inside("a").log_uniform("rest", 1, 9)
    assert list(few.choices) == ["size", "a/rest"]


def test_weights_say_how_often():
    drawn = [Drawing(5, index).one_of("which", "ab", (3, 1)) for index in range(400)]
    assert 0.68 < drawn.count("a") / 400 < 0.82


def test_every_kind_of_block_is_drawn_alone():
    kinds = {**SEQUENCE_BLOCKS, **IMAGE_BLOCKS}
    chosen = [draw_model(SEED, ALONE + number, TINY).choices for number in range(len(kinds))]
    for name, choices in zip(kinds, chosen, strict=True):
        assert any(choice.startswith(f"{name}/") for choice in choices)


@pytest.mark.parametrize(
    "index", [2, 20, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 12))]
)
def test_plain_jax_runs_a_whole_model(index: int):
    model = draw_model(SEED, index, TINY)
    state, batch = model.make_arguments()
    step = jax.jit(model.make_step())
    after, losses = step(state, batch)
    assert jax.tree.structure(after) == jax.tree.structure(model.state)
    assert all(np.isfinite(np.asarray(loss)).all() for loss in jax.tree.leaves(losses))
    types = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)]
    assert types == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(model.state)]
    # The rate of a warm-up is 0 at first: then the optimiser's moments move alone.
    pairs = (jax.tree.leaves((s["params"], s["optimizer"])) for s in (after, state))
    assert any(bool(jnp.any(a != b)) for a, b in zip(*pairs, strict=True))


@pytest.mark.parametrize("number", range(len(SEQUENCE_BLOCKS) + len(IMAGE_BLOCKS)))
def test_plain_jax_runs_every_block(number: int):
    model = draw_model(SEED, ALONE + number, TINY)
    state, batch = model.make_arguments()
    _, losses = jax.jit(model.make_step())(state, batch)
    assert np.isfinite(losses["loss"])


WAYS = [
    Training("AdamW", "mixed", True, 2, True, 1),
    Training("Adafactor", "bfloat16", False, 1, False, 2),
    Training("Lion", "float32", False, 1, True, 1),
    Training("Muon", "int8", True, 1, False, 1),
    Training("Adam with a fixed rate", "float32", False, 4, False, 1),
    Training("SGD by hand", "float32", False, 1, False, 1),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.optimizer)
def test_every_way_of_training_keeps_the_state(way: Training):
    model = draw_model(SEED, ALONE + 1, replace(TINY, widths=(64,)))
    made = trained(model.family, way)
    state = jax.eval_shape(made.init, jax.random.key(0))
    after, losses = jax.eval_shape(made.step, state, model.batch)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    types = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)]
    assert types == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
    assert jax.tree.leaves(losses)[0].shape == ((way.members,) if way.members > 1 else ())
    assert ("frozen" in state) == (way.dtypes == "int8")


@pytest.mark.parametrize("variant", VARIANTS)
def test_shardings_by_hand_divide_the_arrays(variant: str):
    model = draw_model(SEED, 0, TINY)
    mesh = jax.sharding.AbstractMesh((2, 4), ("x", "y"))
    hand = baseline(model, (2, 4), variant)
    specs = jax.tree.leaves(hand.specs.state, is_leaf=lambda s: isinstance(s, PartitionSpec))
    sharded = 0
    for spec, leaf in zip(specs, jax.tree.leaves(model.state), strict=True):
        local = jax.sharding.NamedSharding(mesh, spec).shard_shape(leaf.shape)
        sharded += local != leaf.shape
    assert bool(sharded) == (not variant.startswith("data/"))


def test_a_policy_by_hand_is_in_the_step():
    model = draw_model(SEED, 2, TINY)

    def checkpoints(policy: str | None) -> int:
        return str(jax.make_jaxpr(model.make_step(policy))(model.state, model.batch)).count(
            "policy="
        )

    assert checkpoints("full") > 0 == checkpoints("none")


def row(predicted: float, compiled: float, **more: object) -> dict:
    return {
        "predicted_peak_bytes": predicted,
        "compiled_peak_bytes": compiled,
        "predicted_step_seconds": 1.0,
        "compiled_step_seconds": 1.0,
        "predicted_collectives": {"all-gather": [1, 100]},
        "compiled_collectives": {"all-gather": [2, 400]},
        "kinds": ["attention"],
        "family": "one block",
        "kernels": {"memory": [[9e6, 1e6, "exp (forward)", 2, "8x8", "attention.py:12 (f)"]]},
        "rounds": 1,
        "fits": True,
        **more,
    }


ROWS = {
    "1/0 h100-sxm 2x4 free": row(100, 100),
    "1/1 h100-sxm 2x4 free": row(150, 100, kinds=["attention", "MLP"]),
    "1/1 h100-sxm 2x4 budget-60": row(60, 60, budget_bytes=60, compiled_step_seconds=3.0),
    "1/1 h100-sxm 2x4 fsdp/full": row(50, 55, compiled_step_seconds=2.0),
    "1/1 h100-sxm 2x4 data/none": row(90, 95, compiled_step_seconds=1.0),
    "1/0 h100-sxm 2x4 budget-60": {"error": "BudgetNotMetError", "what": "No plan."},
}


def test_keys_are_read_as_they_are_written(tmp_path: Path):
    asked = Asked(["cpu"], ["2x4"], ["free", "budget-60", "fsdp/full"])
    keys = list(asked.keys(SEED, 7))
    assert [Key.parse(str(key)) for key in keys] == keys
    assert [key.share for key in keys] == [None, 0.6, None]
    assert [key.is_by_hand for key in keys] == [False, False, True]
    assert keys[0].mesh_shape == (2, 4)
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == {}
    append_row(path, keys[0], {"rounds": 1})
    append_row(path, keys[0], {"rounds": 2})
    assert read_rows(path) == {str(keys[0]): {"rounds": 2}}


def test_the_summary_counts():
    free = plans_of(ROWS, "h100-sxm", "free")
    found = spread(errors(free, "peak"))
    assert found is not None
    assert (found.count, found.median, found.percentile_95, found.worst) == (2, 0.25, 0.5, 0.5)
    assert found.row == "1/1 h100-sxm 2x4 free"
    assert errors(free, "collectives")["1/0 h100-sxm 2x4 free"] == pytest.approx(-0.75)
    assert refused(ROWS) == ["1/0 h100-sxm 2x4 budget-60"]
    assert list(by_kind(ROWS)) == ["MLP", "attention"]
    assert against_hand(ROWS)["1/1 h100-sxm 2x4 budget-60"] == (1.5, "fsdp/full")


def test_reports_are_written(tmp_path: Path):
    text = markdown({"jax": "1.2.3"}, ROWS)
    assert "jax: 1.2.3" in text and all(f"\n| {key} |" in text for key in ROWS)
    assert "2 x exp (forward) 8x8: 8.6, 1.0 MiB" in text and "attention.py:12 (f)" in text
    picture(ROWS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_budget_without_a_free_plan_is_named():
    key = Key(SEED, 0, "cpu", "8", "budget-60")
    found = Measuring(draw_model(SEED, 0, TINY), "quick").row(key, {})
    assert found["error"] == "NoFreePlan" and json.dumps(found)


@pytest.fixture(scope="module")
def goldens() -> dict:
    return read_goldens()


LARGE = (1000, 1001, 1008, 1010)
"""Of the recorded models those that take longest."""


@pytest.mark.parametrize(
    "index", [pytest.param(k, marks=[pytest.mark.slow] if k in LARGE else []) for k in INDICES]
)
def test_estimates_are_as_good_as_recorded(index: int, goldens: dict):
    model: DrawnModel = draw_model(SEED, index, TINY)
    found, recorded = errors_of(model), goldens[str(index)]
    assert found["kinds"] == recorded["kinds"]
    for quantity in ("peak_bytes", "collective_bytes"):
        worst = relative_error(recorded[quantity]) + SLACK
        assert relative_error(found[quantity]) <= worst, (quantity, found, recorded)
