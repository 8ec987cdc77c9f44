"""`kiwi profile`, in this process."""

import json

import pytest

from kiwi.cli.main import main
from kiwi.mesh import ProfileTable
from kiwi.profiling.measure import Bench, Timing

FILE = """
import jax

def step(w, x):
    return (x @ w).sum()

def make_args():
    return jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((4, 8), "float32")
"""


def test_a_function_of_a_file_is_profiled_and_the_table_plans_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Bench, "time", lambda *_: Timing(1e-4, 0.1))
    (tmp_path / "model.py").write_text(FILE)
    function, out = f"{tmp_path / 'model.py'}:step", str(tmp_path / "table.json")
    assert main(["profile", function, "--mesh", "2", "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    table = ProfileTable.load(out)
    assert found["operators"] == len(table.operators) > 1
    assert found["collectives"] == len(table.collectives) == 25
    assert main(["plan", function, "--mesh", "2", "--profile", out, "--verify", "none"]) == 0
    assert "% measured" in capsys.readouterr().out


def test_a_run_that_is_interrupted_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    timed = []

    def interrupted(*_):
        timed.append(1)
        if len(timed) == 12:
            raise KeyboardInterrupt
        return Timing(1e-4, 0.1)

    monkeypatch.setattr(Bench, "time", interrupted)
    (tmp_path / "model.py").write_text(FILE)
    command = ["profile", f"{tmp_path / 'model.py'}:step", "--mesh", "2", "--out"]
    command.append(str(tmp_path / "table.json"))
    assert main(command) == 130
    assert "the same command goes on" in " ".join(capsys.readouterr().err.split())
    kept = len(ProfileTable.load(tmp_path / "table.json").operators)
    assert main(command) == 0
    assert kept > 0 and f"({kept} of them before)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", "2", "--out", "table"], "does not end with .json"),
        (["--mesh", "1024", "--out", "table.json"], "--cpu-devices 1024"),
        (["--mesh", "2", "--out", "table.json", "--repetitions", "0"], "At least one"),
        (["--mesh", "2", "--out", "no_folder/table.json"], "folder that exists"),
        (["--mesh", "2", "--out", "broken.json"], "is truncated"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Bench, "time", lambda *_: Timing(1e-4, 0.1))
    (tmp_path / "model.py").write_text(FILE)
    (tmp_path / "broken.json").write_text('{"format": "kiwi-profile", "version": 2,')
    assert main(["profile", "model.py:step", *arguments]) == 4
    assert message in " ".join(capsys.readouterr().err.split())
