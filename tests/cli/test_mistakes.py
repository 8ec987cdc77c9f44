"""Ordinary mistakes of users: each gives one paragraph with a code, and none looks like a bug."""

import errno
import os
import re
import subprocess
import sys

import pytest

from kiwi.cli.main import main

FILE = """
import jax
import jax.numpy as jnp

def step(w, x):
    value, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, value

def raises(w, x):
    raise ValueError("a fault of mine")

def shapes(w, x):
    return w @ w @ x

def branches(w, x):
    return w if w.sum() > 0 else w.T

def exits(w, x):
    raise SystemExit(3)

def endless(w, x):
    return endless(w, x)

def text(w, x):
    return "abc", w

def narrow(w):
    return w

def summed(w, x):
    return jax.lax.psum(w, "batch")

def constrained(w, x):
    return jax.lax.with_sharding_constraint(w @ w, jax.sharding.PartitionSpec("data"))

def other(params, batch):
    return params

def tells(w, x):
    print("told while traced")
    jax.debug.print("{}", w[0, 0])
    return w @ w

number = 3

class Model:
    def step(self, w, x):
        return w

def make_args():
    return jax.ShapeDtypeStruct((16, 16), "float32"), jax.ShapeDtypeStruct((32, 16), "float32")

def texts(): return "hello", "you"
def nothing(): return None
def one(): return make_args()[:1]
def names(): return {"nope": make_args()[0]}
def broken(): raise RuntimeError("no data here")
def asking(n): return n
def leaving(): raise SystemExit("bye")
def sizes(): return (16, 16), (32, 16)
"""

FILES = {
    "train.py": FILE,
    "missing.py": "import not_there_at_all",
    "leaves.py": "import sys\nsys.exit(3)",
    "cut.py": "def step(:",
    "zero.py": "1 / 0",
    "empty.py": "",
    "text.json": "abc",
    "newer.json": '{"format": "kiwi-plan", "version": 99}',
    "older.json": '{"format": "kiwi-plan", "version": 1}',
    "altered.json": '{"format": "kiwi-plan", "version": 6, "digest": "x", "plan": {}}',
    "short.json": '{"format": "kiwi-plan", "version": 6, "dig',
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "folder").mkdir()

    def run_(*arguments: str):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_


def planned(function: str = "train.py:step", *more: str) -> tuple[str, ...]:
    known = () if "--mesh" in more else ("--mesh", "2,4")
    return "plan", function, *known, "--verify", "none", "--effort", "quick", *more


