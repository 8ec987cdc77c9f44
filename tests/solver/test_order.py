"""The order in which nodes are visited, and the warm-up of the inner loops."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

from kiwi.solver import Edge, Interval, Node, Problem, evaluate, warm_up
from kiwi.solver import compiled as ahead
from kiwi.solver.network import build_network
from kiwi.solver.order import flat_uses, time_order
from kiwi.solver.presolve.reduction import Reduction
from kiwi.solver.relaxed import cost_of, usage_of
from tests.solver.random_problems import random_problem

# `kiwi.solver.warm_up` is the function.
warming = importlib.import_module("kiwi.solver.warm_up")


def _node(name: str, *intervals: Interval) -> Node:
    return Node(name, np.zeros(1), (intervals,))


def test_nodes_stand_in_order_of_time_and_arguments_before_their_readers() -> None:
    nodes = (
        _node("argument", Interval(0, 9, 4)),
        _node("last", Interval(8, 9, 1)),
        _node("first", Interval(2, 9, 1)),
        _node("middle", Interval(5, 9, 1)),
        _node("nothing"),
    )
    zero = np.zeros((1, 1))
    edges = (Edge(0, 1, zero), Edge(2, 3, zero), Edge(3, 4, zero), Edge(4, 1, zero))
    order = time_order(Problem(nodes, edges, 10, 9)).tolist()
    names = [nodes[i].name for i in order]
    assert names == ["first", "middle", "argument", "nothing", "last"]


def test_a_renumbered_network_costs_and_holds_the_same() -> None:
    for seed in range(200):
        problem = random_problem(seed)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(problem.nodes))
        net = build_network(problem, order)
        reduction = Reduction.renumbered(net, order)
        choice = np.array([rng.integers(node.costs.size) for node in problem.nodes])
        small = reduction.lower(choice)
        assert small is not None
        assert np.array_equal(reduction.lift(small), choice)
        priced = evaluate(problem, choice.tolist())
        assert np.isclose(cost_of(net, net.cost, small), priced.cost)
        held = usage_of(net, small)
        assert np.array_equal(held, priced.usage_bytes[net.times])


def test_shared_lists_of_intervals_are_read_once_for_each_option() -> None:
    shared = (Interval(0, 2, 3), Interval(4, 5, 1), Interval(3, 3, 7))
    node = Node("n", np.zeros(3), (shared, (), shared))
    uses, owner = flat_uses(Problem((node, node), (), None, 5), np.array([1, 0]))
    assert owner.tolist() == [0, 0, 2, 2, 3, 3, 5, 5]
    assert uses.tolist() == [[0, 2, 3], [4, 5, 1]] * 4


def test_warming_up_changes_nothing_and_may_be_repeated() -> None:
    warm_up()
    warm_up()
    assert warm_up.cache_info().currsize == 1


_COMPILES_NOTHING = """
import sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from kiwi.solver import solve, warm_up
from tests.solver.random_problems import random_problem

def compiled():
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("kiwi.solver")]
    found = [d for m in modules for d in vars(m).values() if isinstance(d, Dispatcher)]
    return {(d.py_func.__module__, d.py_func.__name__, str(s)) for d in found for s in d.signatures}

warm_up()
before = compiled()
for seed in range(60):
    solve(random_problem(seed, integral=False), solver="lagrangian", gap=0.0, round_limit=20)
late = sorted({(module, name) for module, name, _ in compiled() - before})
sys.exit(f"compiled during a search: {late}" if late else 0)
"""


def test_a_search_after_the_warm_up_compiles_nothing() -> None:
    subprocess.run([sys.executable, "-c", _COMPILES_NOTHING], check=True, timeout=300)


def test_processes_end_with_an_interrupted_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "_is_kept", lambda: False)
    monkeypatch.setattr(ahead, "_started", [])
    monkeypatch.setattr(ahead, "_CALL", "import time; time.sleep(600)")
    warming.compile_loops()
    started = list(ahead._started)
    warming.compile_loops()
    assert ahead._started == started and len(started) == 2

    def interrupted(compiling: ahead.Compiling, function: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ahead.Compiling, "wait", interrupted)
        warm_up.__wrapped__()
    assert all(each.process.returncode for each in started)
