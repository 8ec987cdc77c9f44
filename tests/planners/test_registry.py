"""The table of planners: complete, checked, and what documents and errors say."""

from pathlib import Path

import pytest

from kiwi.cli.main import main
from kiwi.errors import InvalidMeshError, UnknownPlannerError
from kiwi.literature import remat
from kiwi.literature.formulations import FORMULATIONS
from kiwi.literature.planners.one_device import OneDevicePlanner
from kiwi.literature.planners.paper_models import PaperModel
from kiwi.mesh import DeviceMesh
from kiwi.planners.registry import described, planner_named, planners

DOCUMENTS = ("docs/interface.md", "docs/rematerialisation.md")


def test_every_planner_of_one_device_and_every_model_is_in_the_table():
    schedules = {n for n, p in planners().items() if isinstance(p, OneDevicePlanner)}
    assert schedules == set(remat.PLANNERS)
    assert {p.model for p in planners().values() if isinstance(p, PaperModel)} < set(FORMULATIONS)


@pytest.mark.parametrize("name", planners())
def test_documents_name_it(name):
    root = Path(__file__).parents[2]
    assert any(f"`{name}`" in (root / document).read_text() for document in DOCUMENTS)


def test_an_unknown_name_lists_all():
    with pytest.raises(UnknownPlannerError) as caught:
        planner_named("jiont")
    assert all(repr(name) in str(caught.value) for name in planners())


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