OF_FILES = [
    ("none.py:step", "L003"),
    ("folder:step", "L003"),
    ("text.json:step", "L004"),
    ("train.py", "L001"),
    (":step", "L001"),
    ("train.py:nope", "L007"),
    ("train.py:number", "L002"),
    ("missing.py:step", "L008"),
    ("leaves.py:step", "L009"),
    ("cut.py:step", "L006"),
    ("zero.py:step", "L010"),
    ("empty.py:step", "L007"),
]
OF_FUNCTIONS = [
    ("raises", "T008"),
    ("shapes", "T008"),
    ("exits", "T008"),
    ("endless", "T008"),
    ("branches", "T009"),
    ("text", "T010"),
    ("summed", "T006"),
    ("constrained", "T007"),
    ("narrow", "L012"),
    ("Model.step", "L012"),
]
OF_ARGUMENTS = [
    ("texts", "T004"),
    ("nothing", "L013"),
    ("one", "L012"),
    ("names", "L012"),
    ("broken", "L011"),
    ("asking", "L011"),
    ("leaving", "L011"),
    ("number", "L011"),
    ("nope", "L005"),
    ("sizes", "T008"),
]
OF_OPTIONS = [
    ("--mesh 0", "D001"),
    ("--mesh -2,4", "D001"),
    ("--mesh 2,2,2,2", "D002"),
    ("--axis-names a", "D004"),
    ("--axis-names a,a", "D004"),
    ("--topology 2x4", "D007"),
    ("--topology x --profile v5e", "D008"),
    ("--topology 4x4 --profile v5e", "D006"),
    ("--num-slices 3 --profile v5e", "D005"),
    ("--profile nope", "H001"),
    ("--profile nope.json", "F002"),
    ("--profile text.json", "F003"),
    ("--budget 0", "M004"),
    ("--budget abc", "M003"),
    ("--budget nan", "M003"),
    ("--budget 60%", "M003"),
    ("--budget 16G", "M003"),
    ("--budget -1GiB", "M004"),
    ("--budget=-1GiB", "M004"),
    ("--budget 4.06", "M008"),
    ("--host-budget 64", "M008"),
    ("--host-budget 0", "M004"),
    ("--offload-arguments yes", "M007"),
    ("--planner nope", "O001"),
    ("--planner rotor", "O006"),
    ("--solver nope", "O002"),
    ("--effort nope", "A002"),
    ("--verify nope", "V002"),
    ("--time-limit 0", "A006"),
    ("--gap -1", "A006"),
    ("--seed -5", "A006"),
    ("--seed 99999999999", "A006"),
    ("--gap inf", "A006"),
    ("--time-limit nan", "A006"),
    ("--while-trips -1", "A006"),
    ("--donate 7", "A004"),
    ("--in-shardings x,-", "S013"),
    ("--in-shardings q,-;", "S007"),
    ("--pin w", "S011"),
    ("--pin nope=x", "S010"),
    ("--pin w=z", "S007"),
    ("--pin w=x,-,-", "S004"),
    ("--pin w=x,x", "S002"),
    ("--forbid-replicated nope", "S010"),
    ("--on-host nope", "S010"),
    ("--out none/plan.json", "F001"),
    ("--out folder", "F001"),
    ("--out train.py/plan.json", "F001"),
    (f"--out {300 * 'n'}.json", "F001"),
    ("--report none/plan.html", "F001"),
]
OF_OTHERS = [
    ("explain none.json", "F002"),
    ("explain folder", "F002"),
    ("explain text.json", "F003"),
    ("explain newer.json", "F006"),
    ("explain older.json", "F007"),
    ("explain altered.json", "F008"),
    ("explain short.json", "F004"),
    ("diff none.json text.json", "F002"),
    ("verify none.json train.py:step", "F002"),
    ("hardware h100", "H001"),
    ("cluster none.json", "F002"),
    ("cluster --mesh 3,5", "D003"),
    ("profile train.py:step --mesh 1 --out table.txt", "H007"),
    ("profile train.py:step --mesh 64 --out table.json", "D010"),
    ("profile train.py:raises --mesh 1 --out table.json", "T008"),
    ("profile train.py:step --mesh 1 --out table.json --repetitions 0", "A006"),
    ("sweep train.py:step --mesh 2,2 --budget 0", "M004"),
    ("sweep train.py:step --mesh 2,2 --budget 1GiB --jobs 0", "A006"),
    ("sweep train.py:step --mesh 2,2 --budget 1GiB --out none/s.json", "F001"),
    ("search train.py:step --devices 4", "C012"),
    ("search missing.py:step --devices 4", "L008"),
    ("deviation train.py:step --mesh 2,4 --verify none --effort quick", "V010"),
]
MISTAKES = [
    *((planned(function), code) for function, code in OF_FILES),
    *((planned(f"train.py:{name}"), code) for name, code in OF_FUNCTIONS),
    *((planned("train.py:step", "--args", name), code) for name, code in OF_ARGUMENTS),
    *((planned("train.py:step", *options.split()), code) for options, code in OF_OPTIONS),
    *((tuple(command.split()), code) for command, code in OF_OTHERS),
]


