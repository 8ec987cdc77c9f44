"""Plans on disk: plans that are read, plans that are made again, and unreadable files."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.messages import topics
from kiwi.planners.joint import Joint
from kiwi.planners.registry import planner_named
from kiwi.plans import plan_cache
from kiwi.plans.document import document
from kiwi.plans.file import read, write
from kiwi.plans.plan_cache import PlanCache, request_digest
from tests.helpers.on_cpu import ON_CPU
from tests.helpers.planning import array

ARGUMENTS = (array(64, 32), array(32, 32))
OPTIONS = {"mesh_shape": (2, 2), "verify": None, "effort": "quick"}


def step(x, w):
    return jnp.tanh(jnp.sin(x) @ w) * 0.5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(plan_cache.FOLDER_VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


@pytest.fixture
def made(monkeypatch):
    """Returns the plans that were made, and not read."""
    found, plan = [], Joint.plan

    def counting(self, *arguments):
        found.append(plan(self, *arguments))
        return found[-1]

    monkeypatch.setattr(Joint, "plan", counting)
    return found


def planned(function=step, **options):
    return kiwi.plan(function, *ARGUMENTS, **{**OPTIONS, **options})


def digest(function=step, arguments=ARGUMENTS, **options):
    call = kiwi.jit(function, **{**OPTIONS, **options})
    return request_digest(call.traced(*arguments), call.settings)


def test_an_equal_request_has_the_plan_that_was_made(folder, made):
    first, second = planned(), planned()
    assert len(made) == 1
    assert document(first) == document(second)
    for name in ("mesh", "decisions", "rounds", "planning_seconds", "in_shardings", "notes"):
        assert getattr(first, name) == getattr(second, name), name
    assert second.solve_result == replace(first.solve_result, solution=None)
    assert str(first.explain("dot_general")) == str(second.explain("dot_general"))
    assert not first.cached_on and "from the cache, planned on 20" in str(second)
    assert second.what_if("dot_general", residency="keep").fits


def test_nothing_is_read_or_written_where_it_is_off(folder, made, monkeypatch):
    planned(plan_cache=False)
    monkeypatch.setenv(plan_cache.FOLDER_VARIABLE, "off")
    planned()
    assert not folder.exists()
    monkeypatch.setenv(plan_cache.FOLDER_VARIABLE, str(folder))
    planned()
    planned(plan_cache=False)
    assert len(made) == 4


def test_another_request_has_another_digest(monkeypatch):
    def other_number(x, w):
        return jnp.tanh(jnp.sin(x) @ w) * 0.25

    def other_operator(x, w):
        return jnp.tanh(jnp.cos(x) @ w) * 0.5

    pinned = kiwi.Constraints(shardings={"w": P("x")})
    others = [
        digest(other_number),
        digest(other_operator),
        digest(arguments=(array(128, 32), ARGUMENTS[1])),
        digest(arguments=(array(64, 32, dtype="bfloat16"), ARGUMENTS[1])),
        digest(donate_argnums=0),
        digest(in_shardings=(P("x"), None)),
        digest(out_shardings=P("x")),
        digest(constraints=pinned),
        digest(constraints=replace(pinned, forbid_replicated=("w",))),
        digest(mesh_shape=(4, 1)),
        digest(axis_names=("a", "b")),
        digest(profile="v100-sxm2"),
        digest(memory_budget="1GiB"),
        digest(host_memory_budget="1GiB"),
        digest(effort="normal"),
        digest(seed=1),
        digest(gap=0.1),
        digest(planner="alpa"),
        digest(verify="cpu"),
    ]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    others.append(digest(verify="cpu"))
    assert digest() not in others and len(set(others)) == len(others)
    before = digest()
    monkeypatch.setattr(plan_cache, "_sources", lambda: "another Kiwi")
    assert digest() != before


def test_a_kernel_s_function_is_part_of_the_request():
    def kernel(steps):
        def function(x):
            for _ in range(steps):
                x = jnp.sin(x)
            return x

        function.__name__ = "kernel"
        return kiwi.sharding_rule(function, "a b -> a b")

    once, twice = (digest(kernel(steps), (ARGUMENTS[0],)) for steps in (1, 2))
    assert once != twice


def test_the_digest_is_the_same_in_every_process():
    code = (
        "from tests.plans.test_plan_cache import digest, P\n"
        "import kiwi\n"
        "print(digest(constraints=kiwi.Constraints(shardings={'w': P('x')})))"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == digest(constraints=kiwi.Constraints(shardings={"w": P("x")}))


@pytest.mark.parametrize("part", ["nothing", "half", "no plan", "no history", "another function"])
def test_a_file_that_cannot_be_used_is_made_anew(folder, made, part):
    planned()
    (path,) = folder.glob("*.json")
    whole, content = path.read_bytes(), read(path)
    if part == "no history":
        write({name: section for name, section in content.items() if name != "made"}, path)
    elif part == "another function":
        write({**content, "function": {**content["function"], "structure": "0" * 64}}, path)
    else:
        path.write_bytes({"nothing": b"", "half": whole[: len(whole) // 2], "no plan": b"{}"}[part])
    assert not planned().cached_on and planned().cached_on
    assert len(made) == 2 and read(path)["function"] == content["function"]


def test_a_folder_that_cannot_be_written_to_changes_nothing(tmp_path, made):
    (tmp_path / "file").write_text("")
    call = kiwi.jit(step, **OPTIONS)
    cache = PlanCache(tmp_path / "file" / "plans")
    plan = cache.plan(call.traced(*ARGUMENTS), call.settings, planner_named("joint"))
    assert not plan.cached_on and len(made) == 1


def test_those_used_last_are_kept(folder, made, monkeypatch):
    monkeypatch.setattr(plan_cache, "MOST_FILES", 2)
    for seed in range(2):
        planned(seed=seed)
    for age, path in enumerate(sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime)):
        os.utime(path, (1000 - age, 1000 - age))
    assert planned(seed=0).cached_on
    planned(seed=2)
    assert planned(seed=0).cached_on and len(list(folder.glob("*"))) == 2
    assert not planned(seed=1).cached_on


def test_many_may_write_one_file_at_once(tmp_path):
    content = document(planned())
    path = tmp_path / "plan.json"

    def write_and_read(_):
        write(content, path)
        return read(path) == read(path)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write_and_read, range(40)))
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_for_more_memory_is_never_slower_than_one_for_less(folder):
    """The plan of a smaller budget, once its program is faster, answers for larger ones."""
    options = {"profile": ON_CPU, "verify": "cpu"}
    small = planned(memory_budget="1MiB", **options)
    (path,) = folder.glob("*.json")
    saved = read(path)
    saved["checks"]["time"]["step_seconds"] /= 2
    write(saved, path)
    large = planned(memory_budget="2MiB", **options)
    assert large.memory_budget_bytes == 2 * small.memory_budget_bytes and large.fits
    assert large.compiled.step_seconds == small.compiled.step_seconds / 2
    assert any(note.code == topics.FROM_SMALLER_BUDGET.code for note in large.notes)
    again = planned(memory_budget="2MiB", **options)
    assert again.compiled.step_seconds == large.compiled.step_seconds
    other = planned(memory_budget="0.9MiB", **options)
    assert other.compiled.step_seconds == small.compiled.step_seconds
    assert not any(note.code == topics.FROM_SMALLER_BUDGET.code for note in other.notes)
