"""Host memory as a second limit: the referee by hand, and searches against brute force."""

from dataclasses import replace

import numpy as np
import pytest

from kiwi.errors import InvalidProblemError
from kiwi.solver import Interval, Node, Problem, evaluate, solve
from kiwi.solver.problem import Load
from kiwi.solver.settle import settled
from kiwi.solver.tied import EqualNodes, tied
from tests.solver.random_problems import random_problem

UNIT = 10**6


def offloading(seed: int) -> Problem:
    """Returns a random problem in which every other node holds host memory, under a tight limit of
    it. Sizes are multiples of `UNIT` and no sum equals a limit, because the search counts host
    memory in whole bytes of both."""
    problem, rng = random_problem(seed), np.random.default_rng(seed)

    def with_host(node: Node) -> Node:
        usage, host_usage = (
            tuple(
                tuple(Interval(u.start, u.end, UNIT * size(u)) for u in intervals)
                for intervals in node.usage
            )
            for size in (lambda u: u.bytes, lambda u: int(rng.integers(0, 40)))
        )
        has_host = rng.random() < 0.5
        return replace(node, usage=usage, host_usage=host_usage if has_host else ())

    nodes = tuple(with_host(node) for node in problem.nodes)
    limits = problem.limit_bytes or 0, int(rng.integers(0, 60))
    device, host = (UNIT * limit + UNIT // 2 for limit in limits)
    return Problem(nodes, problem.edges, device, problem.horizon, host)


def choice(name: str, host_bytes: int) -> Node:
    """Returns a node that keeps 10 bytes or, at a cost of 1, puts bytes into host memory."""
    usage = (Interval(0, 2, 10),), ()
    host_usage = (), (Interval(0, 2, host_bytes),)
    return Node(name, np.array([0.0, 1.0]), usage, host_usage=host_usage)


def test_both_memories_have_their_limits():
    """Of three choices two may be kept; the host has room for one."""
    nodes = tuple(choice(name, 8) for name in "abc")
    problem = Problem(nodes, (), 20, 3, host_limit_bytes=15)
    found = evaluate(problem, [1, 0, 0])
    assert (found.cost, found.peak_bytes, found.host_peak_bytes) == (1.0, 20, 8)
    assert found.feasible
    broken = evaluate(problem, [1, 1, 0])
    assert broken.host_peak_bytes == 16
    assert broken.violations == ("16 bytes of the host's memory, of which the limit is 15.",)
    assert solve(problem).objective == 1.0
    assert solve(replace(problem, limit_bytes=10)).solution is None
    assert solve(replace(problem, limit_bytes=10, host_limit_bytes=16)).objective == 2.0


def test_both_limits_hold_in_every_answer():
    for seed in range(60):
        problem = offloading(seed)
        best, found = solve(problem, solver="brute-force"), solve(problem, seed=seed, gap=0.0)
        assert (found.solution is None) == (best.solution is None), seed
        if found.solution is not None and best.objective is not None:
            assert evaluate(problem, found.solution).feasible
            assert found.bound <= best.objective + 1e-9
            assert found.objective == pytest.approx(best.objective)


def test_tied_nodes_hold_what_all_of_them_hold():
    problem = Problem((choice("a", 8), choice("b", 5)), (), 10, 2, host_limit_bytes=16)
    one = tied(problem, [EqualNodes((0, 1), np.array([[0, 1], [0, 1]]))]).problem
    assert evaluate(one, [1]).host_peak_bytes == 13
    assert solve(one).objective == 2.0


def test_equal_options_are_not_exchanged_for_more_host_memory():
    node = replace(choice("a", 8), costs=np.zeros(2))
    problem = Problem((node,), (), 10, 2, host_limit_bytes=4)
    assert settled(problem, [0]) == (0,)


def test_options_of_other_loads_are_not_exchanged_by_their_own_costs():
    """A copy of 3 hides behind computing; doing something again in 2 does not."""
    work = Node("work", np.array([4.0]), ((),), loads=(Load(0, 0, np.array([4.0])),))
    loads = Load(0, 0, np.array([0.0, 2.0])), Load(0, 2, np.array([3.0, 0.0]))
    usage = (Interval(0, 2, 10),), (Interval(0, 1, 10),)
    again = Node("copy or compute again", np.array([3.0, 2.0]), usage, loads=loads)
    problem = Problem((work, again), (), 10, 2)
    assert settled(problem, [0, 0]) == (0, 0)
    assert evaluate(problem, [0, 0]).cost == 4.0 < evaluate(problem, [0, 1]).cost


def test_a_limit_is_not_negative():
    with pytest.raises(InvalidProblemError, match="-1 bytes"):
        Problem((), (), 10, 1, host_limit_bytes=-1)
