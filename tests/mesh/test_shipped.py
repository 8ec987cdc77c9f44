"""Tables that are shipped with Kiwi, and several recordings merged into one."""

from dataclasses import replace

import jax
import pytest

import kiwi
from benchmarks.replay.merging import median_table
from kiwi.errors import InvalidArgumentError, UnknownProfileError
from kiwi.mesh import CATALOGUE, CollectiveEntry, Environment, OperatorEntry, ProfileTable
from kiwi.mesh.shipped import find_table, shipped_names, table_named, write_analytic

GPUS = [name for name, entry in CATALOGUE.items() if entry.backend == "gpu"]


@pytest.mark.parametrize("name", GPUS)
def test_analytic_tables_are_those_of_the_catalogue(name):
    assert table_named(name) == ProfileTable(CATALOGUE[name])
    assert table_named(name).hardware.analytic


def test_the_command_writes_what_is_there(tmp_path):
    write_analytic(tmp_path)
    assert sorted(f.stem for f in tmp_path.iterdir()) == sorted(GPUS)
    for name in GPUS:
        assert ProfileTable.load(tmp_path / f"{name}.json").digest == table_named(name).digest


def test_every_table_loads_and_says_where_it_is_from():
    assert {"v100-sxm2", "a100-sxm", "h100-sxm", "h200-sxm"} < set(shipped_names())
    for name in shipped_names():
        table = find_table(name)
        assert table.loaded_from == name
        assert table.hardware.analytic == (table.environment is None)


def test_a_measured_table_plans_by_its_name():
    (name,) = [n for n in shipped_names() if not table_named(n).hardware.analytic]
    x = jax.ShapeDtypeStruct((256, 256), "float32")
    plan = kiwi.plan(lambda x: (x @ x).sum(), x, mesh_shape=(2, 4), profile=name, verify=None)
    assert plan.time_shares.get("analytic", 0.0) < 1
    with pytest.raises(UnknownProfileError, match=name):
        kiwi.jit(lambda x: x, mesh_shape=(2,), profile=name[:-1])


def recording(seconds, **changes):
    where = Environment("a processor", "0.10.2", "none", "2026-11-21")
    hardware = replace(CATALOGUE["cpu"], analytic=False, kernel_launch_seconds=seconds)
    return ProfileTable(
        hardware,
        (OperatorEntry("dot", "", "float32", ((8, 8), (8, 8)), 1024.0, 768, seconds, 0.1),),
        (CollectiveEntry("all-gather", 2, "float32", 1024, seconds, 0.1, (0,)),),
        where,
        (),
        (2,),
        **changes,
    )


def test_merged_recordings_have_median_times():
    found = median_table([recording(s) for s in (1.0, 5.0, 2.0)])
    assert found == recording(2.0)


def test_only_what_all_recordings_have_is_merged():
    less = replace(recording(1.0), operators=())
    assert median_table([recording(1.0), less]).operators == ()


def test_recordings_of_different_machines_are_not_merged():
    other = replace(recording(1.0), mesh_shape=(4,))
    with pytest.raises(InvalidArgumentError, match="do not belong together"):
        median_table([recording(1.0), other])
    with pytest.raises(InvalidArgumentError, match="no tables"):
        median_table([])
