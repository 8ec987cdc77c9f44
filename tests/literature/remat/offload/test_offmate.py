"""OffMate against an exhaustive search of the places of weights; its options, rounding and batch
size."""

import itertools
import math
import time
from dataclasses import replace

import pytest

from benchmarks.remat.graphs import Layer, Optimizer, fine_tuning
from kiwi.literature.remat.chain import stage_borders
from kiwi.literature.remat.offload.blocks import block_options, groups_of
from kiwi.literature.remat.offload.host import IDLE, Host, HostRun, OffloadSchedule, Transfer
from kiwi.literature.remat.offload.offmate import (
    batch_choice,
    host_updates,
    offmate,
    round_group,
    select,
)
from kiwi.literature.remat.offload.offmate_program import GroupChoice
from kiwi.literature.remat.offload.simulate import simulate, violations
from kiwi.literature.remat.offload.solve import solve_offload
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import order_peak_bytes

from ..graphs import residual_chain


def _task(graph, budget_bytes):
    return Task(graph, budget_bytes, time.monotonic() + 60, 20, 0)


def tuned(layers, rate=5.0, memory_bytes=None, host_speed=2.0):
    """Returns single layers with a weight of 10 bytes and a state of 20, and their host."""
    block = [Layer(10, 10, 2.0)]
    graph, updates = fine_tuning(block, layers, Optimizer(2, 10.0, host_speed))
    return graph, Host(rate, rate, memory_bytes, updates)


def all_schedules(graph, host, count):
    """Yields every choice of homes and updates on the host, with every interval of every transfer.
    Transfers begin and end with the parts of blocks. An update and the operator of its gradient are
    one part."""
    updating = {each.operator: each for each in host.updates}
    for chosen in itertools.product((False, True), repeat=len(updating)):
        on_host = [k for k, there in zip(updating, chosen, strict=True) if there]
        steps = (IDLE, *(k for k in graph.order if k not in on_host), IDLE, IDLE)
        starts = [t for t, k in enumerate(steps) if k not in updating]
        for homes in itertools.product((False, True), repeat=2 * count):
            home = frozenset(v for v in range(2 * count) if homes[v])
            if any(not updating[k].overwrites <= home for k in on_host):
                continue
            moves = [_moves(graph, steps, v, updating, starts) for v in sorted(home)]
            moves += [_gradient_moves(graph, steps, k, starts) for k in on_host]
            for each in itertools.product(*moves):
                inward, outward, runs = (
                    sum(parts, ()) for parts in zip(((), (), ()), *each, strict=True)
                )
                yield OffloadSchedule(steps, outward, inward, runs, home)


def _moves(graph, steps, value, updating, starts):
    """Returns the choices of transfers of a value: fetched before its first use, perhaps again
    before a later one, and copied home."""
    uses = [t for t, k in enumerate(steps) if k != IDLE and value in graph.operators[k].inputs]
    parts = [max(s for s in starts if s <= t) for t in uses]
    if not uses:
        return [((), (), ())]
    fetches = [(Transfer(value, t, parts[0] - 1),) for t in starts if t < parts[0]]
    again, homeward = [()], [()]
    for a, b in itertools.pairwise(parts):
        again += [(Transfer(value, t, b - 1),) for t in starts if a < t < b]
    if steps[uses[-1]] in updating:
        ends = [t - 1 for t in (*starts, len(steps)) if t - 1 > uses[-1]]
        homeward = [(Transfer(value, uses[-1] + 1, t),) for t in ends]
    moves = itertools.product(fetches, again, homeward)
    return [(first + second, home, ()) for first, second, home in moves]


def _gradient_moves(graph, steps, operator, starts):
    gradient = next(v for v in graph.operators[operator].inputs if graph.producer[v] >= 0)
    made = steps.index(graph.producer[gradient])
    following = next(t for t in starts if t > made)
    end = next((t for t in starts if t > following), len(steps)) - 1
    run = HostRun(operator, end + 1, len(steps) - 1)
    return [((), (Transfer(gradient, following, end),), (run,))]


@pytest.mark.parametrize(("rate", "host_speed"), [(5.0, 2.0), (1.5, 0.8), (20.0, 0.1)])
def test_against_exhaustive_search_of_two_layers(rate, host_speed):
    graph, host = tuned(2, rate, host_speed=host_speed)
    known = {}
    for schedule in all_schedules(graph, host, 2):
        found = simulate(graph, host, schedule)
        known[found.peak_bytes] = min(found.seconds, known.get(found.peak_bytes, 1e9))
    for budget in (60, 80, 100):
        best = min(seconds for peak, seconds in known.items() if peak <= budget)
        finding = offmate(_task(graph, budget), host)
        found = simulate(graph, host, finding.schedule)
        assert finding.family_bound == pytest.approx(best)
        assert found.peak_bytes <= budget
        assert best - 1e-6 <= found.seconds <= 1.02 * best
    assert min(known) == 60
    assert offmate(_task(graph, 59), host).family_is_infeasible


