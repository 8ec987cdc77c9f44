"""A part of `benchmarks.resharding`, compiled here, and its committed results."""

import json
from pathlib import Path

import pytest

from benchmarks.resharding.cases import random_cases
from benchmarks.resharding.compiled import Target, agree, foreseen, seconds
from benchmarks.resharding.partial_sums import reduced_matmuls
from benchmarks.resharding.report import report
from kiwi.mesh import DeviceMesh
from kiwi.xla.read.collectives import CollectiveUse, by_kind

RESULTS = Path(__file__).parents[2] / "benchmarks" / "resharding" / "results"


@pytest.fixture(scope="module")
def target():
    return Target("cpu")


@pytest.mark.parametrize("case", list(random_cases(24, seed=1)), ids=str)
def test_guided_reshards_compile_to_what_is_foreseen(case, target):
    table = case.table("cpu")
    waypoints = table.waypoints(case.source, case.target)
    compiled = target.reshard(case, waypoints)
    assert agree(foreseen(table.path(case.source, case.target)), by_kind(compiled))
    if all(use.axes is not None for use in compiled):
        assert seconds(case.mesh, compiled) <= table.seconds(case.source, case.target) * 1.001


@pytest.mark.parametrize(
    ("mesh_shape", "dtype"), [((8,), "float32"), ((8,), "bfloat16"), ((2, 4), "float32")]
)
@pytest.mark.parametrize("profile", ["cpu", "h100-sxm"])
def test_partial_sums_are_reduced_as_foreseen(mesh_shape, dtype, profile, target):
    """By the compiler's rules, whatever the links are."""
    found = reduced_matmuls(DeviceMesh.create(mesh_shape, profile), target, dtype)
    busy = [row for row in found if not row.idle]
    assert len(busy) >= 3 and all(row.agrees for row in busy)


def test_agreement_is_of_kinds_counts_and_bytes():
    predicted = {"all-gather": CollectiveUse(2, 1000)}
    assert agree(predicted, {"all-gather": CollectiveUse(2, 1040)})
    assert not agree(predicted, {"all-gather": CollectiveUse(2, 1100)})
    assert not agree(predicted, {"all-gather": CollectiveUse(1, 1000)})
    assert not agree(predicted, {"all-to-all": CollectiveUse(2, 1000)})
    assert not agree(predicted, {})


def test_the_committed_results_are_of_these_cases_and_nearly_all_agree():
    results = json.loads((RESULTS / "resharding.json").read_text())
    cases = list(map(str, random_cases(200, results["environment"]["seed"])))
    for name in ("cpu", "cuda"):
        rows = results[name]["reshardings"]
        assert [row["case"] for row in rows] == cases
        assert sum(row["agrees"] for row in rows) >= 0.95 * len(rows)
        busy = [row for row in results[name]["partial_sums"] if not row["idle_axis"]]
        assert sum(row["agrees"] for row in busy) >= 0.95 * len(busy)
    assert (RESULTS / "resharding.md").read_text() == report(results)
