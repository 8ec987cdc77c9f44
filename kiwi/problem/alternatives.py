"""What else could be done with one operator, if everything around it stayed as it is."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiwi.interval import bytes_at, curve_bytes
from kiwi.mesh import TensorSharding
from kiwi.problem.build import PlanningProblem
from kiwi.problem.copies import CopyNode, Reader
from kiwi.solver.evaluate import evaluate
from kiwi.solver.problem import Edge, Load, Node

MOST_ALTERNATIVES = 3


@dataclass(frozen=True)
class Alternative:
    """Another option of a unit.

    - `reads`, `results`: the layouts expected and yielded.
    - `recompute_at`: the unit before which it would run again, or None where it is kept.
    - `change_seconds`: change of the step time if every other choice stayed.
    - `change_bytes`: change of the memory held at the plan's peak, its own results alone.
    - `fetch_at`: the unit before which it would be fetched from the host, if offloaded.
    """

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    recompute_at: int | None
    change_seconds: float
    change_bytes: int
    fetch_at: int | None = None


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
    local = _local(planning, solution)
    for unit, options, edge in _lost(planning, restricted):
        local[first + unit].lose(edge, options)
    loads = evaluate(restricted.problem, [0] * len(restricted.problem.nodes)).loads
    return [
        _cheapest(planning, node.unit, local[first + node.unit], loads, solution, peak_time)
        for node in planning.unit_nodes
    ]


def local_costs(planning: PlanningProblem, solution: Sequence[int]) -> list[np.ndarray]:
    """For each node the cost of every option, its edges to neighbours' chosen options included.
    Infinite where a neighbour's choice forbids the option."""
    return [local.costs for local in _local(planning, solution)]


def _local(planning: PlanningProblem, solution: Sequence[int]) -> "list[_Local]":
    local = [_Local(node) for node in planning.problem.nodes]
    behind = len(planning.sources) + len(planning.unit_nodes)
    for edge in planning.problem.edges:
        if max(edge.tail, edge.head) < behind:
            row, column = edge.cell(solution[edge.tail], solution[edge.head])
            local[edge.tail].add(edge, (edge.tail_class, column))
            local[edge.head].add(edge, (row, edge.head_class))
    return local


class _Local:
    """For each option of a node its costs and loads, with its edges to neighbours' choices."""

    def __init__(self, node: Node) -> None:
        self.costs = np.array(node.costs)
        self._loads: dict[tuple[int, int], np.ndarray] = {}
        self._load(node.loads, ...)

    def add(self, edge: Edge, lines: Any) -> None:
        """An edge, of which `lines` are the cells of the options."""
        self.costs += edge.costs[lines]
        self._load(edge.loads, lines)

    def lose(self, edge: Edge, options: list[int]) -> None:
        """What an edge saves, which some options do without."""
        cell = edge.cell(0, 0)
        self.costs[options] -= edge.costs[cell]
        for load in edge.loads:
            self._amounts(load)[options] -= load.amounts[cell]

    def step_costs(self, total: Mapping[tuple[int, int], float], chosen: int) -> np.ndarray:
        """The costs less what is hidden in the node's windows; `total`: the loads of a solution
        that chooses `chosen`."""
        found = np.array(self.costs)
        for window in {window for window, _ in self._loads}:
            keys = {key for key in (*total, *self._loads) if key[0] == window}
            amounts = [total.get(key, 0.0) + self._change(key, chosen) for key in keys]
            found -= sum(amounts) - functools.reduce(np.maximum, amounts)
        return found

    def _change(self, key: tuple[int, int], chosen: int) -> np.ndarray:
        own = self._loads.get(key)
        return np.zeros_like(self.costs) if own is None else own - own[chosen]

    def _load(self, loads: Sequence[Load], lines: Any) -> None:
        for load in loads:
            self._amounts(load)[:] += load.amounts[lines]

    def _amounts(self, load: Load) -> np.ndarray:
        key = load.window, load.channel
        return self._loads.setdefault(key, np.zeros_like(self.costs))


def _lost(
    planning: PlanningProblem, restricted: PlanningProblem
) -> Iterator[tuple[int, list[int], Edge]]:
    """For makers and readers of kept copies, their options that do not save what an edge does."""
    behind = len(restricted.sources) + len(restricted.unit_nodes)
    for edge in restricted.problem.edges:
        if edge.head < behind or edge.costs[edge.cell(0, 0)] >= 0:
            continue
        copy = restricted.copies[edge.head - behind]
        assert copy.earlier is not None
        earlier = restricted.copies[copy.earlier]
        yield copy.unit, _without_copy(planning, copy), edge
        if earlier.earlier is None:  # else there is another one, still
            yield earlier.unit, _without_copy(planning, earlier), edge


def _without_copy(planning: PlanningProblem, copy: CopyNode) -> list[int]:
    """The options of a unit that have no copy in the layout that is kept."""
    read, target, is_again = copy.read, copy.options[0].target, copy.reader is Reader.AGAIN
    return planning.unit_nodes[copy.unit].options_where(
        lambda s, r: s.reads[read] != target or (is_again and not r.recomputes)
    )


def _cheapest(
    planning: PlanningProblem,
    unit: int,
    local: _Local,
    loads: Mapping[tuple[int, int], float],
    solution: Sequence[int],
    peak_time: int,
) -> tuple[Alternative, ...]:
    """The cheapest options, one for each pair of layouts and time of recomputation."""
    node = planning.unit_nodes[unit]
    index = len(planning.sources) + unit
    chosen, usage = solution[index], planning.problem.nodes[index].usage
    costs = local.step_costs(loads, chosen)

    def appearance(option: int) -> tuple[Any, Any, int | None, int | None]:
        strategy, residency = node.choice(option)
        return strategy.reads, strategy.results, residency.recompute_at, residency.fetch_at

    own, found = appearance(chosen), {}
    for option in np.argsort(costs, kind="stable").tolist():
        if not np.isfinite(costs[option]) or len(found) == MOST_ALTERNATIVES:
            break
        key = appearance(option)
        if key != own and key not in found:
            more_bytes = bytes_at(usage[option], peak_time) - bytes_at(usage[chosen], peak_time)
            change = float(costs[option] - costs[chosen]), more_bytes
            found[key] = Alternative(*key[:3], *change, key[3])
    return tuple(found.values())
