"""Plan files: round trips, and refused files."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import kiwi
from examples import gpt, mlp
from kiwi import errors
from kiwi.plans import file
from kiwi.plans.explain_text import explanation_text
from kiwi.plans.report_data import report_data
from kiwi.report import render
from tests.helpers.on_cpu import ON_CPU

CONFIG = mlp.MlpConfig(layers=2, width=32, batch=64)
STEP = mlp.make_train_step(CONFIG)
STATE, BATCH = mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG)
OPTIONS = {"mesh_shape": (2, 4), "verify": None, "donate_argnums": 0}


def make_plan(**options):
    fixed = (None, PartitionSpec("x"))
    return kiwi.plan(STEP, STATE, BATCH, **{**OPTIONS, "in_shardings": fixed, **options})


@pytest.fixture(scope="module")
def plan():
    return make_plan(profile=ON_CPU, verify="cpu")


@pytest.fixture
def path(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def lowered(plan):
    jitted = plan.step.jit(plan.mesh.jax_mesh())
    return jitted.lower(*plan.step.arguments)


def instructions(compiled):
    """Returns the optimised HLO without its tables of source positions, which name the caller's
    line."""
    text = re.sub(r"stack_frame_id=\d+", "", compiled.as_text())
    return [line for line in text.splitlines() if not re.match(r'\d+ ["{]', line)]


def test_a_loaded_plan_compiles_to_the_same_hlo(plan, path):
    saved = kiwi.load_plan(path)
    assert saved.fits
    again = saved.apply(STEP).plan(STATE, BATCH)
    assert saved.peak_bytes == again.peak_bytes
    first, second = lowered(plan), lowered(again)
    assert first.as_text() == second.as_text()
    assert instructions(first.compile()) == instructions(second.compile())


@pytest.mark.slow
def test_a_large_plan_compiles_to_the_same_hlo(tmp_path):
    config = gpt.SIZES["gpt-13b-4l"]
    step = gpt.make_train_step(config)
    args = gpt.abstract_state(config), gpt.abstract_batch(config)
    plan = kiwi.plan(step, *args, **{**OPTIONS, "memory_budget": "8GiB", "gap": 0.03})
    assert plan.execution.recomputed
    plan.save(tmp_path / "plan.json")
    again = kiwi.load_plan(tmp_path / "plan.json").apply(step).plan(*args)
    first, second = lowered(plan), lowered(again)
    assert first.as_text() == second.as_text()
    assert instructions(first.compile()) == instructions(second.compile())


def test_a_plan_that_recomputes_comes_back_with_its_schedule(tmp_path):
    free = make_plan().estimate.peak_bytes
    tight = make_plan(memory_budget=int(0.45 * free))
    assert tight.execution.recomputed
    tight.save(tmp_path / "tight.json")
    again = kiwi.load_plan(tmp_path / "tight.json").apply(STEP).plan(STATE, BATCH)
    assert again.execution.schedule == tight.execution.schedule
    assert lowered(tight).as_text() == lowered(again).as_text()


def test_all_that_a_plan_says_comes_back(plan, path):
    again = kiwi.load_plan(path).apply(STEP).plan(STATE, BATCH)
    assert again.in_shardings == plan.in_shardings and again.out_shardings == plan.out_shardings
    assert again.compiled.peak_bytes == plan.compiled.peak_bytes
    assert again.estimate.memory_bytes == plan.estimate.memory_bytes
    assert again.estimate.step_seconds == plan.estimate.step_seconds
    assert again.solve_result.bound == plan.solve_result.bound
    assert again.mesh == plan.mesh and again.notes == plan.notes
    assert [d.sharding for d in again.decisions] == [d.sharding for d in plan.decisions]


def test_a_plan_saved_twice_and_a_plan_made_twice_have_the_same_bytes(plan, path, tmp_path):
    """All but the time that planning took."""

    def untimed(file):
        return re.sub(rb', "timings": \{.*?\}\}', b"", file.read_bytes(), count=1)

    again = kiwi.load_plan(path).apply(STEP).plan(STATE, BATCH)
    again.save(tmp_path / "again.json")
    make_plan(profile=ON_CPU, verify="cpu").save(tmp_path / "anew.json")
    assert (tmp_path / "again.json").read_bytes() == untimed(path)
    assert untimed(tmp_path / "anew.json") == untimed(path)


def test_an_applied_plan_trains_as_the_plain_function(path):
    step = kiwi.load_plan(path).apply(STEP)
    state, batch = mlp.make_state(CONFIG), mlp.make_batch(CONFIG)
    _, wanted = jax.jit(STEP)(state, batch)
    _, metrics = step(jax.tree.map(jnp.copy, state), batch)
    np.testing.assert_allclose(metrics["loss"], wanted["loss"], rtol=1e-5)


def test_a_changed_function_is_refused_with_what_differs(path):
    saved = kiwi.load_plan(path)

    def other(state, batch):
        state, metrics = STEP(state, batch)
        return state, {"loss": jnp.tanh(metrics["loss"])}

    with pytest.raises(errors.PlanMismatchError, match=r"new at equation \d+: `tanh") as caught:
        saved.apply(other).plan(STATE, BATCH)
    assert caught.value.differences


def test_other_arguments_are_refused_by_path(path):
    wider = mlp.MlpConfig(layers=2, width=64, batch=64)
    step = kiwi.load_plan(path).apply(mlp.make_train_step(wider))
    with pytest.raises(errors.PlanMismatchError, match=r"state\.params\['layers'\]\[0\]"):
        step.plan(mlp.abstract_state(wider), mlp.abstract_batch(wider))


def test_other_literals_are_refused_unless_allowed(tmp_path):
    x = jax.ShapeDtypeStruct((16, 16), "float32")
    kiwi.plan(lambda x: (x @ x) * 2.0, x, **OPTIONS).save(tmp_path / "plan.json")
    saved = kiwi.load_plan(tmp_path / "plan.json")
    changed = lambda x: (x @ x) * 3.0  # noqa: E731
    with pytest.raises(errors.PlanMismatchError, match=r"had the literal 2\.0, has 3\.0") as caught:
        saved.apply(changed).plan(x)
    assert "strict=False" in caught.value.suggestion
    array = np.eye(16, dtype=np.float32)
    np.testing.assert_allclose(saved.apply(changed, strict=False)(array), 3.0 * array)


def test_static_arguments_stay_static(tmp_path):
    def function(x, double):
        return x @ x * (2 if double else 1)

    options = {**OPTIONS, "donate_argnums": None, "static_argnames": "double"}
    x = np.eye(16, dtype=np.float32)
    kiwi.jit(function, **options).plan(x, double=True).save(tmp_path / "plan.json")
    saved = kiwi.load_plan(tmp_path / "plan.json")
    np.testing.assert_allclose(saved.apply(function)(x, double=True), 2 * x)
    with pytest.raises(errors.PlanMismatchError):
        saved.apply(function)(x, double=False)


# Files that are refused.


def refused(tmp_path, content: bytes, *words: str):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(errors.PlanFileError) as caught:
        kiwi.load_plan(tmp_path / "bad.json")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
def test_truncated_files_are_refused(path, tmp_path, share):
    content = path.read_bytes()
    refused(tmp_path, content[: int(share * len(content))], "truncated")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x89PNG\r\n", b"step: 3\n", b"[1, 2]", b'{"weights": []}', b"\xff\xfe", b"[" * 10**5],
    ids=["empty", "png", "yaml", "list", "json", "bytes", "deep"],
)
def test_foreign_files_are_refused(tmp_path, content):
    refused(tmp_path, content, "not a plan file of Kiwi")


def test_a_file_of_the_future_is_refused(path, tmp_path):
    future = json.loads(path.read_text())
    future["version"] = file.FORMAT.version + 1
    refused(
        tmp_path, json.dumps(future).encode(), "newer one", f"reads up to {file.FORMAT.version}"
    )


@pytest.mark.parametrize("version", [None, "1", 0, True, -3])
def test_a_version_that_is_none_is_refused(path, tmp_path, version):
    wrong = {**json.loads(path.read_text()), "version": version}
    refused(tmp_path, json.dumps(wrong).encode(), "version")


def test_an_altered_figure_is_refused(path, tmp_path):
    content = path.read_bytes()
    place = content.index(b'"peak_bytes": ') + len(b'"peak_bytes": ')
    changed = content[:place] + b"1" + content[place:]
    refused(tmp_path, changed, "altered")


@pytest.mark.parametrize("section", ["mesh", "operators", "estimate", "function", "options"])
def test_a_file_without_a_section_is_refused_even_if_its_digest_fits(path, tmp_path, section):
    document = json.loads(path.read_text())["plan"]
    del document[section]
    refused(tmp_path, file.dump(document), "not a valid plan file")


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ("estimate", "peak_bytes", "estimate.peak_bytes is 'much', not a whole number"),
        ("hardware", "memory_bytes", "hardware.memory_bytes is 'much', not a whole number"),
        ("mesh", "device_order", "device_order is 'much', not a list"),
        ("operators", "trips", "operators[0].trips is 'much', not a finite number"),
    ],
)
def test_what_cannot_be_read_is_named(path, tmp_path, section, key, message):
    document = json.loads(path.read_text())["plan"]
    entry = document[section]
    (next(iter(entry.values())) if section == "operators" else entry)[key] = "much"
    refused(tmp_path, file.dump(document), "not a valid plan file", message)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(errors.PlanFileError, match="No such file"):
        kiwi.load_plan(tmp_path / "none.json")


def test_a_folder_that_does_not_exist_is_said(plan, tmp_path):
    with pytest.raises(errors.PlanFileError, match="cannot be written"):
        plan.save(tmp_path / "none" / "plan.json")


def test_nothing_in_a_file_is_executed(path, tmp_path, monkeypatch):
    """A forged file, digest and all, whose texts are code: no name in it is looked up."""
    document = json.loads(path.read_text())["plan"]
    witness = tmp_path / "witness"
    code = f"__import__('pathlib').Path({str(witness)!r}).touch()"
    document["function"]["name"] = code
    note = {"code": code, "text": code, "suggestion": code, "values": {code: code}}
    document["notes"] = [note, {**note, "__class__": "os.system", "args": [code]}]
    for operator in document["operators"].values():
        operator["source"] = operator["opcode"] = code
    (tmp_path / "forged.json").write_bytes(file.dump(document))
    saved = kiwi.load_plan(tmp_path / "forged.json")
    saved.apply(STEP).plan(STATE, BATCH)
    assert repr(saved) and not witness.exists()


# Files of all versions that were released.


def golden_step(w, x):
    value, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, value


GOLDEN_ARGS = jax.ShapeDtypeStruct((16, 32), "float32"), jax.ShapeDtypeStruct((64, 16), "float32")
GOLDENS = sorted((Path(__file__).parent / "goldens").glob("plan_v*.json"))


def test_there_is_a_file_of_every_version():
    versions = [json.loads(path.read_text())["version"] for path in GOLDENS]
    assert versions == list(range(file.FORMAT.oldest, file.FORMAT.version + 1))


def test_a_file_from_before_the_first_release_is_refused(path, tmp_path):
    old = {**json.loads(path.read_text()), "version": file.FORMAT.oldest - 1}
    refused(tmp_path, json.dumps(old).encode(), "before its first release", "Save the plan again")


@pytest.mark.parametrize("path", GOLDENS, ids=[path.stem for path in GOLDENS])
def test_files_of_all_versions_load_and_are_applied(path):
    """They were written once and are never written anew."""
    saved = kiwi.load_plan(path)
    assert saved.mesh.shape == (2, 4) and saved.compiled.peak_bytes > 0
    assert saved.decisions and explanation_text(saved.document, 0)
    assert render(report_data(saved.document))
    if saved.document["jax"] == jax.__version__:
        step = saved.apply(golden_step)
        rng = np.random.default_rng(0)
        w, x = (rng.standard_normal(s.shape).astype(s.dtype) for s in GOLDEN_ARGS)
        wanted, _ = jax.jit(golden_step)(w, x)
        np.testing.assert_allclose(step(w, x)[0], wanted, rtol=1e-5, atol=1e-6)
