"""`kiwi.search` on a small step: the best configuration, its plan, resumed searches, errors."""

import functools
import json

import pytest

import kiwi
from kiwi import errors
from kiwi.cli.main import main
from kiwi.configurations.configuration import State
from tests.configurations.steps import make_step
from tests.helpers.on_cpu import ON_CPU

SMALL = functools.partial(
    kiwi.search, make_step, devices=(2, 4), batch_sizes=(2**14, 2**17), microbatches=(1, 2, 3)
)


@pytest.fixture(scope="module")
def found():
    return SMALL(verify=None)


def figures(result):
    """Returns the result without wall times."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in result.json()["rows"]]


def test_every_configuration_has_a_row_that_says_what_became_of_it(found):
    assert len(found.rows) == 3 * 2 * 3  # meshes (2,), (4,), (2, 2); batches; microbatches
    for row in found.rows:
        if row.configuration.microbatches == 3:
            assert row.state is State.REFUSED and "3 equal parts" in row.why
        elif row.state is State.LEFT_OUT:
            assert row.step_seconds is None and "No plan of it is expected below" in row.why
        else:
            assert row.bound_seconds <= row.step_seconds * (1 + 1e-3)
    best = [row.configuration.device_count for row in found.rows if row.state is State.BEST]
    assert best == [2, 4]
    assert any(row.state is State.LEFT_OUT for row in found.rows)


def test_the_best_is_the_best_of_all_planned_in_full(found):
    everything = SMALL(verify=None, plans_all=True)
    planned = [row for row in everything.rows if row.state is not State.REFUSED]
    assert all(row.step_seconds is not None for row in planned)
    fastest = min(row.step_seconds / row.configuration.samples for row in planned)
    assert found.best_row.score == pytest.approx(fastest, rel=1e-3)
    assert everything.choice == found.choice


def test_the_best_is_an_ordinary_plan(found):
    plan, row = found.best, found.best_row
    assert isinstance(plan, kiwi.Plan)
    assert plan.estimate.step_seconds == row.step_seconds
    assert plan.mesh.shape == found.choice["mesh_shape"] == row.configuration.mesh_shape
    assert found.choice["batch_size"] == 2**17


def test_the_frontier_has_what_nothing_beats(found):
    front = found.frontier
    assert found.best_row in front
    assert {row.configuration.device_count for row in front} == {2, 4}
    assert sum(row["frontier"] for row in found.json()["rows"]) == len(front)


def test_an_interrupted_search_goes_on_where_it_was(found, tmp_path):
    before = []

    def interrupt(*each):
        before.append(each)
        if len(before) == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SMALL(verify=None, resume=tmp_path, on_found=interrupt)
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write('{"configuration": {"profile"')  # killed while it wrote
    after = []
    resumed = SMALL(verify=None, resume=tmp_path, on_found=lambda *each: after.append(each))
    assert after and not {(c, o.stage) for c, o in after} & {(c, o.stage) for c, o in before}
    assert [{**row, "plan_file": None} for row in figures(resumed)] == figures(found)
    again = SMALL(verify=None, resume=tmp_path, on_found=lambda *_: pytest.fail("searched again"))
    assert figures(again) == figures(resumed)
    saved = kiwi.load_plan(tmp_path / resumed.best_row.plan_file)
    assert saved.estimate.step_seconds == resumed.best_row.step_seconds
    with pytest.raises(errors.InvalidArgumentError, match="another search"):
        SMALL(verify=None, gap=0.5, resume=tmp_path)


def test_the_best_plan_is_compiled():
    found = kiwi.search(make_step, devices=2, batch_sizes=[64], profiles=[ON_CPU], verify="cpu")
    assert found.best_row.compiled_peak_bytes == found.best.compiled.peak_bytes
    assert found.best.fits


def test_the_cheapest_devices_are_not_the_fastest():
    prices = {"h100-sxm": 100.0, "v100-sxm2": 1.0}
    step = functools.partial(make_step, microbatches=1)
    options = {"profiles": list(prices), "devices": 2, "batch_sizes": [4096], "verify": None}
    fast = kiwi.search(step, **options)
    cheap = kiwi.search(step, **options, objective="cost", prices=prices)
    assert fast.choice["profile"] == "h100-sxm" and cheap.choice["profile"] == "v100-sxm2"
    seconds = cheap.best_row.step_seconds
    assert cheap.best_row.score == pytest.approx(seconds / 3600 * 2 * 1.0 / 4096)


def test_where_nothing_fits_the_rows_say_why():
    found = kiwi.search(make_step, devices=2, batch_sizes=[64], memory_budget=64, verify=None)
    assert [row.state for row in found.rows] == [State.REFUSED]
    assert "64 B" in found.rows[0].why
    with pytest.raises(errors.InfeasibleError, match="None of 1 configurations"):
        _ = found.best


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "no devices"),
        ({"devices": 2}, "make_step needs batch_size"),
        ({"devices": 2, "batch_sizes": [8], "stages": [2]}, "no parameter stages"),
        ({"devices": 2, "batch_sizes": [0]}, "not positive numbers"),
        ({"devices": 2, "batch_sizes": [8], "objective": "speed"}, "no objective 'speed'"),
        ({"devices": 2, "batch_sizes": [8], "objective": "cost"}, "no price of h100-sxm"),
        ({"devices": 2, "batch_sizes": [8], "jobs": 0}, "jobs=0"),
        ({"devices": 2, "batch_sizes": [8], "most_axes": 4}, "most_axes=4"),
    ],
)
def test_what_cannot_be_searched_is_refused(options, message):
    with pytest.raises(errors.InvalidArgumentError, match=message):
        kiwi.search(make_step, **options)


def test_a_step_that_other_processes_cannot_load_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="cannot be sent"):
        kiwi.search(lambda batch_size: make_step(batch_size), devices=2, batch_sizes=[8], jobs=2)


@pytest.mark.slow
def test_other_processes_find_the_same(found):
    assert figures(SMALL(verify=None, jobs=2)) == figures(found)


@pytest.mark.slow
def test_a_cluster_of_two_workers_finds_the_same(found):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        elsewhere = SMALL(verify=None, executor=client.get_executor(), jobs=2)
    assert figures(elsewhere) == figures(found)


def test_the_command_prints_saves_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spec = f"{make_step.__code__.co_filename}:make_step"
    files = ("--out", "plan.json", "--report", "search.html", "--table", "search.json")
    options = ("--devices", "2", "--batch", "64,128", "--verify", "none", "--jobs", "1")
    assert main(["search", spec, *options, *files]) == 0
    captured = capsys.readouterr()
    assert "h100-sxm 2, batch 128" in captured.out and "Best:" in captured.err
    assert kiwi.load_plan("plan.json").mesh.size == 2
    rows = json.loads((tmp_path / "search.json").read_text())["rows"]
    assert [row["state"] for row in rows] == ["left out", "best"]
    assert '"samples_per_second"' in (tmp_path / "search.html").read_text()
