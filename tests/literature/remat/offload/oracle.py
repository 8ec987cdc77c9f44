"""Oracles for the tests of offloading: naive accounts and exhaustive searches."""

import itertools
import math
from collections.abc import Iterator

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.offload.host import IDLE, OffloadSchedule, Transfer
from kiwi.literature.remat.offload.simulate import simulate

from ..persistent import persistent_schedules


def device_bytes(graph, schedule):
    """Returns the memory on the device in each step, by the definition: a copy made at `a` is held
    in step t if a use that ends at t or later reads this copy, and no later one."""
    count = len(schedule.steps)
    held = [0] * count
    for value, each in enumerate(graph.values):
        makings = sorted(_makings(graph, schedule, value))
        uses = list(_uses(graph, schedule, value))
        for place, first in enumerate(makings):
            following = makings[place + 1] if place + 1 < len(makings) else count + 1
            ends = [last for begin, last in uses if first <= begin <= following and begin != first]
            end = max([first, *_own_end(graph, schedule, value, first), *ends])
            for t in range(max(first, 0), min(end, count - 1) + 1):
                held[t] += each.size_bytes
    for t, operator in enumerate(schedule.steps):
        held[t] += graph.operators[operator].temporary_bytes if operator != IDLE else 0
    return tuple(held)


def _makings(graph, schedule, value):
    if graph.producer[value] < 0 and value not in schedule.host_inputs:
        yield -1
    for t, k in enumerate(schedule.steps):
        if k != IDLE and value in graph.operators[k].outputs:
            yield t
    yield from (each.first for each in schedule.inward if each.value == value)


def _own_end(graph, schedule, value, first):
    return [each.last for each in schedule.inward if (each.value, each.first) == (value, first)]


def _uses(graph, schedule, value):
    count = len(schedule.steps)
    for t, k in enumerate(schedule.steps):
        if k != IDLE and value in graph.operators[k].inputs:
            yield t, t
    yield from ((each.first, each.last) for each in schedule.outward if each.value == value)
    at_home = graph.producer[value] < 0 and value not in schedule.host_inputs
    if at_home or value in graph.results:
        yield count, count - 1


def least_by_stages(graph, host, budget_bytes, most_again):
    """Returns the least time over schedules by stages with at most `most_again` recomputations, in
    which each value goes to the host and back at most once, in whole stages."""
    best = None
    for steps, starts in _stages(graph, most_again):
        for moves in itertools.product(*_moves(graph, starts)):
            outward = tuple(out for out, _ in moves if out)
            inward = tuple(back for _, back in moves if back)
            try:
                schedule = OffloadSchedule(steps, outward, inward)
                found = simulate(graph, host, schedule)
            except InvalidProblemError:
                continue
            on_host = host.memory_bytes is None or found.host_peak_bytes <= host.memory_bytes
            if found.peak_bytes <= budget_bytes and on_host:
                best = found.seconds if best is None else min(best, found.seconds)
    return best


def _stages(graph, most_again) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    again = [(t, k) for t in range(len(graph.order)) for k in range(t)]
    for count in range(most_again + 1):
        for chosen in itertools.combinations(again, count):
            steps, starts = [], [0]
            for t, operator in enumerate(graph.order):
                steps += [graph.order[k] for s, k in chosen if s == t]
                steps.append(operator)
                starts.append(len(steps))
            yield tuple(steps), starts


def _moves(graph, starts):
    """Yields, for each value, all pairs of transfers and the choice without transfers."""
    stages = len(starts) - 1
    for value, writer in enumerate(graph.producer):
        first = graph.order.index(writer) + 1
        found = [(None, None)]
        if any(graph.order.index(k) > first for k in graph.readers[value]):
            for a, b, c, d in itertools.product(range(first, stages), repeat=4):
                if a <= b < c <= d < stages - 1:
                    out = Transfer(value, starts[a], starts[b + 1] - 1)
                    found.append((out, Transfer(value, starts[c], starts[d + 1] - 1)))
        yield found


