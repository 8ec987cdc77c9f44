"""The table of planners: complete, checked, and consistent with documents and errors."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kiwi.cli.main import main
from kiwi.errors import InvalidArgumentError, InvalidMeshError, UnknownPlannerError
from kiwi.literature import remat
from kiwi.literature.formulations import FORMULATIONS
from kiwi.literature.planners import Rotor
from kiwi.literature.planners.one_device import OneDevicePlanner
from kiwi.literature.planners.paper_models import PaperModel
from kiwi.literature.remat.offload import OFFLOAD_PLANNERS
from kiwi.mesh import DeviceMesh
from kiwi.planners.registry import described, planner_named, planners, register, unregister

DOCUMENTS = ("docs/reference/planners.md",)


def test_every_planner_of_one_device_and_every_model_is_in_the_table():
    schedules = {n for n, p in planners().items() if isinstance(p, OneDevicePlanner)}
    assert schedules == {*remat.PLANNERS, *OFFLOAD_PLANNERS}
    assert {p.model for p in planners().values() if isinstance(p, PaperModel)} < set(FORMULATIONS)


@pytest.mark.parametrize("name", planners())
def test_documents_name_it(name):
    root = Path(__file__).parents[2]
    assert any(f"`{name}`" in (root / document).read_text() for document in DOCUMENTS)


def test_an_unknown_name_lists_all():
    with pytest.raises(UnknownPlannerError) as caught:
        planner_named("jiont")
    assert all(repr(name) in str(caught.value) for name in planners())


def test_an_object_is_a_planner_and_nothing_else_is():
    assert planner_named(Rotor(slots=7)) == Rotor(slots=7)
    with pytest.raises(InvalidArgumentError, match="neither a name nor a planner"):
        planner_named(Rotor)


def test_a_name_is_registered_once():
    mine = replace(planner_named("rotor"), name="mine")
    register(mine)
    try:
        assert planner_named("mine") is mine and "mine" in planners()
        with pytest.raises(InvalidArgumentError, match="'mine' already"):
            register(mine)
    finally:
        unregister("mine")
    with pytest.raises(UnknownPlannerError):
        unregister("mine")


WITHOUT_LITERATURE = """
import sys
sys.modules["kiwi.literature"] = None
import jax, jax.numpy as jnp, kiwi
from kiwi.planners.registry import planners

def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x ** 2)

array = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
arguments = [array(128, 128)] * 4, array(2048, 128)
options = dict(mesh_shape=(1,), profile="v5e", verify=None, effort="quick", plan_cache=False)
free = kiwi.plan(jax.grad(loss), *arguments, **options)
budget = int(0.8 * free.peak_bytes)
plan = kiwi.plan(jax.grad(loss), *arguments, memory_budget=budget, **options)
assert plan.fits and plan.execution.recomputed, plan
assert list(planners()) == ["joint", "alpa", "xla", "alpa+dots", "alpa+megatron"]
try:
    kiwi.plan(jax.grad(loss), *arguments, planner="rotor", **options)
except kiwi.errors.UnknownPlannerError as error:
    assert "'joint'" in str(error) and "'two-stage'" not in str(error), error
else:
    raise AssertionError("a planner of the literature without the literature")
"""


def test_the_product_plans_without_the_literature():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WITHOUT_LITERATURE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("planner", planners().values(), ids=planners())
def test_meshes_are_refused_by_schedules_alone(planner):
    planner.check(DeviceMesh.create((1,), "cpu"))
    if not planner.is_sharding:
        with pytest.raises(InvalidMeshError, match="plans for one device, the mesh has 2"):
            planner.check(DeviceMesh.create((2,), "cpu"))
    else:
        planner.check(DeviceMesh.create((2,), "cpu"))


def test_the_command_line_describes_them(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for part in described().split("; "):
        # Argument parsers break words at hyphens.
        assert part.replace(" ", "").replace("-", "") in shown.replace(" ", "").replace("-", "")
