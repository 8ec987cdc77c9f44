import numpy as np
import pytest

from kiwi.literature.remat.annealing.memory import (
    add_on_range,
    make_memory,
    peak_bytes,
    propagate,
)
from kiwi.literature.remat.annealing.moves import MOVE_KINDS, propose, random_below, random_unit
from kiwi.literature.remat.annealing.sequence import (
    load,
    make_state,
    roll_back,
    roll_forward,
    steps_of,
)
from kiwi.literature.remat.annealing.tables import make_tables
from kiwi.literature.remat.simulate import simulate
from kiwi.solver.schedule import Schedule

from .graphs import random_general_graph, random_graph


def _state(graph, seed=0):
    tables = make_tables(graph, Schedule(graph.order))
    state = make_state(tables, 64, seed)
    load(tables, state, np.array(graph.order, np.int32))
    return tables, state


def _snapshot(state):
    parts = (state.operator_at, state.event_count, state.memory.highest, state.memory.total)
    return [*(part.copy() for part in parts), state.seconds[0]]


@pytest.mark.parametrize("make", [random_graph, random_general_graph])
@pytest.mark.parametrize("seed", range(10))
def test_state_agrees_with_the_simulator_after_every_move(make, seed):
    graph = make(seed, 8)
    tables, state = _state(graph, seed)
    accepted = 0
    for move in range(400):
        if not propose(tables, state, move % MOVE_KINDS):
            continue
        accepted += 1
        simulation = simulate(graph, Schedule(tuple(steps_of(state).tolist())))
        assert peak_bytes(state.memory) + graph.resident_bytes == simulation.peak_bytes
        assert state.seconds[0] == pytest.approx(simulation.compute_seconds)
    assert accepted > 50


@pytest.mark.parametrize("seed", range(5))
def test_moves_can_be_undone_and_done_again(seed):
    graph = random_general_graph(seed, 8)
    tables, state = _state(graph, seed)
    undone = 0
    for move in range(300):
        before = _snapshot(state)
        if not propose(tables, state, move % MOVE_KINDS):
            continue
        after = _snapshot(state)
        roll_back(tables, state)
        for kept, restored in zip(before, _snapshot(state), strict=True):
            np.testing.assert_allclose(kept, restored)
        roll_forward(tables, state)
        for changed, again in zip(after, _snapshot(state), strict=True):
            np.testing.assert_allclose(changed, again)
        undone += 1
    assert undone > 20


def test_tree_agrees_with_a_plain_array():
    draw = np.random.default_rng(3)
    memory = make_memory(16)
    plain = np.zeros(16)
    for _ in range(200):
        left, right = sorted(draw.choice(17, 2, replace=False))
        amount = float(draw.integers(-5, 9))
        add_on_range(memory, left, right, amount)
        propagate(memory)
        plain[left:right] += amount
        assert peak_bytes(memory) == plain.max()


def test_random_draws_are_uniform_and_repeat():
    _, state = _state(random_graph(0), seed=5)
    _, again = _state(random_graph(0), seed=5)
    drawn = [random_below(state, 7) for _ in range(7000)]
    assert drawn == [random_below(again, 7) for _ in range(7000)]
    assert set(drawn) == set(range(7))
    assert max(abs(drawn.count(k) - 1000) for k in range(7)) < 150
    assert all(0.0 < random_unit(state) <= 1.0 for _ in range(1000))
