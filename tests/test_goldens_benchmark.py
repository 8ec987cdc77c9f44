"""The goldens detect the intended differences, and no others."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from benchmarks.goldens.cells import TARGETS, all_series
from benchmarks.goldens.compare import differences
from benchmarks.goldens.emitted import programs, text_digest
from benchmarks.goldens.models import MODELS
from benchmarks.goldens.outcome import Data, Tables, planned, positions, ranges, refused
from benchmarks.goldens.work import RECORDED


def _step(weights: jax.Array, batch: jax.Array) -> jax.Array:
    loss = lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2)  # noqa: E731
    return weights - 0.1 * jax.grad(loss)(weights)


def _plan() -> kiwi.Plan:
    shapes = (jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((256, 64), "float32"))
    options: Data = {"mesh_shape": (2, 4), "verify": None, "effort": "quick", "plan_cache": False}
    return kiwi.plan(_step, *shapes, **options)


def _as_recorded(plan: kiwi.Plan) -> tuple[Data, Tables]:
    tables = Tables()
    cell = {**planned(plan, tables), "programs": programs(plan, "cuda")}
    return json.loads(json.dumps(cell)), tables


@pytest.fixture(scope="module")
def cell() -> tuple[Data, Tables]:
    """Returns a small plan for H100s, as it is recorded."""
    return _as_recorded(_plan())


def test_same_request_gives_the_same_cell(cell: tuple[Data, Tables]) -> None:
    assert differences(*cell, *_as_recorded(_plan())) == []


def test_both_programs_are_recorded(cell: tuple[Data, Tables]) -> None:
    planned_program, needed = cell[0]["programs"].values()
    assert "optimization_barrier" in planned_program
    assert "dot_general" in needed
    assert planned_program != needed


def _changed(cell: Data, path: str, change: Any) -> Data:
    changed: Data = json.loads(json.dumps(cell))
    *above, last = path.split(".")
    part = changed
    for name in above:
        part = part[name]
    part[last] = change(part[last])
    return changed


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("estimate.step_seconds", lambda seconds: math.nextafter(seconds, math.inf)),
        ("estimate.peak_bytes", lambda size: size + 1),
        ("estimate.peak_bytes", float),
        ("programs.planned", lambda text: text[:-1]),
        ("fits", lambda fits: not fits),
        ("notes", lambda notes: [*notes, "Another one."]),
        ("summary", lambda lines: lines[:-1]),
    ],
)
def test_a_changed_field_is_named(cell: tuple[Data, Tables], path: str, change: Any) -> None:
    old, tables = cell
    (line,) = differences(old, tables, _changed(old, path, change), tables)
    assert line.startswith(path)


def test_another_layout_is_named_by_operator(cell: tuple[Data, Tables]) -> None:
    old, tables = cell
    layout, first = next(iter(old["decisions"]["layouts"].items()))
    other = {f"{layout} otherwise" if k == layout else k: v for k, v in _layouts(old).items()}
    new = _changed(old, "decisions.layouts", lambda _: other)
    lines = differences(old, tables, new, tables)
    assert len(lines) == len(positions(first))
    assert f"{layout} → {layout} otherwise" in lines[0]


def _layouts(cell: Data) -> dict[str, str]:
    return cell["decisions"]["layouts"]


def test_positions_of_tables_do_not_matter(cell: tuple[Data, Tables]) -> None:
    old, tables = cell
    last = len(tables.operators) - 1
    mirrored = Tables(tables.operators[::-1], tables.arguments, tables.results)
    new = _changed(old, "decisions.order", lambda text: _mirrored(text, last))
    new["decisions"]["layouts"] = {k: _mirrored(v, last) for k, v in _layouts(old).items()}
    assert differences(old, tables, new, mirrored) == []


def _mirrored(text: str, last: int) -> str:
    return ranges([last - position for position in positions(text)])


def test_an_error_instead_of_a_plan_is_one_line(cell: tuple[Data, Tables]) -> None:
    error = refused(kiwi.errors.InvalidMeshError("No mesh.", cause="c", suggestion="s"))
    (line,) = differences(*cell, error, Tables())
    assert line.startswith("outcome: plan → InvalidMeshError KIWI-D001: No mesh.")


def test_programs_are_told_apart_by_their_text() -> None:
    text = "a = stablehlo.optimization_barrier b\nc = stablehlo.dot_general a, a\n"
    assert text_digest(text).startswith("2 lines, 1 optimization_barrier, 1 dot_general: ")
    assert text_digest(text) != text_digest(text.replace("a, a", "a, b"))


def test_everything_is_recorded() -> None:
    files = {series.name for series in all_series()}
    assert files == {path.stem for path in RECORDED.glob("*.json")}
    assert len(MODELS) == 10
    assert {target.profile for target in TARGETS.values()} == {"cpu", "h100-sxm", "v5e"}
