"""Rotor on chains that communicate (MAP's variant), against exhaustive search and by hand."""

import random
import time
from dataclasses import replace
from typing import NamedTuple

import pytest

from kiwi.literature.remat import simulate, violations
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.rotor import rotor
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes
from kiwi.solver.schedule import Schedule

from .graphs import random_chain, training_chain
from .persistent import persistent_schedules

F0, F1, F2 = 0, 1, 2


class Communication(NamedTuple):
    """The communication of one run of an operator: its time, and the buffers held meanwhile."""

    seconds: float
    buffer_bytes: int


def with_communication(graph, added):
    """Returns `graph`, in which operator k also communicates `added[k]`."""
    operators = list(graph.operators)
    for k, each in added.items():
        operators[k] = replace(
            operators[k],
            compute_seconds=operators[k].compute_seconds + each.seconds,
            temporary_bytes=operators[k].temporary_bytes + each.buffer_bytes,
        )
    return replace(graph, operators=tuple(operators))


def _rotor(graph, budget_bytes):
    finding = rotor(Task(graph, budget_bytes, time.monotonic() + 600, 20, 0))
    return finding, simulate(graph, finding.schedule)


def test_what_communicates_much_is_not_computed_again():
    # Four layers: 1 s forward, 2 s backward, 10 bytes each value; all kept is 12 s and, when the
    # last layer's backward runs, 50 bytes. 40 bytes are met by keeping of f0 and f1, or of f1 and
    # f2, only what the later one hands on, and running both again: 14 s.
    graph = training_chain(4)
    assert _rotor(graph, 40)[1].compute_seconds == 14
    # f0 communicates for 3 s, hence f1 and f2 again: 12 + 3 + 2.
    dear = with_communication(graph, {F0: Communication(3.0, 0)})
    finding, found = _rotor(dear, 40)
    assert found.compute_seconds == 17
    assert [finding.schedule.steps.count(k) for k in (F0, F1, F2)] == [1, 2, 2]
    # When f2 runs again, f0, f1, f2 and a gradient fill the 40 bytes. With a buffer of 10 bytes
    # it cannot; f0 and f1 run again, and f0 communicates again: 12 + 3 + (1 + 3) + 1.
    tight = with_communication(dear, {F2: Communication(0.0, 10)})
    finding, found = _rotor(tight, 40)
    assert found.compute_seconds == 20
    assert [finding.schedule.steps.count(k) for k in (F0, F1, F2)] == [2, 2, 1]


def _random_communication(seed, graph):
    draw = random.Random(seed)
    return {
        k: Communication(float(draw.randint(0, 6)), draw.randint(0, 5))
        for k in range(len(graph.operators))
        if draw.random() < 0.6
    }


def _exhaustive(graph, added):
    """Yields (peak, seconds) of all persistent schedules, with communication added step by step."""
    none = Communication(0.0, 0)
    for steps in persistent_schedules(graph):
        found = simulate(graph, Schedule(steps))
        memory = zip(steps, found.memory_bytes, strict=True)
        yield (
            max(held + added.get(k, none).buffer_bytes for k, held in memory),
            found.compute_seconds + sum(added.get(k, none).seconds for k in steps),
        )


@pytest.mark.parametrize("stages", [2, 4, 5, 6])
def test_rotor_equals_exhaustive_search_of_chains_that_communicate(stages):
    recomputed = 0
    for seed in range(14):
        plain = random_chain(seed, stages)
        added = _random_communication(seed, plain)
        graph = with_communication(plain, added)
        low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
        budget = low + (high - low) * (2 + seed % 6) // 10
        known = list(_exhaustive(plain, added))
        finding, found = _rotor(graph, budget)
        assert not violations(graph, finding.schedule)
        best = min((seconds for peak, seconds in known if peak <= budget), default=None)
        if best is None:
            assert found.peak_bytes == min(peak for peak, _ in known)
        else:
            assert found.peak_bytes <= budget
            assert found.compute_seconds == best
            recomputed += best > graph.once_seconds
    assert recomputed > 2
