"""Groups of layers are balanced if equal layers leave a channel idle."""

import numpy as np
import pytest

from kiwi.campaign.equal_layers import best_mixture
from kiwi.solver import Edge, Node, Problem, evaluate, solve
from kiwi.solver.problem import Load
from kiwi.solver.tied import EqualNodes, tied

LAYERS, SWITCH = 8, 0.25


def layers() -> Problem:
    """Each layer computes for 4 and sends for 1, or computes for 1 and sends for 4. A change from
    one to the other costs a quarter."""
    computes, sends = np.array([4.0, 1.0]), np.array([1.0, 4.0])
    loads = Load(0, 0, computes), Load(0, 1, sends)
    nodes = [Node(f"n{k}", computes + sends, ((), ()), loads=loads) for k in range(LAYERS)]
    edges = [Edge(k, k + 1, SWITCH * (1 - np.eye(2))) for k in range(LAYERS - 1)]
    return Problem(tuple(nodes), tuple(edges), None, horizon=1)


def test_half_of_the_layers_each_way_is_the_cheapest_mixture() -> None:
    """All alike: 8 x 4 = 32. Four each way: 4 x 4 + 4 x 1 = 20 of either channel."""
    problem = layers()
    equal = EqualNodes(tuple(range(LAYERS)), np.array([[0, 1]] * LAYERS))
    small = tied(problem, [equal])
    found = solve(small.problem, gap=0.0)
    assert found.objective == 32.0 and found.others
    mixture = best_mixture(small.problem, found, LAYERS)
    assert mixture is not None
    assert (mixture.cost, mixture.layer) == (pytest.approx(20.0), 4)
    groups = tied(problem, mixture.groups([equal]))
    assert sorted(len(each.members) for each in groups.classes) == [1, 1, 3, 3]
    rest = mixture.between(groups, small, [equal])
    assert [len(own) for own in rest.kept] == [1, 2, 2, 1]
    best = solve(rest.problem, gap=0.0)
    assert best.solution is not None
    whole = groups.expanded(rest.whole(best.solution))
    assert evaluate(problem, whole).cost == pytest.approx(20.0 + SWITCH)


def test_one_solution_has_no_mixture() -> None:
    problem = layers()
    small = tied(problem, [EqualNodes(tuple(range(LAYERS)), np.array([[0, 1]] * LAYERS))])
    alone = solve(small.problem, solver="brute-force")
    assert best_mixture(small.problem, alone, LAYERS) is None


def test_members_are_split_at_a_layer() -> None:
    equal = EqualNodes((5, 7, 9), np.array([[0, 1], [1, 0], [0, 1]]), first_layer=1)
    before, behind = equal.split(2)
    assert (before.members, before.first_layer) == ((5,), 1)
    assert (behind.members, behind.first_layer, behind.end_layer) == ((7, 9), 2, 4)
    assert [each.members for each in equal.split(1)] == [equal.members]
