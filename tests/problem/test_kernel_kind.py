"""Equal kernels have one kind, and kernels of one kind have the same strategies and memory."""

from dataclasses import replace

import pytest

from examples import gpt
from kiwi.hlo.grouping import build_units
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import DeviceMesh
from kiwi.problem.kernel_kind import KernelKinds, kernel_kinds
from kiwi.problem.strategy_table import StrategyTable
from kiwi.problem.unit_memory import unit_memory
from kiwi.targets.registry import target_of
from tests.helpers.planning import step_graph

CONFIG = gpt.GptConfig(layers=2, width=64, heads=4, batch=8, sequence=32, vocabulary=128)


def kernels_with(layers: int, mesh: DeviceMesh) -> KernelGraph:
    config = replace(CONFIG, layers=layers)
    units = build_units(step_graph(gpt, config))
    return target_of(mesh.hardware).kernels(units, mesh.hardware)


def kinds_in(kernels: KernelGraph, mesh: DeviceMesh) -> set[int]:
    kinds = kernel_kinds(kernels, mesh)
    return {id(kinds.of(unit)) for unit in kernels.units.units}


@pytest.mark.parametrize("profile", ["h100-sxm", "v5e"])
def test_further_layers_have_no_further_kinds(profile: str):
    mesh = DeviceMesh.create((2, 4), profile)
    three, five = (kernels_with(layers, mesh) for layers in (3, 5))
    assert len(five.units.units) > len(three.units.units)
    assert len(kinds_in(five, mesh)) == len(kinds_in(three, mesh))


def test_kernels_of_one_kind_have_the_same_strategies_and_memory():
    mesh = DeviceMesh.create((2, 4), "h100-sxm")
    kernels = kernels_with(3, mesh)
    kinds, table = KernelKinds(kernels, mesh), StrategyTable(kernels, mesh)
    members: dict[int, list] = {}
    for unit in kernels.units.units:
        members.setdefault(id(kinds.of(unit)), []).append(unit)
    shared = [units for units in members.values() if len(units) > 2]
    assert shared
    for first, *others in shared:
        (strategy, *_) = table.of(first)
        held = replace(unit_memory(kernels, first, strategy), held_until=None)
        for unit in others:
            assert table.of(unit) is table.of(first)
            assert replace(unit_memory(kernels, unit, strategy), held_until=None) == held


def test_a_fact_that_a_rule_states_makes_another_kind():
    mesh = DeviceMesh.create((2, 4), "h100-sxm")
    kernels = kernels_with(2, mesh)
    kinds = KernelKinds(kernels, mesh)
    first = next(unit for unit in kernels.units.units if len(kinds.of(unit).read_dims) == 2)
    stated = kernels.stating("maps_apart", {first.index: True})
    assert KernelKinds(stated, mesh).of(first) != kinds.of(first)
