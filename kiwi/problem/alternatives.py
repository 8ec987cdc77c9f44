"""The other options of each operator, priced as if all other operators kept their options."""

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
"""At most this many other options of a unit are listed, the cheapest first."""


@dataclass(frozen=True)
class Alternative:
    """Another option of a unit.

    - `reads`: the layouts in which the unit expects its operands.
    - `results`: the layouts of its results.
    - `recompute_at`: the unit before which this unit would run again; None if its result is kept.
    - `change_seconds`: the change of the step time if every other choice stayed.
    - `change_bytes`: the change of the unit's own memory at the time of the plan's peak.
    - `fetch_at`: the unit before which the result would be fetched from the host; None if it is not
      offloaded.
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
    """Returns the cheapest other options of each unit that its neighbours' choices allow.

    The nodes of copies are not considered: copies follow from the choices of producer and reader,
    and cost no time. An option that no longer makes or reads a kept copy loses what the copy saves.

    - `restricted`: the solution's problem with the copies that the plan keeps.
    """
    first_unit = len(planning.sources)
    chosen = zip(planning.problem.nodes, solution, strict=True)
    held = (interval for node, option in chosen for interval in node.usage[option])
    peak_time = int(np.argmax(curve_bytes(held, planning.problem.horizon)))
    local = _local(planning, solution)
    for unit, options, edge in _lost(planning, restricted):
        local[first_unit + unit].lose(edge, options)
    loads = evaluate(restricted.problem, [0] * len(restricted.problem.nodes)).loads
    return [
        _cheapest(planning, node.unit, local[first_unit + node.unit], loads, solution, peak_time)
        for node in planning.unit_nodes
    ]


def local_costs(planning: PlanningProblem, solution: Sequence[int]) -> list[np.ndarray]:
    """Returns, for each node, the cost of every option in seconds, with the edges to the chosen
    options of its neighbours. The cost is infinite if a neighbour's choice forbids the option."""
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
    """The costs and loads of a node's options, with its edges to the chosen options of its
    neighbours."""

    def __init__(self, node: Node) -> None:
        self.costs = np.array(node.costs)
        self._loads: dict[tuple[int, int], np.ndarray] = {}
        self._load(node.loads, ...)

    def add(self, edge: Edge, lines: Any) -> None:
        """Adds an edge. `lines` indexes the cell of each option in the edge's cost matrix."""
        self.costs += edge.costs[lines]
        self._load(edge.loads, lines)

    def lose(self, edge: Edge, options: list[int]) -> None:
        """Takes back an edge's saving from `options`, which do without it."""
        cell = edge.cell(0, 0)
        self.costs[options] -= edge.costs[cell]
        for load in edge.loads:
            self._amounts(load)[options] -= load.amounts[cell]

    def step_costs(self, total: Mapping[tuple[int, int], float], chosen: int) -> np.ndarray:
        """The costs less the seconds hidden in the node's windows.

        - `total`: the loads of the solution, by window and channel.
        - `chosen`: the option that the solution chooses for this node.
        """
        seconds = np.array(self.costs)
        for window in {window for window, _ in self._loads}:
            keys = {key for key in (*total, *self._loads) if key[0] == window}
            amounts = [total.get(key, 0.0) + self._change(key, chosen) for key in keys]
            seconds -= sum(amounts) - functools.reduce(np.maximum, amounts)
        return seconds

    def _change(self, key: tuple[int, int], chosen: int) -> np.ndarray:
        amounts = self._loads.get(key)
        return np.zeros_like(self.costs) if amounts is None else amounts - amounts[chosen]

    def _load(self, loads: Sequence[Load], lines: Any) -> None:
        for load in loads:
            self._amounts(load)[:] += load.amounts[lines]

    def _amounts(self, load: Load) -> np.ndarray:
        key = load.window, load.channel
        return self._loads.setdefault(key, np.zeros_like(self.costs))


def _lost(
    planning: PlanningProblem, restricted: PlanningProblem
) -> Iterator[tuple[int, list[int], Edge]]:
    """Yields, for each maker and reader of a kept copy, the unit, the options that lose the saving,
    and the edge that states it."""
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
    """Returns the options of a unit that make no copy in the kept layout."""
    read, target, is_again = copy.read, copy.options[0].target, copy.reader is Reader.AGAIN
    return planning.unit_nodes[copy.unit].options_where(
        lambda strategy, residency: (
            strategy.reads[read] != target or (is_again and not residency.recomputes)
        )
    )


def _cheapest(
    planning: PlanningProblem,
    unit: int,
    local: _Local,
    loads: Mapping[tuple[int, int], float],
    solution: Sequence[int],
    peak_time: int,
) -> tuple[Alternative, ...]:
    """Returns the cheapest options of a unit, one for each combination of layouts and times of
    recomputation and fetch."""
    node = planning.unit_nodes[unit]
    index = len(planning.sources) + unit
    chosen, usage = solution[index], planning.problem.nodes[index].usage
    costs = local.step_costs(loads, chosen)

    def appearance(option: int) -> tuple[Any, Any, int | None, int | None]:
        strategy, residency = node.choice(option)
        return strategy.reads, strategy.results, residency.recompute_at, residency.fetch_at

    chosen_appearance, cheapest = appearance(chosen), {}
    for option in np.argsort(costs, kind="stable").tolist():
        if not np.isfinite(costs[option]) or len(cheapest) == MOST_ALTERNATIVES:
            break
        key = appearance(option)
        if key != chosen_appearance and key not in cheapest:
            more_bytes = bytes_at(usage[option], peak_time) - bytes_at(usage[chosen], peak_time)
            change = float(costs[option] - costs[chosen]), more_bytes
            cheapest[key] = Alternative(*key[:3], *change, key[3])
    return tuple(cheapest.values())
