"""The structure of `kiwi/`, as `benchmarks.structure` computes it from the sources."""

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.structure.budget import record
from benchmarks.structure.imports import (
    ROOT,
    circles,
    files_in_folders,
    imports,
    layers,
    room,
    sources,
)
from benchmarks.structure.picture import budget_rows, merged, upward
from kiwi.targets.registry import TARGETS
from kiwi.targets.rule import Rule


def test_no_modules_import_each_other_in_a_circle():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles(imports()) == []


def test_every_import_leads_to_the_same_or_a_lower_layer():
    height = {name: -k for k, layer in enumerate(layers()) for name in layer}
    for module, others in imports().items():
        if module != "kiwi":
            assert all(height[room(module)] >= height[room(o)] for o in others), module


def test_no_folder_is_too_full():
    assert max(files_in_folders().values()) <= 40


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


MAY_ASK_FOR_BACKENDS = ("targets", "xla", "profiling")
"""The rooms that may ask which backend there is."""

BACKENDS = frozenset({"cpu", "gpu", "tpu", "cuda", "rocm", "neuron"})


def asks_for_a_backend(source: str) -> Iterator[int]:
    """Returns the lines that read an attribute `platform`, or name a backend outside of docstrings.

    "cpu" may be named where nothing is compared with it: jax always has CPU devices.
    """
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    compared = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.MatchValue)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "platform":
            yield node.lineno
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if node.value in BACKENDS and (node.value != "cpu" or id(node) in compared):
            yield node.lineno


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("if hardware.platform == 'gpu': pass", 2),
        ("if hardware.backend in ('cpu', 'x'): pass", 1),
        ("match backend:\n    case 'tpu': pass", 1),
        ("jax.devices('cpu')", 0),
        ("import platform\nplatform.system()", 0),
        ("'''Of a gpu.'''\nx = 1  # tpu", 0),
    ],
)
def test_what_asks_for_a_backend_is_found(source: str, count: int):
    assert len(list(asks_for_a_backend(source))) == count


def test_only_targets_compilers_and_recordings_ask_for_a_backend():
    package = ROOT / "kiwi"
    asking = Counter(
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in MAY_ASK_FOR_BACKENDS
        for _ in set(asks_for_a_backend(path.read_text("utf-8")))
    )
    assert not asking


FILES_OF_RULES = sorted(
    path for path in (ROOT / "kiwi" / "targets" / "rules").rglob("*.py") if path.stem != "__init__"
)


@pytest.mark.parametrize("path", FILES_OF_RULES, ids=lambda path: path.stem)
def test_a_file_of_rules_ends_with_the_rule_of_its_name(path: Path):
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    rules = [name for name, value in vars(module).items() if isinstance(value, Rule)]
    assert rules == ["RULE"] and module.RULE.name == path.stem
    last = ast.parse(path.read_text("utf-8")).body[-1]
    assert isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == "RULE"


def test_each_rule_belongs_to_a_target_and_its_evidence_exists():
    used = {rule.name: rule for target in TARGETS.values() for rule in target.rules}
    assert set(used) == {path.stem for path in FILES_OF_RULES}
    for target in TARGETS.values():
        names = [rule.name for rule in target.rules]
        assert len(set(names)) == len(names)
    for rule in used.values():
        assert rule.evidence and all((ROOT / path).exists() for path in rule.evidence), rule.name
