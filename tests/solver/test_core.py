"""What a core keeps, and what probes find around a solution."""

import math

import numpy as np

from kiwi.solver import Edge, Node, Problem
from kiwi.solver.core import core
from kiwi.solver.dual import Dual
from kiwi.solver.engine import Engine
from kiwi.solver.network import build_network
from kiwi.solver.prices import cost_of, usage_of
from kiwi.solver.relaxed import Relaxed
from tests.solver.test_limits import knotted_problem

RING, MODES = 1000, 3
"""Many more nodes than forced moves turn over at once."""


def test_a_core_has_the_choice_and_fits() -> None:
    net = build_network(knotted_problem(12))
    reduced = Dual(Relaxed(net)).reduced_costs()[1]
    choice = np.full(net.node_count, 5)
    all_cells = net.option_count + net.cell_count
    sizes = []
    for most_cells in (200, all_cells // 4, all_cells):
        part = core(net, reduced, choice, most_cells)
        assert part is not None
        sizes.append(part.net.option_count + part.net.cell_count)
        assert sizes[-1] <= most_cells
        lifted = part.lift(np.zeros(part.net.node_count, dtype=np.int64))
        assert math.isfinite(cost_of(net, net.cost, lifted))
        lowered = part.lower(choice)
        if lowered is not None:  # not where another option of the core is no worse
            assert (usage_of(net, part.lift(lowered)) == usage_of(net, choice)).all()
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_no_core_is_small_enough() -> None:
    net = build_network(knotted_problem(12))
    reduced = Dual(Relaxed(net)).reduced_costs()[1]
    everything = np.zeros_like(reduced)
    assert core(net, everything, None, 0) is None or core(net, reduced, None, 0) is None


def modes_problem() -> Problem:
    """A ring in which neighbours agree, at almost any price, on one of three modes."""
    nodes = tuple(Node(f"n{i}", np.array([3.0, 2.0, 1.0]), ((),) * MODES) for i in range(RING))
    disagree = 1000.0 * (1.0 - np.eye(MODES))
    edges = tuple(Edge(i, (i + 1) % RING, disagree) for i in range(RING))
    return Problem(nodes, edges, None, 1)


def test_probes_leave_a_mode_that_no_neighbourhood_leaves() -> None:
    net = build_network(modes_problem())
    engine = Engine(net, 0, 0.0, math.inf)
    engine.primal.offer(np.zeros(RING, dtype=np.int64))
    engine.primal.force(np.zeros(0), 10)
    assert engine.incumbent is not None and engine.incumbent.cost == 3 * RING
    engine.probe()
    assert engine.incumbent.cost == RING and engine.rounds == 1
