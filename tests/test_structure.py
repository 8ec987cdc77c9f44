"""The structure of `kiwi/`, as `benchmarks.structure` computes it from the sources."""

import pytest

from benchmarks.structure.budget import record
from benchmarks.structure.imports import (
    ROOT,
    circles,
    count_lines,
    files_in_folders,
    imports,
    layers,
    room,
    sources,
)
from benchmarks.structure.picture import budget_rows, merged, upward


def test_no_modules_import_each_other_in_a_circle():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles(imports()) == []


def test_every_import_leads_to_the_same_or_a_lower_layer():
    height = {name: -k for k, layer in enumerate(layers()) for name in layer}
    for module, others in imports().items():
        if module != "kiwi":
            assert all(height[room(module)] >= height[room(o)] for o in others), module


MOST_LINES = 50_274
"""Of `kiwi/`: more only with a feature that the changelog names."""


def test_size():
    assert max(files_in_folders().values()) <= 40
    assert count_lines() <= MOST_LINES


def test_no_package_hides_behind_the_function_plan():
    assert not (ROOT / "kiwi" / "plan").exists()
    assert "kiwi.plan" not in sources()


@pytest.fixture(scope="module")
def passes():
    return record()


def test_the_memory_budget_goes_downward_only(passes):
    assert upward(passes) == []


def test_the_memory_budget_reaches_the_solver_and_the_plan(passes):
    rooms = [row.rooms for row in budget_rows(merged(passes))]
    assert rooms[0] == "api" and rooms[-1] == "solver" and "plans" in rooms


def test_a_pass_back_is_found(passes):
    back = ("kiwi.solver.solve", "kiwi.api")
    assert [end for _, end in upward(passes + type(passes)([back]))] == ["kiwi.api"]
    loop = [("kiwi.solver.a", "kiwi.solver.b"), ("kiwi.solver.b", "kiwi.solver.a")]
    assert upward(type(passes)(loop)) == [], "a loop and what it repeats, in one room"