def test_all_that_is_updated_can_be_on_the_host_but_not_beyond_its_memory():
    graph, host = tuned(4)
    least = solve_offload(graph, host, 80, "offmate")
    assert least.simulation.host_peak_bytes <= 4 * 30 + 4 * 10
    assert order_peak_bytes(graph) > 2 * 80
    seconds = []
    for memory_bytes in (60, 80, 120, None):
        limited = Host(5.0, 5.0, memory_bytes, host.updates)
        finding = offmate(_task(graph, 140), limited)
        found = simulate(graph, limited, finding.schedule)
        assert found.peak_bytes <= 140
        assert memory_bytes is None or found.host_peak_bytes <= memory_bytes
        seconds.append(finding.family_bound)
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[-1]
    assert offmate(_task(graph, 140), Host(5.0, 5.0, 20, host.updates)).family_is_infeasible


def test_options_of_a_block():
    graph = residual_chain(0, 3)
    borders = stage_borders(graph)
    keep, again, send = block_options(borders, Host(5.0, 5.0), 2)
    assert not keep.sent and not again.sent
    assert again.stored_bytes < keep.stored_bytes
    assert again.backward_seconds > keep.backward_seconds
    # Cheap operators are computed again, the others copied.
    sent = {graph.operators[graph.producer[v]].compute_seconds for v in send.sent}
    assert min(sent) > 5 and send.sent_bytes + send.stored_bytes <= keep.stored_bytes
    assert keep.backward_seconds < send.backward_seconds < again.backward_seconds


def test_activations_go_to_the_host_where_the_link_is_fast():
    graph = residual_chain(0, 6)
    budget = order_peak_bytes(graph) // 2
    slow, fast = (
        solve_offload(graph, Host(rate, rate), budget, "offmate") for rate in (0.1, 100.0)
    )
    assert not slow.schedule.outward and fast.schedule.outward
    assert fast.simulation.seconds < slow.simulation.seconds
    assert slow.simulation.compute_seconds > graph.once_seconds


def test_shares_become_whole_values():
    sizes = {1: 50, 2: 30, 3: 20}
    assert select(sizes, 0.0, ()) == set()
    assert select(sizes, 0.45, ()) == {2, 3}
    assert select(sizes, 0.5, ()) == {1}
    assert select(sizes, 0.45, (), [2]) == {2, 3}
    assert select(sizes, 0.55, {3}) == {2, 3, 1} - {1} | {1}
    graph, host = tuned(3)
    group = groups_of(stage_borders(graph), host)[2]
    choice = GroupChoice(0.2, 0.4, 1.0, 0.7)
    (updates,) = host_updates(graph, [group], [choice], more=True)
    rounded = round_group(graph, group, choice, updates)
    assert rounded.home == {*group.weights, *group.states}
    assert rounded.updates == group.updates
    assert rounded.away == set(group.weights)
    assert round_group(graph, group, GroupChoice(0.0, 0.0, 0.0, 0.0), ()).home == frozenset()
    # Three groups that should update 0.4 each: all, or one of them, as 1.2 is nearest to 1.
    shares = [GroupChoice(1.0, 0.0, 1.0, 0.4)] * 3
    groups = groups_of(stage_borders(graph), host)
    assert [len(each) for each in host_updates(graph, groups, shares, more=True)] == [1, 1, 1]
    assert [len(each) for each in host_updates(graph, groups, shares, more=False)] == [0, 1, 0]


def at_batch(graph, host, batch):
    """Returns the graph for `batch` times as many samples. Times and sizes grow in proportion,
    except those of updates and of the values that they read or overwrite."""
    updates = {each.operator for each in host.updates}
    fixed = {v for k in updates for v in (*graph.operators[k].inputs, *graph.operators[k].outputs)}
    values = (
        value if v in fixed else replace(value, size_bytes=math.ceil(batch * value.size_bytes))
        for v, value in enumerate(graph.values)
    )
    operators = (
        operator
        if k in updates
        else replace(
            operator,
            compute_seconds=batch * operator.compute_seconds,
            temporary_bytes=math.ceil(batch * operator.temporary_bytes),
        )
        for k, operator in enumerate(graph.operators)
    )
    return replace(graph, values=tuple(values), operators=tuple(operators))


def test_batch_of_most_throughput():
    graph, host = tuned(3, rate=8.0)
    budget = 150
    batch, seconds = batch_choice(_task(graph, budget), host, 6.0)
    bounds = {}
    for whole in range(1, 7):
        larger = at_batch(graph, host, whole)
        finding = offmate(_task(larger, budget), host)
        if finding.schedule is not None:
            assert violations(larger, host, finding.schedule) == []
            bounds[whole] = finding.family_bound / whole
    assert seconds <= 1.02 * min(bounds.values())
    assert min(bounds, key=bounds.get) in (int(batch), int(batch) + 1)
    assert 1 < batch < 6
