"""The choices that several solutions leave open, against brute force, and restarts that leave a
local optimum."""

import itertools
import math

import numpy as np
import pytest

from kiwi.solver import Edge, Node, Problem
from kiwi.solver.engine import Engine
from kiwi.solver.lagrangian import Search
from kiwi.solver.network import build_network
from kiwi.solver.relaxed import cost_of, usage_of
from kiwi.solver.request import Request
from kiwi.solver.restarts import disagreement, mixtures, search_again
from tests.solver.random_problems import random_problem

RING, MODES = 1000, 3
"""The ring has many more nodes than forced moves change at once."""


def modes_problem() -> Problem:
    """Returns a ring whose neighbours agree, at almost any price, on one of three modes."""
    nodes = tuple(Node(f"n{i}", np.array([3.0, 2.0, 1.0]), ((),) * MODES) for i in range(RING))
    disagree = 1000.0 * (1.0 - np.eye(MODES))
    edges = tuple(Edge(i, (i + 1) % RING, disagree) for i in range(RING))
    return Problem(nodes, edges, None, 1)


def _cost(net, choice) -> float:
    """Returns the cost of a choice; infinite above the limit."""
    fits = usage_of(net, choice).max(initial=0) <= net.limit_bytes
    return float(cost_of(net, net.cost, choice)) if fits else math.inf


def _best(net, options) -> float:
    """Returns the least cost if every node has some of its options, by brute force."""
    return min(_cost(net, np.array(choice)) for choice in itertools.product(*options))


@pytest.mark.parametrize("with_others", [False, True])
def test_parts_have_the_best_of_what_they_leave_open(with_others: bool) -> None:
    compared = 0
    for seed in range(150):
        net = build_network(random_problem(seed))
        sizes = np.diff(net.option_start).tolist()
        choices = [np.array(c) for c in itertools.product(*map(range, sizes))]
        fitting = [choice for choice in choices if math.isfinite(_cost(net, choice))]
        if len(fitting) < 2 or len(choices) > 2000:
            continue
        rng = np.random.default_rng(seed)
        some = [fitting[i] for i in rng.choice(len(fitting), 2, replace=False)]
        part = (disagreement if with_others else mixtures)(net, some)
        options = [sorted({int(choice[i]) for choice in some}) for i in range(net.node_count)]
        if with_others:
            options = [o if len(o) == 1 else range(n) for o, n in zip(options, sizes, strict=True)]
        expected = _best(net, options)
        found = _best(part.net, map(range, np.diff(part.net.option_start)))
        np.testing.assert_allclose(found, expected)
        compared += expected < min(_cost(net, choice) for choice in some)
    assert compared > 10, "no two solutions were worth mixing"


def test_probes_leave_a_mode_that_no_neighbourhood_leaves() -> None:
    engine = Engine(build_network(modes_problem()), 0, 0.0, math.inf)
    engine.primal.offer(np.zeros(RING, dtype=np.int64))
    engine.primal.force(np.zeros(0), 10)
    assert engine.incumbent is not None and engine.incumbent.cost == 3 * RING
    engine.probe()
    assert engine.incumbent.cost == RING and engine.rounds == 1


def _searched_again(**options) -> Search:
    """Returns a search that restarts from the worst mode, with no other known solution."""
    request = Request(modes_problem(), warm_start=(0,) * RING, time_limit_seconds=1e6, **options)
    search = Search(request, "lagrangian")
    search.work = 10**8  # what a search before took
    search_again(search)
    return search


def test_restarts_leave_it_too_and_the_same_ones_again() -> None:
    first, again = _searched_again(), _searched_again()
    assert first.objective == RING and first.solution == (2,) * RING
    assert (first.work, first.rounds) == (again.work, again.rounds)


def test_restarts_keep_to_the_work_that_is_left() -> None:
    assert _searched_again(work_limit=10**8).objective == 3 * RING
    little, more = (_searched_again(work_limit=limit) for limit in (101 * 10**6, 10**9))
    assert 10**8 < little.work < more.work <= 6 * 10**8 + 10**7
