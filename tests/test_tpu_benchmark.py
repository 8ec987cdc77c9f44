"""The benchmark of TPUs: its bisections, counts, rows and tables."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import kiwi
from benchmarks.tpu import big, check_cost, edges, options, published
from benchmarks.tpu.book import Book
from benchmarks.tpu.programs import GROWING, of_module
from benchmarks.tpu.published_models import Decoder, parameter_count, shardings, training_step
from benchmarks.tpu.verdict import verdict
from examples import mlp
from kiwi.campaign import overlap_search
from kiwi.mesh import CATALOGUE, DeviceMesh
from kiwi.xla.compilers import compile_for

needs_compiler = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the extra aot-tpu is not installed"
)

SCHEDULED = """HloModule m, is_scheduled=true
%async_collective_fusion.1 (p: f32[8]) -> f32[8] {
  %g = f32[64]{0} all-gather(%p), channel_id=3, replica_groups={{0,1}}, dimensions={0}
}
%async_collective_end.1 (p: f32[8]) -> f32[8] {
  %e = f32[64]{0} all-gather(%p), channel_id=3, replica_groups={{0,1}}, dimensions={0}
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %a = f32[64]{0} all-gather(%p), channel_id=1, replica_groups={{0,1}}, dimensions={0}
  %s = (f32[8], f32[64]) all-gather-start(%p), channel_id=2, replica_groups={{0,1}}, dimensions={0}
  %d = f32[64] all-gather-done(%s)
  %c = f32[8] collective-permute(%p), channel_id=4, source_target_pairs={{0,1}}
}
"""


@pytest.mark.parametrize(("largest", "first"), [(0, 64), (8, 64), (184, 64), (184, 400), (7, 8)])
def test_the_edge_is_found_from_both_sides(largest: int, first: int):
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= largest

    low, high = edges.edge(fits, first)
    assert low == largest // 8 * 8 and high == low + 8
    assert len(tried) == len(set(tried)) <= 12


def test_collectives_overlap_where_something_runs_meanwhile():
    assert options.overlap(SCHEDULED, DeviceMesh.create((2,), "v5e")) == {
        "collectives": 4,
        "collective_bytes": 3 * 4 * 64 + 4 * 8,
        "overlapping": 2,
        "overlapping_bytes": 2 * 4 * 64,
        "permutes": 1,
    }


def test_rows_are_measured_once_and_again_where_they_are_redone(tmp_path: Path):
    path = tmp_path / "rows.json"
    measured: list[str] = []

    def row(book: Book, key: str) -> None:
        book.row(key, lambda: measured.append(key) or {"bytes": 1})

    for redone in ((), (), ("mlp",)):
        book = Book(path, redone)
        row(book, "mlp 8")
        row(book, "gpt 8")
    assert measured == ["mlp 8", "gpt 8", "mlp 8"]
    kept = json.loads(path.read_text())["gpt 8"]
    assert {"command", "date", "commit", "jax", "libtpu", "bytes"} <= kept.keys()
    book.write_table("Title", ["table"])
    assert path.with_suffix(".md").read_text().endswith("\ntable\n")


def test_every_batch_that_eight_divides_is_a_step():
    for make in GROWING.values():
        small, large = (make(batch).batch for batch in (8, 16))
        assert str(small) != str(large)


def test_the_rebuilt_decoders_are_as_large_as_published():
    counts = {name: parameter_count(step.decoder) for name, step in published.STEPS.items()}
    assert counts["llama2-7b"] == pytest.approx(6.74e9, rel=0.01)
    assert counts["maxtext-52b"] == counts["maxtext-52b-tiled"]


def test_parameters_are_sharded_along_their_widest_dimension_but_the_layers():
    decoder = Decoder(64, 32, 4, 8, 128, 96, gated=True, kept="nothing")
    step = training_step(decoder, 8, 16, (8,), ("x",))
    found = shardings(step.state, ("x",), 8)["params"]
    assert found["output"] == PartitionSpec(None, ("x",))
    assert found["layers"]["up"] == PartitionSpec(None, None, ("x",))


@needs_compiler
def test_the_compiler_takes_a_step_and_refuses_one_that_is_too_large():
    def plan(rows: int):
        config = mlp.MlpConfig(layers=2, width=1024, batch=rows)
        step = of_module(mlp, config)
        return step.plan(mesh_shape=(8,), profile="v5e", verify=None, memory_budget="1TiB")

    small, large = verdict(plan(1024).step), verdict(plan(2**23).step)
    assert small.is_taken and not small.said
    assert not large.is_taken and large.said.startswith("RESOURCE_EXHAUSTED")


@needs_compiler
@pytest.mark.parametrize("profile", [name for name, each in CATALOGUE.items() if each.interconnect])
def test_the_catalogue_has_the_memory_that_the_compiler_grants(profile: str):
    rows = jax.ShapeDtypeStruct((2**28, 1024), "float32")
    plan = kiwi.plan(
        lambda x: jnp.sin(x) @ jnp.ones((1024, 1024)),
        rows,
        mesh_shape=(4,),
        profile=profile,
        verify=None,
        memory_budget="1TiB",
    )
    said = verdict(plan.step).said
    granted = re.search(r"exceeds available HBM \((?P<gib>[\d.]+)G\)", said)
    assert granted is not None, said
    # libtpu of jax 0.11 grants 10 MiB less of v6e and of tpu7x than that of jax 0.10.
    exact = 0.01 if jax.__version_info__ < (0, 11) else 0.02
    assert CATALOGUE[profile].memory_bytes / 2**30 == pytest.approx(
        float(granted["gib"]), abs=exact
    )


@needs_compiler
@pytest.mark.slow
def test_options_change_what_is_compiled_of_a_plan():
    config = mlp.MlpConfig(layers=2, width=1024, batch=4096, optimizer="adam")
    plan = of_module(mlp, config).plan(
        mesh_shape=(2, 4), profile="v5e", topology="2x4", verify="tpu", time_limit_seconds=5
    )
    assert plan.compiled is not None
    waiting = overlap_search.without_forms(plan).step
    waits = compile_for("tpu", waiting).peak_bytes
    check, run = (options.figures(waiting, options.VARIANTS[name]) for name in ("check", "VMEM"))
    assert check["peak_bytes"] == waits and check["vmem_bytes"] == 0
    assert run["vmem_bytes"] > 0 and run["peak_bytes"] < check["peak_bytes"]


@pytest.mark.parametrize("measurement", [edges, published, options, check_cost, big])
def test_committed_rows_make_the_committed_table(measurement):
    path = Path(measurement.__file__).parent / "results" / measurement.__name__.split(".")[-1]
    if not path.with_suffix(".json").exists():
        pytest.skip("not measured")
    rows = json.loads(path.with_suffix(".json").read_text())
    assert "\n".join(measurement.table(rows)) in path.with_suffix(".md").read_text()
