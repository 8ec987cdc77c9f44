"""Simulation of schedules with copies to the host, against figures by hand and naive
simulations."""

import random

import pytest
from ortools.math_opt.python import mathopt

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import Operator, RematGraph, Value
from kiwi.literature.remat.offload.host import (
    IDLE,
    Host,
    HostRun,
    OffloadSchedule,
    Transfer,
    Update,
)
from kiwi.literature.remat.offload.pacing import Absence, paced
from kiwi.literature.remat.offload.simulate import (
    simulate,
    step_seconds,
    violations,
    without_unused_copies,
)

from ..graphs import random_chain, training_chain
from .oracle import device_bytes

CHAIN = training_chain(4)
"""Forward operators 0 to 3 take one second each, backward operators 4 to 7 two seconds each. All
values have 10 bytes."""


def least_total(compute, channels):
    """Returns the total by linear programming: the share of each job in each step is free."""
    model = mathopt.Model()
    lengths = [model.add_variable(lb=seconds) for seconds in compute]
    for jobs in channels:
        shares = [
            {t: model.add_variable(lb=0.0, ub=1.0) for t in range(first, last + 1)}
            for first, last, _ in jobs
        ]
        for share in shares:
            model.add_linear_constraint(sum(share.values()) == 1.0)
        for t, length in enumerate(lengths):
            busy = [s[t] * job[2] for s, job in zip(shares, jobs, strict=True) if t in s]
            model.add_linear_constraint(sum(busy) <= length)
    model.minimize(sum(lengths))
    return mathopt.solve(model, mathopt.SolverType.GLOP).objective_value()


@pytest.mark.parametrize("seed", range(40))
def test_the_time_is_the_least_over_all_ways_to_divide_transfers(seed):
    draw = random.Random(seed)
    compute = [float(draw.randint(0, 4)) for _ in range(draw.randint(1, 9))]
    channels = []
    for _ in range(3):
        ends = [sorted(draw.choices(range(len(compute)), k=2)) for _ in range(draw.randint(0, 6))]
        channels.append([(first, last, draw.uniform(0, 5)) for first, last in ends])
    found = step_seconds(compute, channels)
    assert all(length >= least for length, least in zip(found, compute, strict=True))
    assert sum(found) == pytest.approx(least_total(compute, channels))


def test_memory_and_time_by_hand():
    out, back = Transfer(0, 1, 2), Transfer(0, 4, 5)
    schedule = OffloadSchedule(CHAIN.order, (out,), (back,))
    found = simulate(CHAIN, Host(4.0, 2.5), schedule)
    assert simulate(CHAIN, Host(4.0, 2.5), OffloadSchedule(CHAIN.order)).peak_bytes == 50
    # Steps 1 and 2 take one second each, and the copy 2.5: the device waits for half a second.
    assert found.step_seconds == pytest.approx((1, 1, 1.5, 1, 2, 2, 2, 2))
    # Without value 0 in step 3 and with it again from step 4 on, before step 6 reads it.
    assert found.memory_bytes == (10, 20, 30, 30, 50, 40, 30, 20)
    assert found.host_memory_bytes == (0, 10, 10, 10, 10, 10, 0, 0)
    assert (found.compute_seconds, found.seconds) == (12, 12.5)


@pytest.mark.parametrize(
    ("outward", "inward", "message"),
    [
        ((Transfer(0, 0, 1),), (), "copies out 0|copies out f0"),
        ((), (Transfer(0, 3, 4),), "fetches f0"),
        ((Transfer(0, 1, 3),), (Transfer(0, 3, 4),), "fetches f0"),
        ((Transfer(0, 1, 2),), (Transfer(0, 4, 6),), "reads f0"),
        ((Transfer(0, 1, 8),), (), "within the steps"),
    ],
)
def test_schedules_that_cannot_be_executed(outward, inward, message):
    schedule = OffloadSchedule(CHAIN.order, outward, inward)
    with pytest.raises(InvalidProblemError, match=message):
        simulate(CHAIN, Host(1.0, 1.0), schedule)


