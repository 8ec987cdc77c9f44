"""The `kiwi` command: its output, its files and its exit codes."""

import json
import subprocess
import sys

import pytest

from kiwi.cli.main import main

FILE = """
import jax
import jax.numpy as jnp

def loss(w, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) ** 2)

def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value

def other(w, x):
    return step(jax.tree.map(jnp.sin, w), x)

def make_args():
    w = jax.ShapeDtypeStruct((64, 64), "float32")
    return [w, w], jax.ShapeDtypeStruct((128, 64), "float32")

def by_name():
    args = make_args()
    return {"w": args[0], "x": args[1]}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FILE)

    def run_(*arguments: str):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_


PLAN = ("plan", "train.py:step", "--mesh", "2,4", "--verify", "none")


def test_plan_writes_a_plan_and_a_report(run, tmp_path):
    code, out, err = run(*PLAN, "--out", "plan.json", "--report", "plan.html")
    assert code == 0 and "Plan for 8 x h100-sxm (x=2, y=4)" in out
    assert "plan.json" in err and (tmp_path / "plan.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "kiwi-plan"


def test_plan_prints_json_for_machines(run):
    code, out, err = run(*PLAN, "--json", "--budget", "1GiB", "--axis-names", "data,model")
    found = json.loads(out)
    assert code == 0 and not err
    assert found["options"]["memory_budget_bytes"] == 2**30
    assert found["mesh"]["axis_names"] == ["data", "model"]


def test_arguments_are_pinned(run):
    code, out, _ = run(*PLAN, "--pin", "w/0=-,x", "--json")
    assert code == 0
    assert json.loads(out)["arguments"]["w[0]"]["sharding"] == [[], ["x"]]
    code, _, err = run(*PLAN, "--pin", "w/0=-,-", "--forbid-replicated", "w/**")
    assert code == 4
    assert "shardings['w/0'] and forbid_replicated['w/**']" in err


def test_arguments_may_be_named(run):
    code, out, _ = run(*PLAN, "--args", "by_name", "--json")
    assert code == 0 and list(json.loads(out)["arguments"]) == ["w[0]", "w[1]", "x"]


def test_explain_shows_a_plan_and_one_operator(run):
    run(*PLAN, "--out", "plan.json")
    code, out, _ = run("explain", "plan.json")
    assert code == 0 and "Costliest" in out and "train.py" in out
    code, out, _ = run("explain", "plan.json", "--op", "dot_general")
    assert code == 0 and "Costs" in out and "If forced" not in out
    forced = ("--function", "train.py:step", "--forced", "1")
    code, out, _ = run("explain", "plan.json", "--op", "dot_general", *forced)
    assert code == 0 and "If forced" in out
    code, out, _ = run("explain", "plan.json", "--op", "dot_general", *forced, "--json")
    assert json.loads(out)["forced"][0]["step_seconds"] > 0


def test_diff_says_whether_plans_differ_by_its_exit_code(run, tmp_path):
    run(*PLAN, "--out", "a.json")
    run("plan", "train.py:step", "--mesh", "8", "--verify", "none", "--out", "b.json")
    code, out, _ = run("diff", "a.json", "a.json")
    assert code == 0 and "decide the same" in out
    code, out, _ = run("diff", "a.json", "b.json")
    assert code == 1 and "mesh" in out
    code, out, _ = run("diff", "a.json", "b.json", "--json")
    assert code == 1 and json.loads(out)["differences"]
    code, _, err = run("diff", "a.json", "b.json", "--report", "diff.html")
    assert code == 1 and "diff.html" in err and (tmp_path / "diff.html").stat().st_size > 10_000


def test_verify_compiles_a_saved_plan(run):
    run(*PLAN, "--out", "plan.json")
    code, out, _ = run("verify", "plan.json", "train.py:step")
    assert code == 0 and "fits" in out
    code, out, _ = run("verify", "plan.json", "train.py:step", "--json")
    assert json.loads(out)["peak_bytes"] > 0


def test_verify_refuses_another_function(run):
    run(*PLAN, "--out", "plan.json")
    code, _, err = run("verify", "plan.json", "train.py:other")
    assert code == 4 and "another function" in err and err.count("\n") == 1


def test_hardware_lists_the_catalogue(run):
    code, out, _ = run("hardware")
    assert code == 0 and "h100-sxm" in out
    code, out, _ = run("hardware", "h100-sxm", "--json")
    assert json.loads(out)["memory_bytes"] == 80 * 10**9
    code, out, _ = run("hardware", "v5e")
    assert (
        "link to a neighbour, one way 50 GB/s" in out
        and "rings where one is a multiple of 16" in out
    )
    code, out, _ = run("hardware", "tpu7x")
    assert "rings where all are multiples of 4" in out and "devices per chip: 2, 600 GB/s" in out
    code, _, err = run("hardware", "h1000")
    assert code == 4 and "h100-sxm" in err


def test_sweep_makes_a_table_of_meshes_and_budgets(run, tmp_path):
    grid = ("--mesh", "4", "--mesh", "2,2", "--budget", "1GiB", "--budget", "90KiB")
    code, out, _ = run("sweep", "train.py:step", *grid, "--out", "s.json", "--report", "s.html")
    assert code == 0 and "2x2" in out and "1.00 GiB" in out
    points = json.loads((tmp_path / "s.json").read_text())["points"]
    assert len(points) == 4 and any(p["pareto"] for p in points)
    for point in points:
        assert point["step_seconds"] is None or point["peak_bytes"] <= point["memory_budget_bytes"]
    assert '"sweep":{' in (tmp_path / "s.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("plan", "none.py:step"), 4, "no file none.py"),
        (("plan", "train.py:nope"), 4, "no nope"),
        (("plan", "train.py"), 4, "names no function"),
        (("plan", "train.py:step", "--args", "nope"), 4, "def nope()"),
        ((*PLAN, "--budget", "16 gigs"), 4, "16 gigs"),
        ((*PLAN, "--profile", "h100"), 4, "h100-sxm"),
        ((*PLAN, "--budget", "1KiB", "--time-limit", "5"), 3, "1.00 KiB"),
        ((*PLAN, "--out", "none/plan.json"), 4, "cannot be written"),
        (("explain", "train.py"), 4, "not a plan file"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(run, arguments, code, words):
    found, out, err = run(*arguments)
    assert found == code and words in err and err.startswith("kiwi: error: KIWI-")
    assert err.count("\n") == 1 and "Traceback" not in err and not out


def test_debug_shows_the_traceback(run):
    _, _, err = run("plan", "none.py:step", "--debug")
    assert "Traceback" in err and "InvalidArgumentError" in err


WRONG = [
    (*PLAN, "--while-trips", "many"),
    (*PLAN, "--while-trips", "solve=often"),
    (*PLAN, "--while-trips", "=3"),
    (*PLAN, "--equal-layers", "maybe"),
]


def test_wrong_usage_is_refused_by_the_parser(run, capsys):
    for arguments in ((), ("fly",), ("plan", "train.py:step", "--mesh", "two"), *WRONG):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    capsys.readouterr()


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "kiwi", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("kiwi ")
