"""The fidelity benchmark: its variants exist on every mesh, and its summary counts correctly."""

from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import PartitionSpec

from benchmarks.fidelity.against_checkpoint import front, ratios
from benchmarks.fidelity.measure import Case, hand_row, planned_row, unpredicted_seconds
from benchmarks.fidelity.models import MODELS, Model
from benchmarks.fidelity.report import markdown, scatter
from benchmarks.fidelity.summary import Key, collective_errors, peak_error, summarise
from benchmarks.fidelity.variants import (
    HandVariant,
    PlannedVariant,
    baseline,
    hand_variants,
    planned_variants,
)
from examples import mlp
from kiwi.mesh import DeviceMesh, collective
from kiwi.xla.read.collectives import AxisUse

MESHES = [(1, 1), (1, 4), (2, 4), (8, 1)]


@pytest.mark.parametrize("mesh_shape", MESHES)
@pytest.mark.parametrize("model", MODELS)
def test_every_sharding_by_hand_divides_every_model(model: str, mesh_shape: tuple[int, int]):
    sizes = dict(zip(("x", "y"), mesh_shape, strict=True))
    found = MODELS[model]
    state = found.module.abstract_state(found.config)
    for variant in hand_variants(mesh_shape, [None]):
        specs = baseline(found, mesh_shape, variant).specs
        mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
        for spec, array in zip(
            jax.tree.leaves(specs.state, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)),
            jax.tree.leaves(state),
            strict=True,
        ):
            jax.sharding.NamedSharding(mesh, spec).shard_shape(array.shape)


def test_names_of_variants():
    assert [v.name for v in planned_variants([0.6])] == ["free", "budget-60"]
    assert [v.name for v in hand_variants((1, 1), [None, "full"])] == ["single/none", "single/full"]
    assert len(list(hand_variants((2, 4)))) == 16 and len(list(hand_variants((8, 1)))) == 12
    key = Key("gpt", "2x4", "fsdp/full", "cuda")
    assert Key.parse(str(key)) == key and key.by_hand


@pytest.mark.slow
def test_rows_are_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MODELS, "mlp", Model(mlp, mlp.SIZES["tiny"]))  # pyright: ignore[reportArgumentType]
    case = Case("mlp", (2, 4), "cpu", "h100-sxm", effort="quick")
    free = planned_row(case, PlannedVariant(None), None)
    assert free["compiled_peak_bytes"] > 0 and abs(peak_error(free) or 1.0) < 1.0
    least = planned_row(case, PlannedVariant(0.01), free["compiled_peak_bytes"])
    assert least["asked_bytes"] < least["budget_bytes"] <= free["compiled_peak_bytes"]
    hand = hand_row(case, HandVariant("megatron", "full"))
    assert hand["predicted_collectives"] == hand["compiled_collectives"] != {}
    plain = hand["plain"]
    assert plain["predicted_collectives"] == plain["compiled_collectives"] != {}
    assert plain["compiled_peak_bytes"] > 0
    assert plain["unpredicted_seconds"] == pytest.approx(0.0, abs=1e-12)


def test_what_was_not_predicted_costs_time():
    mesh = DeviceMesh.create((2, 4), "h100-sxm")
    gather, reduce = AxisUse("all-gather", ("x",), 4, 2**20), AxisUse("all-reduce", ("y",), 2, 64)

    def unpredicted(predicted: list[AxisUse], compiled: list[AxisUse]) -> float:
        return unpredicted_seconds(
            SimpleNamespace(collective_uses=predicted),  # pyright: ignore[reportArgumentType]
            SimpleNamespace(collective_uses=compiled),  # pyright: ignore[reportArgumentType]
            mesh,
        )

    each = collective("all-gather", mesh, (0,), 2**18).seconds
    assert unpredicted([reduce], [reduce, gather]) == pytest.approx(4 * each)
    assert unpredicted([reduce, gather], [reduce]) == pytest.approx(-4 * each)
    assert unpredicted([], [reduce]) == pytest.approx(
        2 * collective("all-reduce", mesh, (1,), 32).seconds
    )


def row(predicted: int, compiled: int, budget: int | None, **collectives: list[int]) -> dict:
    uses = {kind.replace("_", "-"): use for kind, use in collectives.items()}
    return {
        "predicted_peak_bytes": predicted,
        "compiled_peak_bytes": compiled,
        "predicted_collectives": uses,
        "compiled_collectives": {"all-reduce": [3, 1000], "all-gather": [1, 2]},
        "budget_bytes": budget,
        "fits": budget is None or compiled <= budget,
        "total_seconds": 1.0,
    }


ROWS = {
    "gpt 2x4 free cpu": row(100, 100, None, all_reduce=[1, 500], reduce_scatter=[1, 400]),
    "gpt 2x4 budget-60 cpu": row(70, 60, 60, all_reduce=[1, 1000]),
    "gpt 2x4 budget-40 cpu": row(30, 50, 40, all_reduce=[1, 1000]),
    "gpt 2x4 fsdp/full cpu": {**row(90, 100, None), "plain": row(80, 100, None)},
    "gpt 2x4 budget-20 cpu": {"error": "InfeasibleBudgetError", "what": "", "total_seconds": 1.0},
}


def test_the_summary_counts():
    (summary,) = summarise(ROWS).values()
    assert summary["plans"]["rows"] == 3
    assert summary["plans"]["median"] == pytest.approx(1 / 6, abs=1e-4)
    assert (summary["plans"]["worst"], summary["plans"]["worst_row"]) == (
        -0.4,
        "gpt 2x4 budget-40 cpu",
    )
    assert summary["plans"]["within_15_percent"] == 1
    assert summary["by_hand"]["median"] == 0.1
    assert summary["plain"]["median"] == 0.2
    assert summary["refused"] == ["gpt 2x4 budget-20 cpu: InfeasibleBudgetError"]


def test_reduce_scatters_count_as_all_reduces_on_cpu_and_small_ones_not_at_all():
    free = ROWS["gpt 2x4 free cpu"]
    assert dict(collective_errors(free, "cpu")) == {"all-reduce": pytest.approx(0.1)}
    assert dict(collective_errors(free, "cuda")) == {
        "all-reduce": pytest.approx(0.5),
        "reduce-scatter": 1.0,
    }


def test_reports_are_written(tmp_path: Path):
    text = markdown({"jax": "1.2.3"}, ROWS, summarise(ROWS))
    assert "jax: 1.2.3" in text and all(f"\n| {key} |" in text for key in ROWS)
    scatter(ROWS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_plans_are_compared_with_the_front_by_hand():
    def timed(seconds: float, peak: int, **more: object) -> dict:
        return {"predicted_step_seconds": seconds, "compiled_peak_bytes": peak, **more}

    rows = {
        "data/none": timed(1.0, 100),
        "fsdp/none": timed(1.2, 80),
        "mixed/none": timed(1.3, 80),
        "data/full": timed(1.5, 90),
        "fsdp/full": timed(2.0, 40),
    }
    assert front(rows) == ["data/none", "fsdp/none", "fsdp/full"]
    plans = {
        "data/none": timed(0.9, 95, fits=True),
        "fsdp/none": timed(1.5, 70, fits=True),
        "fsdp/full": {"error": "NoPlanFoundError"},
    }
    case = {"by_hand": rows, "front": front(rows), "plans": plans}
    assert ratios(case) == pytest.approx([0.9, 1.25])
