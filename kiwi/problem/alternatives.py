"""The other options of one operator, priced as if everything around it stayed as it is."""

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
    - `recompute_at`: the unit before which it would run again, or None if it is kept.
    - `change_seconds`: the change of the step time if every other choice stayed.
    - `change_bytes`: the change of the memory of its own results at the plan's peak.
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
    """The cheapest other options of each unit, without those that its neighbours forbid.

    Nodes of copies are passed over: copies follow from the choices of producer and reader and cost
    no time. An option that no longer makes or reads a kept copy loses what the copy saves.

    - `restricted`: the solution's problem with the copies that the plan keeps.
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
    """The cost of every option of each node, with its edges to the neighbours' chosen options. It
    is infinite if a neighbour's choice forbids the option."""
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
    """The costs and loads of a node's options, with its edges to the neighbours' choices."""

    def __init__(self, node: Node) -> None:
        self.costs = np.array(node.costs)
        self._loads: dict[tuple[int, int], np.ndarray] = {}
        self._load(node.loads, ...)

    def add(self, edge: Edge, lines: Any) -> None:
        """Adds an edge. `lines` are the cells of the options."""
        self.costs += edge.costs[lines]
        self._load(edge.loads, lines)

    def lose(self, edge: Edge, options: list[int]) -> None:
        """Takes back an edge's saving from the options that go without it."""
        cell = edge.cell(0, 0)
        self.costs[options] -= edge.costs[cell]
        for load in edge.loads:
            self._amounts(load)[options] -= load.amounts[cell]

    def step_costs(self, total: Mapping[tuple[int, int], float], chosen: int) -> np.ndarray:
        """The costs less the seconds hidden in the node's windows. `total` is the loads of a
        solution that chooses `chosen`."""
        seconds = np.array(self.costs)
        for window in {window for window, _ in self._loads}:
            keys = {key for key in (*total, *self._loads) if key[0] == window}
            amounts = [total.get(key, 0.0) + self._change(key, chosen) for key in keys]
            seconds -= sum(amounts) - functools.reduce(np.maximum, amounts)
        return seconds

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
    """For makers and readers of kept copies, the options that lose an edge's saving."""
    behind = len(restricted.sources) + len(restricted.unit_nodes)
    for edge in restricted.problem.edges:
        if edge.head < behind or edge.costs[edge.cell(0, 0)] >= 0:
            continue
        copy = restricted.copies[edge.head - behind]
        assert copy.earlier is not None
        earlier = restricted.copies[copy.earlier]
        yield copy.unit, _without_copy(planning, copy), edge
        if earlier.earlier is None:  # otherwise another copy still exists
            yield earlier.unit, _without_copy(planning, earlier), edge


def _without_copy(planning: PlanningProblem, copy: CopyNode) -> list[int]:
    """The options of a unit without a copy in the kept layout."""
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

    own, cheapest = appearance(chosen), {}
    for option in np.argsort(costs, kind="stable").tolist():
        if not np.isfinite(costs[option]) or len(cheapest) == MOST_ALTERNATIVES:
            break
        key = appearance(option)
        if key != own and key not in cheapest:
            more_bytes = bytes_at(usage[option], peak_time) - bytes_at(usage[chosen], peak_time)
            change = float(costs[option] - costs[chosen]), more_bytes
            cheapest[key] = Alternative(*key[:3], *change, key[3])
    return tuple(cheapest.values())
