"""What else could be done with one operator, if everything around it stayed as it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiwi.memory.timeline import bytes_at, curve_bytes
from kiwi.mesh import TensorSharding
from kiwi.problem.build import PlanningProblem
from kiwi.problem.copies import CopyNode

MOST_ALTERNATIVES = 3


@dataclass(frozen=True)
class Alternative:
    """Another option of a unit.

    - `reads`, `results`: the layouts expected and yielded.
    - `recompute_at`: the unit before which it would run again, or None where it is kept.
    - `change_seconds`: change of the step time if every other choice stayed.
    - `change_bytes`: change of the memory held at the plan's peak, its own results alone.
    """

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    recompute_at: int | None
    change_seconds: float
    change_bytes: int


def local_alternatives(
    planning: PlanningProblem, solution: Sequence[int], restricted: PlanningProblem
) -> list[tuple[Alternative, ...]]:
    """For each unit its cheapest other options; those that neighbours forbid are left out.

    Copies of operands follow from the choices of producer and reader and cost no time, so that
    the nodes that stand for them are passed over. An option that neither makes nor reads a kept
    copy any more loses what that saves; `restricted` is the solution's problem with the copies
    that the plan keeps.
    """
    first = len(planning.sources)
    chosen = zip(planning.problem.nodes, solution, strict=True)
    held = (interval for node, option in chosen for interval in node.usage[option])
    peak_time = int(np.argmax(curve_bytes(held, planning.problem.horizon)))
    costs = local_costs(planning, solution)
    for unit, options, lost in _lost_seconds(planning, restricted):
        costs[first + unit][options] += lost
    return [
        _cheapest(planning, node.unit, costs[first + node.unit], solution, peak_time)
        for node in planning.unit_nodes
    ]


def local_costs(planning: PlanningProblem, solution: Sequence[int]) -> list[np.ndarray]:
    """For each node the cost of every option, its edges to neighbours' chosen options included.
    Infinite where a neighbour's choice forbids the option."""
    problem = planning.problem
    fixed = len(planning.sources) + len(planning.unit_nodes)
    costs = [np.array(node.costs) for node in problem.nodes]
    for edge in problem.edges:
        if max(edge.tail, edge.head) >= fixed:
            continue
        row, column = edge.cell(solution[edge.tail], solution[edge.head])
        costs[edge.tail] += edge.costs[edge.tail_class, column]
        costs[edge.head] += edge.costs[row, edge.head_class]
    return costs


def _lost_seconds(
    planning: PlanningProblem, restricted: PlanningProblem
) -> Iterator[tuple[int, list[int], float]]:
    """For the makers and readers of kept copies, their options that do not save these seconds."""
    behind = len(restricted.sources) + len(restricted.unit_nodes)
    for edge in restricted.problem.edges:
        saved = -float(edge.costs[edge.cell(0, 0)])
        if edge.head < behind or saved <= 0:
            continue
        copy = restricted.copies[edge.head - behind]
        assert copy.earlier is not None
        earlier = restricted.copies[copy.earlier]
        yield copy.unit, _without_copy(planning, copy, must_run_once=True), saved
        if earlier.earlier is None:  # else there is another one, still
            yield earlier.unit, _without_copy(planning, earlier, must_run_once=False), saved


def _without_copy(planning: PlanningProblem, copy: CopyNode, *, must_run_once: bool) -> list[int]:
    """The options of a unit that have no copy in the layout that is kept."""
    read, target = copy.read, copy.options[0].target
    return planning.unit_nodes[copy.unit].options_where(
        lambda s, r: s.reads[read] != target or (must_run_once and r.recomputes)
    )


def _cheapest(
    planning: PlanningProblem, unit: int, costs: np.ndarray, solution: Sequence[int], peak_time: int
) -> tuple[Alternative, ...]:
    """The cheapest options, one for each pair of layouts and time of recomputation."""
    node = planning.unit_nodes[unit]
    index = len(planning.sources) + unit
    chosen, usage = solution[index], planning.problem.nodes[index].usage

    def appearance(option: int) -> tuple[Any, Any, int | None]:
        strategy, residency = node.choice(option)
        return strategy.reads, strategy.results, residency.recompute_at

    own, found = appearance(chosen), {}
    for option in np.argsort(costs, kind="stable").tolist():
        if not np.isfinite(costs[option]) or len(found) == MOST_ALTERNATIVES:
            break
        key = appearance(option)
        if key != own and key not in found:
            more_bytes = bytes_at(usage[option], peak_time) - bytes_at(usage[chosen], peak_time)
            found[key] = Alternative(*key, float(costs[option] - costs[chosen]), more_bytes)
    return tuple(found.values())