@pytest.mark.parametrize("seed", range(20))
def test_memory_as_by_definition(seed):
    draw = random.Random(seed)
    graph = random_chain(seed, 5)
    absences = [Absence(2 * k, k + 1, 8 - k, k + 1) for k in range(4)]
    absences += [Absence(2 * k + 1, k, 9 - k, k + 1) for k in range(4)]
    chosen = [each for each in absences if draw.random() < 0.6]
    schedule = paced(graph, Host(2.0, 3.0), graph.order, chosen, draw.randint(5, 30))
    found = simulate(graph, Host(2.0, 3.0), schedule)
    assert found.memory_bytes == device_bytes(graph, schedule)


def test_copies_that_nothing_uses_are_left_out():
    useful = (Transfer(0, 1, 2),), (Transfer(0, 4, 4),)
    junk = OffloadSchedule(
        CHAIN.order,
        (*useful[0], Transfer(1, 2, 3), Transfer(2, 3, 3)),
        (*useful[1], Transfer(1, 6, 7)),
    )
    host = Host(1.0, 1.0)
    assert violations(CHAIN, host, junk) == []
    assert without_unused_copies(CHAIN, host, junk) == OffloadSchedule(CHAIN.order, *useful)


def training_step():
    """Returns a graph with the values 0, a weight, and 1, its state. The loss (operator 0) reads
    the weight. The update (operator 1) reads and overwrites both."""
    values = (Value("weight", 8), Value("state", 16), Value("gradient", 8), Value("done", 0))
    operators = (
        Operator("loss", 4.0, (0,), (2,)),
        Operator("update", 1.0, (0, 1, 2), (3,)),
    )
    graph = RematGraph(operators, values, (0, 1), frozenset({3}))
    return graph, Host(4.0, 4.0, updates=(Update(1, frozenset({0, 1}), 6.0),))


def test_an_update_on_the_device_is_copied_home():
    graph, host = training_step()
    steps = (IDLE, 0, 1, IDLE)
    home = frozenset({0, 1})
    inward = (Transfer(0, 0, 0), Transfer(1, 1, 1))
    outward = (Transfer(0, 3, 3), Transfer(1, 3, 3))
    found = simulate(graph, host, OffloadSchedule(steps, outward, inward, (), home))
    assert found.step_seconds == pytest.approx((2, 4, 1, 6))
    assert found.memory_bytes == (8, 32, 32, 24)
    assert found.host_peak_bytes == 24
    stale = OffloadSchedule(steps, outward[:1], inward, (), home)
    assert "state does not end where it began" in violations(graph, host, stale)[0]
    early = OffloadSchedule((0, 1), (), (), (), frozenset())
    assert simulate(graph, host, early).peak_bytes == 32


def test_an_update_on_the_host_needs_the_gradient_there():
    graph, host = training_step()
    home = frozenset({0, 1})
    inward, outward = (Transfer(0, 0, 0),), (Transfer(2, 2, 2),)
    schedule = OffloadSchedule((IDLE, 0, IDLE, IDLE), outward, inward, (HostRun(1, 3, 3),), home)
    found = simulate(graph, host, schedule)
    assert found.step_seconds == pytest.approx((2, 4, 2, 6))
    assert found.memory_bytes == (8, 16, 8, 0)
    assert found.host_memory_bytes == (24, 24, 32, 32)
    early = OffloadSchedule((IDLE, 0, IDLE, IDLE), outward, inward, (HostRun(1, 2, 2),), home)
    assert "gradient, which is not there" in violations(graph, host, early)[0]
    twice = OffloadSchedule((IDLE, 0, 1, IDLE), outward, inward, (HostRun(1, 3, 3),), home)
    assert any("again" in each for each in violations(graph, host, twice))
