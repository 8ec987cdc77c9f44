"""Plans priced from recorded tables, and recording itself."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from examples import gpt
from kiwi.errors import (
    InvalidArgumentError,
    NotEnoughDevicesError,
    ProfileFileError,
    UnknownProfileError,
)
from kiwi.mesh import CATALOGUE, DeviceMesh, ProfileTable, Provenance, collective
from kiwi.plans.restore import estimate_of
from kiwi.problem.library_calls import library_calls
from kiwi.profiling.measure import Bench, Point, TimedFunction, Timing
from kiwi.profiling.operator_points import elementwise_points, operator_points
from kiwi.profiling.recording import collective_points, known_hardware, record

# Recorded by `kiwi profile` with --mesh 2,4 --cpu-devices 8 --repetitions 5.
GPT_TABLE = Path(__file__).parent / "tables" / "gpt_cpu.json"
GPT = gpt.GptConfig(layers=1, width=128, heads=8, batch=8, sequence=64)
GPT_ARGUMENTS = gpt.abstract_state(GPT), gpt.abstract_batch(GPT)


def plan_gpt(profile, mesh_shape=(2, 4)):
    step = gpt.make_train_step(GPT)
    options = {"profile": profile, "verify": None, "effort": "quick", "gap": 0.05}
    return kiwi.plan(step, *GPT_ARGUMENTS, mesh_shape=mesh_shape, **options)


@pytest.fixture(scope="module")
def gpt_plan():
    return plan_gpt(GPT_TABLE)


def test_gpt_is_planned_for_eight_devices_from_a_file(gpt_plan):
    shares = gpt_plan.time_shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["measured"] > 0.3
    assert "% measured" in str(gpt_plan)
    assert gpt_plan.profile == "recorded-cpu"


def test_a_plan_takes_the_recorded_times(gpt_plan):
    """Every matmul recorded ten times as slow makes the plan slower by nine times their share."""
    table = ProfileTable.load(GPT_TABLE)
    slow = tuple(replace(e, seconds=10 * e.seconds) for e in table.operators)
    slowed = plan_gpt(replace(table, operators=slow)).estimate.compute_seconds
    assert 3 < slowed / gpt_plan.estimate.compute_seconds < 10


def test_saved_plans_keep_their_shares_and_load(gpt_plan, tmp_path):
    gpt_plan.save(tmp_path / "plan.json")
    step = gpt.make_train_step(GPT)
    saved = kiwi.load_plan(tmp_path / "plan.json")
    found = saved.apply(step).plan(*GPT_ARGUMENTS)
    assert found.time_shares == gpt_plan.time_shares
    assert found.estimate.step_seconds == gpt_plan.estimate.step_seconds
    old = dict(saved.document)
    old["estimate"] = {k: v for k, v in old["estimate"].items() if k != "time_shares"}
    assert estimate_of(old) == replace(found.estimate, buffers=(), time_shares={})


def test_an_axis_length_that_was_not_measured_is_analytic_and_noted():
    table = ProfileTable.load(GPT_TABLE)
    table = replace(table, collectives=tuple(e for e in table.collectives if e.devices == 4))
    mesh = replace(DeviceMesh.create((2, 4), table.hardware), table=table)
    alone = collective("all-reduce", DeviceMesh.create((2, 4), table.hardware), (0,), 2**20)
    assert collective("all-reduce", mesh, (0,), 2**20) == alone
    measured = collective("all-reduce", mesh, (1,), 2**20)
    assert measured.provenance is Provenance.INTERPOLATED and measured.seconds > 0
    assert any("no collectives over 2 devices" in n.text for n in plan_gpt(table).notes)


def test_a_missing_operator_takes_the_roofline_and_says_so(gpt_plan):
    """Without any matmul in the table their time is analytic, never zero."""
    table = ProfileTable.load(GPT_TABLE)
    rest = tuple(e for e in table.operators if e.opcode != "dot_general")
    plan = plan_gpt(replace(table, operators=rest))
    assert plan.time_shares["analytic"] > gpt_plan.time_shares.get("analytic", 0.0) + 0.1
    assert "% analytic" in str(plan)
    assert any("lacks some dot_general" in note.text for note in plan.notes)
    assert not any("lacks some" in note.text for note in gpt_plan.notes)
    matmuls = [
        decision.costs.seconds["compute"]
        for decision in plan.decisions
        if decision.opcode == "dot_general"
    ]
    assert matmuls and min(matmuls) > table.hardware.kernel_launch_seconds


def test_a_catalogue_entry_and_its_table_give_the_same_plan():
    entry = CATALOGUE["h100-sxm"]
    plans = [plan_gpt(p) for p in ("h100-sxm", entry, ProfileTable(entry))]
    assert len({p.estimate.step_seconds for p in plans}) == 1
    assert plans[0].time_shares == {"analytic": 1.0}


def test_profiles_that_are_not_there():
    with pytest.raises(ProfileFileError, match="cannot be read"):
        kiwi.jit(jnp.sin, mesh_shape=(2,), profile="missing.json")
    with pytest.raises(UnknownProfileError):
        kiwi.jit(jnp.sin, mesh_shape=(2,), profile="missing")


def test_gpt_is_planned_for_eight_gpus_without_recording_code(tmp_path):
    """From a table of eight GPUs, in a process that cannot import what records tables."""
    recorded, entry = ProfileTable.load(GPT_TABLE), CATALOGUE["h100-sxm"]
    step, mesh = gpt.make_train_step(GPT), DeviceMesh.create((2, 4), entry)
    units = kiwi.jit(step, mesh_shape=(2, 4)).traced(*GPT_ARGUMENTS).units
    operators = tuple(replace(p.entry, seconds=1e-5) for p in operator_points(units, mesh))
    hardware = replace(entry, analytic=False, target_config="one GPU")
    table = replace(recorded, hardware=hardware, operators=operators)
    table.save(tmp_path / "gpus.json")
    code = (
        "import sys\n"
        "names = 'recording', 'measure', 'operator_points', 'collective_points', 'cluster_probe'\n"
        "for name in names:\n"
        "    sys.modules['kiwi.profiling.' + name] = None\n"
        "import kiwi\n"
        "from examples import gpt\n"
        f"config = gpt.{GPT!r}\n"
        "arguments = gpt.abstract_state(config), gpt.abstract_batch(config)\n"
        "plan = kiwi.plan(gpt.make_train_step(config), *arguments, mesh_shape=(2, 4),\n"
        f"                 verify=None, profile={str(tmp_path / 'gpus.json')!r})\n"
        "print(plan)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "% measured" in done.stdout


# Recording

WEIGHTS = jax.ShapeDtypeStruct((32, 64), "float32")
BATCH = jax.ShapeDtypeStruct((16, 32), "float32")


def layer(w, x):
    return jnp.tanh(x @ w).sum()


def units_of_layer():
    return kiwi.jit(layer, mesh_shape=(2,)).traced(WEIGHTS, BATCH).units


def test_local_shapes_are_those_of_all_strategies_once():
    points = operator_points(units_of_layer(), DeviceMesh.create((2,), "cpu"))
    entries = [p.entry for p in points]
    found = [e for e in entries if e.opcode == "dot_general"]
    # Whole, and cut in half along rows, columns or what is summed over.
    assert sorted(e.shapes for e in found) == [
        ((8, 32), (32, 64)),
        ((16, 16), (16, 64)),
        ((16, 32), (32, 32)),
        ((16, 32), (32, 64)),
    ]
    assert {e.flops for e in found} == {2 * 16 * 32 * 64, 16 * 32 * 64}
    whole = next(e for e in found if e.shapes == ((16, 32), (32, 64)))
    assert whole.bytes == 4 * (16 * 32 + 32 * 64 + 16 * 64)
    sums = sorted(e.shapes for e in entries if e.opcode == "reduce_sum")
    assert sums == [((8, 64),), ((16, 32),), ((16, 64),)]


@pytest.mark.parametrize(
    ("platform", "kind", "name"),
    [
        ("tpu", "TPU v5 lite", "v5e"),
        ("tpu", "TPU v5p", "v5p"),
        ("tpu", "TPU v6 lite", "v6e"),
        ("tpu", "TPU7x", "tpu7x"),
        ("tpu", "TPU v9", "v5e"),
        ("gpu", "NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("gpu", "NVIDIA L4", "a100-sxm"),
        ("cpu", "cpu", "cpu"),
    ],
)
def test_an_attached_device_is_known_by_its_kind(platform, kind, name):
    device = SimpleNamespace(platform=platform, device_kind=kind)
    assert known_hardware(device) is CATALOGUE[name]


def test_functions_are_measured_for_each_dtype():
    found = {(p.entry.opcode, p.entry.dtype) for p in elementwise_points(units_of_layer())}
    assert found == {("mul", "float32"), ("tanh", "float32")}


def test_the_gradients_operands_keep_their_factors():
    units = kiwi.jit(jax.grad(layer), mesh_shape=(2,)).traced(WEIGHTS, BATCH).units
    found = [c for u in units.units for c in library_calls(units, u, CATALOGUE["cpu"])]
    calls = [c for c in found if c is not None and c.is_matmul]
    for call in calls:
        flat = [f for each in call.operands for factors in each.dims for f in factors]
        summed = [f for f in set(flat) if flat.count(f) == 2]
        assert len(calls) == 2 and len(summed) == 1
        shapes = call.local_shapes({summed[0]: 2})
        assert sum(a != b for a, b in zip(shapes, call.local_shapes({}), strict=True)) == 2
        assert call.local_flops({summed[0]: 2}) == call.flops / 2


def test_collectives_run_along_every_set_of_axes():
    mesh = DeviceMesh.create((2, 1, 2), "cpu")
    entries = [p.entry for p in collective_points(mesh, (1024,))]
    assert {(e.devices, e.axes) for e in entries} == {(2, (0,)), (2, (2,)), (4, (0, 2))}
    assert len(entries) == 15
    two = DeviceMesh.create((2,), "cpu")
    assert {p.entry.bytes for p in collective_points(two, (10,))} == {8}


def test_a_layer_is_recorded_saved_and_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr("kiwi.profiling.recording.STREAM_BYTES", (2**14, 2**18))
    path = tmp_path / "table.json"
    steps = []
    table = kiwi.record_profile(
        layer, WEIGHTS, BATCH, mesh_shape=(2,), path=path, repetitions=2, on_progress=steps.append
    )
    assert ProfileTable.load(path) == table
    assert not table.skipped and table.mesh_shape == (2,)
    assert {"dot_general", "reduce_sum", "tanh", "mul", "stream"} == {
        e.opcode for e in table.operators
    }
    assert {e.devices for e in table.collectives} == {2}
    assert len({e.kind for e in table.collectives}) == 5
    assert not table.hardware.analytic and table.environment.jax == jax.__version__
    # Before the entries, the device itself.
    assert len(steps) - 1 == steps[0].total == len(table.operators) + len(table.collectives)
    plan = kiwi.plan(layer, WEIGHTS, BATCH, mesh_shape=(2,), profile=table, verify=None)
    assert plan.time_shares["measured"] > 0


def recorded_layer(monkeypatch, time, **options):
    """Returns the table of `layer` on two devices. `time` replaces the clock."""
    monkeypatch.setattr(Bench, "time", time)
    units, mesh = units_of_layer(), DeviceMesh.create((2,), "cpu")
    points = operator_points(units, mesh)
    return record(points, (2,), repetitions=2, **options)


def test_an_interrupted_recording_is_resumed(tmp_path, monkeypatch):
    path, timed = tmp_path / "table.json", []

    def interrupted(*_):
        if len(timed) == 14:
            raise KeyboardInterrupt
        timed.append(1)
        return Timing(1e-3, 0.1)

    with pytest.raises(KeyboardInterrupt):
        recorded_layer(monkeypatch, interrupted, path=path, collective_bytes=(1024,))
    kept = ProfileTable.load(path).operators
    assert 0 < len(kept) < 15
    later = lambda *_: Timing(2e-3, 0.1)  # noqa: E731
    table = recorded_layer(monkeypatch, later, path=path, collective_bytes=(1024,))
    assert table.operators[: len(kept)] == kept
    assert {e.seconds for e in kept} == {1e-3}
    assert {e.seconds for e in table.operators[len(kept) :]} == {2e-3}
    assert len(table.operators) == 8 + 4 + 3 and len(table.collectives) == 5


@pytest.mark.parametrize("kernel_seconds", [2e-6, 2e-5, 2e-3])
def test_what_it_takes_to_call_is_not_what_a_kernel_takes(kernel_seconds: float, monkeypatch):
    """Calls of 35 us that need not wait, as on an H100."""
    array = jax.ShapeDtypeStruct((8,), jnp.float32)
    lengths = []

    def call(_bench, function: TimedFunction) -> Timing:
        found = str(jax.make_jaxpr(function.body)(*function.operands))
        lengths.append(found.count(" sin "))
        return Timing(max(35e-6, lengths[-1] * kernel_seconds), 0.01)

    monkeypatch.setattr(Bench, "_call", call)
    monkeypatch.setattr(Bench, "_in_turn", False)
    found = Bench(None, 3).time(TimedFunction(jnp.sin, [array]))
    assert found.seconds == pytest.approx(kernel_seconds)
    assert max(lengths) * kernel_seconds > 2 * 35e-6


def test_programs_that_compute_it_often_run_on_each_device(make_mesh, monkeypatch):
    monkeypatch.setattr(Bench, "_in_turn", False)
    square = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    timing = Bench(make_mesh(4), 3).time(TimedFunction(jnp.matmul, [square, square]))
    assert 0 < timing.seconds < 1


def test_operands_differ_so_that_no_core_foresees_comparisons(make_mesh):
    found = Bench(make_mesh(2), 3)._buffer(jax.ShapeDtypeStruct((1000, 300), jnp.bfloat16))
    assert found.shape == (2000, 300) and len(np.unique(np.float32(found))) > 50
    assert float(found.min()) >= 0 and float(found.max()) <= 1


def test_what_does_not_fit_or_run_is_skipped_and_noted(monkeypatch):
    def fails(point, bench):
        if getattr(point.entry, "kind", None) == "all-to-all":
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")
        return Timing(1e-3, 0.1)

    monkeypatch.setattr(Point, "time", fails)
    once = lambda *_: Timing(1e-3, 0.1)  # noqa: E731
    table = recorded_layer(monkeypatch, once, collective_bytes=(1024, 2**50))
    assert (
        "all-to-all of 1024 bytes along mesh axes 0: RESOURCE_EXHAUSTED: out of memory"
        in table.skipped
    )
    assert sum("do not fit" in note for note in table.skipped) == 5
    assert len(table.collectives) == 4


def test_tables_of_other_machines_and_meshes_are_not_continued(tmp_path, monkeypatch):
    path = tmp_path / "table.json"
    once = lambda *_: Timing(1e-3, 0.1)  # noqa: E731
    table = recorded_layer(monkeypatch, once, path=path, collective_bytes=())
    with pytest.raises(ProfileFileError, match=r"mesh of shape \(2,\), not \(1,\)"):
        record([], (1,), path=path)
    replace(table, environment=replace(table.environment, device="another")).save(path)
    with pytest.raises(ProfileFileError, match="recorded elsewhere"):
        record([], (2,), path=path)
    with pytest.raises(NotEnoughDevicesError):
        record([], (1024,))
    with pytest.raises(InvalidArgumentError, match="0 repetitions"):
        record([], (2,), repetitions=0)
    with pytest.raises(ProfileFileError, match="cannot be written"):
        record([], (2,), path=tmp_path / "no folder" / "table.json")


# Saved plans and their tables


def small(x):
    return jnp.tanh(x @ x).sum()


def saved_from(table, folder):
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    path = folder / "plan.json"
    kiwi.plan(small, x, mesh_shape=(2, 4), profile=table, verify=None).save(path)
    return lambda: kiwi.load_plan(path).apply(small).plan(x)


def test_a_loaded_plan_is_explained_with_the_table_where_it_was(tmp_path):
    table = ProfileTable.load(GPT_TABLE)
    table.save(tmp_path / "table.json")
    load = saved_from(tmp_path / "table.json", tmp_path)
    plan = load()
    assert plan.origin is not None
    assert plan.origin.planning.mesh.table == table
    assert plan.explain("dot_general", forced=1).forced
    # Another table in its place is not what the plan was priced from.
    replace(table, skipped=("changed",)).save(tmp_path / "table.json")
    assert load().origin is None
    with pytest.raises(InvalidArgumentError, match="cannot be formulated"):
        load().what_if("dot_general", residency="keep")
    (tmp_path / "table.json").unlink()
    assert load().origin is None


def test_a_table_without_a_file_is_not_found_again(tmp_path):
    table = replace(ProfileTable.load(GPT_TABLE), loaded_from=None)
    assert saved_from(table, tmp_path)().origin is None