@pytest.mark.parametrize(("arguments", "topic"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_paragraph_with_a_code(run, arguments, topic):
    code, out, err = run(*arguments)
    assert code == 4, err
    assert err.startswith(f"kiwi: error: KIWI-{topic}: ") and not out
    assert err.count("\n") == 1 and "Traceback" not in err and " Try: " in err


def test_a_fault_of_the_function_names_its_line(run):
    *_, err = run(*planned("train.py:raises"))
    assert "ValueError: a fault of mine (train.py:10)" in err


def test_a_fault_that_only_another_process_meets_is_told_as_well(run):
    code, out, err = run("sweep", "train.py:raises", "--mesh", "2,2", "--budget", "1GiB")
    assert code == 1 and "ValueError: a fault of mine" in out and "Traceback" not in err
    code, _, err = run("sweep", "missing.py:step", "--mesh", "2,2", "--budget", "1GiB")
    assert code == 4 and "KIWI-L008" in err


def test_a_step_may_have_side_effects(run):
    code, out, _ = run(*planned("train.py:tells"))
    assert code == 0 and "Plan for 8" in out


def test_a_time_limit_may_be_infinite(run):
    code, _, err = run(*planned("train.py:step", "--time-limit", "inf", "--out", "plan.json"))
    assert code == 0, err
    code, _, err = run(*planned("train.py:step", "--out", ""))
    assert code == 4 and "KIWI-A001: '' is no path of a file" in err


def test_a_file_may_have_the_name_of_a_module(run, tmp_path):
    (tmp_path / "folder" / "types.py").write_text(FILE)
    assert run(*planned("folder/types.py:step"))[0] == 0
    import types

    assert types.FunctionType


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(run, tmp_path):
    (tmp_path / "folder").chmod(0o500)
    code, _, err = run(*planned("train.py:step", "--out", "folder/plan.json"))
    assert code == 4 and "Permission denied" in err


def test_a_full_disk_is_told_after_the_summary(run, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    for option in ("--out", "--report"):
        code, out, err = run(*planned("train.py:step", option, "plan.file"))
        assert code == 4 and err.startswith("kiwi: error: KIWI-F001: ") and "disk is full" in err
        assert "Plan for 8" in out


def test_a_full_output_is_no_fault_of_kiwi():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "kiwi", "explain", "KIWI-M003"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4 and done.stderr.startswith("kiwi: error: KIWI-F010: ")
    assert done.stderr.count("\n") == 1


def test_a_plan_of_another_function_is_told_as_such(run):
    assert run(*planned("train.py:step", "--donate", "0", "--out", "plan.json"))[0] == 0
    code, _, err = run("verify", "plan.json", "train.py:other", "--target", "cpu")
    assert code == 4 and err.startswith("kiwi: error: KIWI-P002: ")
    assert "another function" in err and "made for step" in err


@pytest.mark.parametrize("command", ["search", "sweep"])
def test_help_shows_the_default_effort(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "thorough (quick)" in " ".join(capsys.readouterr().out.split())


def test_a_budget_that_nothing_fits_has_an_exit_code_of_its_own(run):
    code, _, err = run(*planned("train.py:step", "--budget", "1KiB"))
    assert code == 3 and re.match(r"kiwi: error: KIWI-M00[12]: ", err)


def test_a_code_is_explained(run):
    code, out, _ = run("explain", "kiwi-m003")
    assert code == 0 and out.startswith("KIWI-M003 (error): A memory size cannot be read\n")
    assert '"remedy"' in run("explain", "KIWI-S105", "--json")[1]
    code, _, err = run("explain", "KIWI-X999")
    assert code == 4 and "There is no message KIWI-X999" in err


def test_a_bug_is_still_one(run, monkeypatch):
    monkeypatch.setattr("kiwi.cli.commands.document", lambda _: 1 // 0)
    code, _, err = run(*planned("train.py:step"))
    assert code == 70 and "ZeroDivisionError" in err


def test_a_reader_may_close_the_output():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kiwi", "explain", "KIWI-M003"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("JAX_ENABLE_X64", "maybe", 4, "KIWI-D013: jax cannot be imported: "),
        ("XLA_FLAGS", "--xla_nope", 1, "Unknown flag"),
    ],
)
def test_environment_variables_of_jax(variable, value, code, words, tmp_path):
    (tmp_path / "train.py").write_text(FILE)
    command = [sys.executable, "-m", "kiwi", *planned(f"{tmp_path / 'train.py'}:step")]
    done = subprocess.run(
        command,
        env=os.environ | {variable: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr
