"""HiRemate: convex groups, prices of options, H-ILP against exact planners."""

import random
import time
from contextlib import closing
from dataclasses import replace

import pytest

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.checkmate import checkmate, rk_checkmate
from kiwi.literature.remat.hiremate.cluster import Roles
from kiwi.literature.remat.hiremate.levels import hiremate
from kiwi.literature.remat.hiremate.option import combinations, make_option, plain_options, select
from kiwi.literature.remat.hiremate.part_solver import HiremateSettings
from kiwi.literature.remat.hiremate.partition import (
    ForwardGraph,
    condensed,
    immediate_dominators,
    partition,
)
from kiwi.literature.remat.hiremate.workers import Pool
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes, simulate

from .graphs import random_graph, random_training_graph, residual_chain


def _task(graph, budget_bytes, seconds=60):
    return Task(graph, budget_bytes, time.monotonic() + seconds, seconds, 0)


def _budget(graph, tenths):
    low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
    return low + (high - low) * tenths // 10


def _backward_once(graph):
    """Returns the graph with backward operators that may run only once, as H-ILP and steps from
    JAX run them."""
    first = len(graph.operators) // 2
    operators = [replace(each, recomputable=k < first) for k, each in enumerate(graph.operators)]
    return replace(graph, operators=tuple(operators))


def _random_forward_graph(seed, nodes):
    draw = random.Random(seed)
    before = [
        tuple(sorted(draw.sample(range(k), min(k, draw.choice((0, 1, 1, 1, 2, 3))))))
        for k in range(nodes)
    ]
    readers = [tuple(q for q in range(nodes) if p in before[q]) for p in range(nodes)]
    return ForwardGraph(
        tuple(before), tuple((p, readers[p], draw.randint(1, 9)) for p in range(nodes))
    )


def _is_acyclic(before):
    done: set[int] = set()
    while len(done) < len(before):
        ready = [k for k, leaders in enumerate(before) if k not in done and leaders <= done]
        if not ready:
            return False
        done.update(ready)
    return True


@pytest.mark.parametrize("seed", range(25))
def test_groups_are_a_hierarchy_without_cycles_at_any_level(seed):
    graph = _random_forward_graph(seed, 60)
    trees = partition(graph, 7, 4)
    assert len(trees) <= 7
    assert sorted(k for tree in trees for k in tree.operators) == list(range(60))
    levels = [list(trees)]
    while levels[-1]:
        assert all(len(tree.children) <= 4 for tree in levels[-1])
        levels.append([child for tree in levels[-1] for child in tree.children])
        divided = [
            part for tree in trees for part in ([tree] if not tree.children else tree.children)
        ]
        assert _is_acyclic(condensed(graph, divided))
        trees = tuple(divided)


def test_parts_are_in_topological_order():
    graph = _random_forward_graph(3, 40)
    trees = partition(graph, 5, 4)
    for index, leaders in enumerate(condensed(graph, trees)):
        assert all(leader < index for leader in leaders)


def test_dominators_of_a_diamond_with_a_tail():
    before = {0: [], 1: [0], 2: [0], 3: [1, 2], 4: [3], 5: [3, 4]}
    assert immediate_dominators(before) == {0: -1, 1: 0, 2: 0, 3: 0, 4: 3, 5: 3}


def test_a_chain_of_equal_blocks_is_divided_into_equal_clusters():
    graph = residual_chain(0, 12)
    roles = Roles(graph)
    root = roles.whole(partition(roles.forward_graph(), 6, 5))
    clusters = [child.cluster for child in root.children if child.cluster.children]
    assert len(set(clusters)) < len(clusters)


def test_options_save_what_backward_reads_and_recompute_costs_time():
    graph = residual_chain(1, 4)
    roles = Roles(graph)
    root = roles.whole(partition(roles.forward_graph(), 3, 5)).children[1]
    c = root.cluster
    keep = make_option(c.graph, c.interface, (c.forward, c.backward))
    again = make_option(c.graph, c.interface, (c.forward, c.forward + c.backward))
    assert keep.saved_bytes > again.saved_bytes == 0
    assert again.seconds > keep.seconds
    assert again.backward.reads >= keep.forward.reads
    assert select([again, keep, keep], 5) == [keep, again]


@pytest.mark.parametrize("tenths", [3, 6])
def test_without_groups_h_ilp_is_as_good_as_rk_checkmate(tenths):
    for seed in range(3):
        graph = _backward_once(random_training_graph(seed, 6))
        budget = _budget(graph, tenths)
        exact = rk_checkmate(_task(graph, budget))
        ours = hiremate(_task(graph, budget, 8), HiremateSettings(most_direct=0))
        if exact.schedule is None:
            assert simulate(graph, ours.schedule).peak_bytes > budget  # the least peak found
            continue
        found = simulate(graph, ours.schedule)
        assert found.peak_bytes <= budget
        best = simulate(graph, exact.schedule).compute_seconds
        assert found.compute_seconds <= best + 0.002 * graph.once_seconds


@pytest.mark.parametrize("make", [residual_chain, random_training_graph])
def test_within_three_per_cent_of_checkmate_where_that_finishes(make):
    finished = recomputed = 0
    for seed in range(2):
        graph = make(seed, {residual_chain: 2, random_training_graph: 7}[make])
        budget = _budget(graph, 4 + seed)
        exact = checkmate(_task(graph, budget, 20))
        if exact.schedule is None or not exact.deterministic:
            continue
        finished += 1
        best = simulate(graph, exact.schedule).compute_seconds
        found = simulate(graph, hiremate(_task(graph, budget, 3)).schedule)
        assert found.peak_bytes <= budget
        assert found.compute_seconds <= 1.03 * best
        recomputed += best > graph.once_seconds
    assert finished and recomputed


def test_what_the_clock_left_out_is_told():
    graph = residual_chain(0, 5)
    task = _task(graph, _budget(graph, 5), 60)
    settings = HiremateSettings(most_top=8, most_at_all=8, most_lower=4, most_direct=0, workers=0)
    assert not hiremate(replace(task, deadline=time.monotonic()), settings).deterministic
    assert hiremate(task, settings).deterministic


def test_parts_of_parts_are_nearly_as_good_as_no_groups():
    graph = residual_chain(0, 5)
    budget = _budget(graph, 5)
    settings = HiremateSettings(most_top=8, most_at_all=8, most_lower=4, most_direct=0, workers=0)
    found = simulate(graph, hiremate(_task(graph, budget, 20), settings).schedule)
    exact = hiremate(
        _task(graph, budget, 20), HiremateSettings(most_top=99, most_direct=0, workers=0)
    )
    best = simulate(graph, exact.schedule).compute_seconds
    assert found.peak_bytes <= budget
    assert best <= found.compute_seconds <= best + 0.03 * graph.once_seconds


def test_parallel_processes_answer_as_this_one():
    graph = random_training_graph(2, 8)
    budget = _budget(graph, 6)
    settings = HiremateSettings(4, 4, 4, most_direct=0, workers=0)
    here = hiremate(_task(graph, budget, 300), settings)
    there = hiremate(_task(graph, budget, 300), HiremateSettings(4, 4, 4, most_direct=0, workers=2))
    assert here.schedule == there.schedule
    with closing(Pool(2)) as pool:
        assert pool.solve([], 1.0) == []


def test_large_graphs_have_a_schedule_in_any_time():
    graph = residual_chain(3, 120)
    for limit, tenths in ((0.001, 6), (8.0, 3)):
        budget = _budget(graph, tenths)
        settings = HiremateSettings(workers=0)
        found = simulate(graph, hiremate(_task(graph, budget, limit), settings).schedule)
        assert found.peak_bytes <= budget
        assert found.compute_seconds > graph.once_seconds


def test_exchanges_hold_less_for_more_time():
    graph = residual_chain(1, 12)
    roles = Roles(graph)
    root = roles.whole(partition(roles.forward_graph(), 4, 4))
    options = [
        [make_option(c.graph, c.interface, pair) for pair in plain_options(c)]
        for c in (child.cluster for child in root.children)
    ]
    found = combinations(root.cluster, options)
    seconds = [_total(options, chosen, "seconds") for chosen in found]
    saved = [_total(options, chosen, "saved_bytes") for chosen in found]
    assert len(found) > 2
    assert seconds == sorted(seconds)
    assert saved == sorted(saved, reverse=True)


def _total(options, chosen, what):
    return sum(getattr(each[o], what) for each, o in zip(options, chosen, strict=True))


def test_steps_without_dominators_are_divided_evenly():
    """A ladder: each node reads the two before it, so that only its beginning dominates."""
    before = tuple(tuple(range(max(0, k - 2), k)) for k in range(200))
    readers = [tuple(q for q in (k + 1, k + 2) if q < 200) for k in range(200)]
    trees = partition(ForwardGraph(before, tuple((k, readers[k], 1) for k in range(200))), 8, 4)
    sizes = [len(tree.operators) for tree in trees]
    assert max(sizes) <= 4 * 200 / len(trees)


def test_graphs_without_known_backward_operators_are_refused():
    with pytest.raises(InvalidProblemError, match="no backward operator"):
        hiremate(_task(random_graph(0), 100))
