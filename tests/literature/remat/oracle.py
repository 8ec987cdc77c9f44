"""Exhaustive search over executions, independent of every planner and of the simulator.

A state is (values in memory, operators done, constraints of the family). A move computes an
operator whose inputs are in memory, then keeps any subset of the values in memory. Every subset is
tried, so nothing is assumed about when values are dropped. The search is Dijkstra's algorithm by
time.
"""

import heapq
import itertools

from kiwi.literature.remat.graph import RematGraph

FREE, FIXED_ORDER, STAGES = "free", "fixed order", "stages"
"""Any order; first computations in the given order; and besides, at most once per stage and in
the given order within it, where a stage ends with a first computation (Checkmate), so that
nothing is computed after the last first computation."""


def least_seconds(
    graph: RematGraph, budget_bytes: int, family: str = FREE, most_copies: int | None = None
) -> float | None:
    """Returns the least time of an execution of the family within the budget; None if there is
    none."""
    start = (frozenset(), (0,) * len(graph.operators), -1)
    queue: list[tuple[float, int, tuple]] = [(0.0, 0, start)]
    settled: set[tuple] = set()
    tie = itertools.count(1)
    while queue:
        seconds, _, state = heapq.heappop(queue)
        if state in settled:
            continue
        settled.add(state)
        live, copies, _ = state
        if all(copies) and _written(graph, graph.results) <= live:
            return seconds
        for following, added in _moves(graph, state, budget_bytes, family, most_copies):
            if following not in settled:
                heapq.heappush(queue, (seconds + added, next(tie), following))
    return None


def _written(graph, values):
    return {value for value in values if graph.producer[value] >= 0}


def _moves(graph, state, budget_bytes, family, most_copies):
    live, copies, last = state
    rank = {index: place for place, index in enumerate(graph.order)}
    done = sum(1 for count in copies if count)
    for index, operator in enumerate(graph.operators):
        if not _written(graph, operator.inputs) <= live:
            continue
        if most_copies is not None and copies[index] >= most_copies:
            continue
        is_new = not copies[index]
        if not is_new and not operator.recomputable:
            continue
        if family != FREE and is_new and rank[index] != done:
            continue
        if family == STAGES and not is_new and (rank[index] <= last or all(copies)):
            continue
        held = live | set(operator.outputs)
        memory = sum(graph.values[value].size_bytes for value in held) + graph.resident_bytes
        if memory + operator.temporary_bytes > budget_bytes:
            continue
        counted = tuple(
            (count + 1 if most_copies is not None else 1) if k == index else count
            for k, count in enumerate(copies)
        )
        reached = -1 if is_new or family != STAGES else rank[index]
        for kept in _subsets(held):
            yield (kept, counted, reached), operator.compute_seconds


def _subsets(values):
    listed = sorted(values)
    for size in range(len(listed) + 1):
        for chosen in itertools.combinations(listed, size):
            yield frozenset(chosen)