def least_persistent(graph, host, budget_bytes, most_away):
    """Returns the least time over persistent schedules of a `random_chain` in which at most
    `most_away` values go to the host once before the backward part, and back once in it."""
    best = None
    for steps in persistent_schedules(graph):
        away = list(_absences(graph, steps))
        for count in range(most_away + 1):
            for chosen in itertools.combinations(away, count):
                for moves in itertools.product(*(_intervals(*each) for each in chosen)):
                    outward, inward = (tuple(each[k] for each in moves) for k in (0, 1))
                    found = simulate(graph, host, OffloadSchedule(steps, outward, inward))
                    if found.peak_bytes <= budget_bytes:
                        best = found.seconds if best is None else min(best, found.seconds)
    return best


def _absences(graph, steps):
    """Yields values with the step of a computation before the first backward operator, and the step
    of their first use after it."""
    turn = next(t for t, k in enumerate(steps) if k >= len(graph.operators) // 2)
    for t, k in enumerate(steps[:turn]):
        for value in graph.operators[k].outputs:
            again = [s for s in range(t + 1, len(steps)) if steps[s] == k]
            end = again[0] if again else len(steps)
            uses = [s for s in range(t + 1, end) if value in graph.operators[steps[s]].inputs]
            if any(s >= turn for s in uses):
                yield value, t, min(s for s in uses if s >= turn)


def _intervals(value, made, used):
    for last in range(made + 1, used - 1):
        for first in range(last + 1, used):
            yield Transfer(value, made + 1, last), Transfer(value, first, used - 1)


def least_of_blocks(table, budget_bytes, graph, host):
    """Returns the least time of blocks that POFO's dynamic program can express, by trying all."""
    stages = table.chain.stages

    def rest(stage, sent, kept, behind, ahead):
        if stage == len(stages):
            return host.outward_seconds(behind) + host.inward_seconds(ahead)
        best = math.inf
        came = stages[stage - 1].output_bytes if sent else 0
        held = stages[-1].held_gradient_bytes
        for last in range(stage - 1, len(stages) - 1):
            alone = last < stage
            option, end = stages[stage].options[0], max(stage, last)
            if alone:
                forward, peak = graph.seconds_of(option.forward), option.forward_peak_bytes + held
                saved, output = option.saved_bytes, stages[stage].output_bytes
            else:
                group = stages[stage : last + 1]
                forward, saved = sum(e.discard_seconds for e in group), group[-1].output_bytes
                inputs = [0, *(e.output_bytes for e in group[:-1])]
                peaks = (a + e.discard_peak_bytes for a, e in zip(inputs, group, strict=True))
                output, peak = saved, max(held + max(peaks), saved)
            room = budget_bytes - kept - peak
            wait = max(0, behind - room)
            total = host.outward_seconds(wait) + forward
            moved = max(0, behind - wait - forward * host.outward_bytes_per_second)
            space = budget_bytes - kept - came
            if alone:
                again, space = graph.seconds_of(option.backward), space - option.backward_peak_bytes
            else:
                least = table.least[stage, last]
                units = [u for u in range(len(least)) if least[u] < math.inf]
                if not units:
                    continue
                level = min(
                    max(math.floor((space - ahead) / table.unit_bytes), units[0]), units[-1]
                )
                again, space = least[level], space - level * table.unit_bytes
            if room < 0 or space < 0:
                continue
            wait = max(0, ahead - space)
            total += host.inward_seconds(wait) + again
            early = max(0, ahead - wait - again * host.inward_bytes_per_second) + came
            total_here = total + rest(end + 1, False, kept + saved, moved, early)
            best = min(best, total_here)
            if end + 1 < len(stages):
                away = rest(end + 1, True, kept, moved + saved, early + saved - output)
                best = min(best, total + away)
        return best

    return rest(0, False, 0, 0, 0)
