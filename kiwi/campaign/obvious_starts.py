"""Obvious solutions, such as data parallelism: no search may end with a slower one that fits.

Each axis of the mesh divides either the batch (a *data axis*) or the work on each part of the
batch. Values handed on to the next step (parameters, moments) are either replicated along the data
axes, or sharded along them, too. Either everything is kept, or everything that may be recomputed is
recomputed. In a program with loops, the bodies of loops are recomputed
(`kiwi.memory.residency.rematerialised_bodies`). These patterns give data parallelism, FSDP,
Megatron's sharding and mixtures of them, for any program and without regard to names.

The options of a pattern are chosen node by node in the order of the step. Each node takes the
option with the least cost beside the options of the nodes before it. In this way two successive
weights that the data axes do not divide are sharded by columns and by rows, as in Megatron.

**The least peak of the fastest shardings** is the answer to budgets for which no plan was found.
The solver's search for the least peak follows prices of memory through all options at once. The
useful question is simpler: by how much recomputation lowers the peak of the plan without a limit.
So the shardings of that plan are fixed, and only the residencies are searched, with repeated layers
tied (`kiwi.campaign.equal_layers`). The result is never worse than full rematerialisation layer by
layer under these shardings, or under the obvious ones.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.campaign import shares
from kiwi.campaign.equal_layers import EqualLayers
from kiwi.campaign.tools import Tools
from kiwi.memory.residency import UnitResidency, rematerialised_bodies, rematerialised_layers
from kiwi.mesh import TensorSharding
from kiwi.problem.build import PlanningProblem, SourceNode, build_problem
from kiwi.problem.solved import Start
from kiwi.problem.translation import Choices, copies_that_follow
from kiwi.solver import Problem, SolveResult, SolveStatus, evaluate
from kiwi.solver.evaluate import fitting
from kiwi.timings import timed


@dataclass(frozen=True)
class Pattern:
    """The way in which an obvious solution divides a step.

    - `data_axes`: the axes that divide the batch. All other axes divide the work on it.
    - `shards_state`: whether the data axes also shard the values handed on to the next step.
    - `recomputes`: whether everything that may be recomputed is recomputed; otherwise everything is
      kept.
    """

    data_axes: tuple[int, ...]
    shards_state: bool
    recomputes: bool


@timed("starts")
def obvious_starts(planning: PlanningProblem) -> tuple[tuple[int, ...], ...]:
    """Returns the distinct solutions of all patterns, whether they fit or not.

    A solution has one option index for each node of the problem.
    """
    greedy, batch = _Greedy(planning), _batch(planning)
    distinct: dict[tuple[int, ...], None] = {}
    for pattern in _patterns(planning.mesh.nontrivial_axes, recomputes=planning.fixed.recompute):
        allowed = [_allowed(source, pattern, source.value in batch) for source in planning.sources]
        choices = greedy.chosen(allowed, recomputes=pattern.recomputes)
        if choices is not None:
            distinct[copies_that_follow(planning, choices)] = None
    return tuple(distinct)


def better_start(
    starts: Callable[[], Sequence[tuple[int, ...]]], problem: Problem, found: SolveResult
) -> tuple[int, ...] | None:
    """Returns the fastest start within the limit if it is faster than the result's solution; None
    otherwise, and if the result is proven optimal or infeasible.

    - `starts`: returns the starts. It is called only if they are needed.
    - `problem`: the problem that the starts solve, perhaps with further nodes of one option each.
    - `found`: a result of solving `problem`.
    """
    if found.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE):
        return None
    padded = [(*start, *[0] * (len(problem.nodes) - len(start))) for start in starts()]
    seconds, best = next(iter(fitting(problem, padded)), (math.inf, None))
    return best if seconds < (math.inf if found.objective is None else found.objective) else None


def _patterns(axes: Sequence[int], *, recomputes: bool) -> Iterator[Pattern]:
    """Yields all patterns over mesh axes. Patterns with the most data axes come first."""
    for count in reversed(range(len(axes) + 1)):
        for data_axes in itertools.combinations(axes, count):
            for shards_state in (False, True)[: 1 + bool(data_axes)]:
                yield Pattern(data_axes, shards_state, recomputes=False)
                if recomputes:
                    yield Pattern(data_axes, shards_state, recomputes=True)


def _batch(planning: PlanningProblem) -> frozenset[int]:
    """Returns the arguments that are sharded along the batch: arguments that no result replaces in
    the next step. If no argument is replaced, arguments with the most rows are returned."""
    program = planning.units.graph.program
    state = set(planning.fixed.carried.values())
    arrays = [value for value in program.arguments if program.values[value].shape]
    if state:
        return frozenset(arrays) - state
    most = max((program.values[value].shape[0] for value in arrays), default=0)
    return frozenset(value for value in arrays if program.values[value].shape[0] == most)


def _allowed(source: SourceNode, pattern: Pattern, is_batch: bool) -> np.ndarray:
    """Returns costs that exclude all options of an argument or constant except those nearest to the
    pattern: 0 for these, infinity for the others."""
    data = set(pattern.data_axes)

    def distance(sharding: TensorSharding) -> int:
        used = set(sharding.axes_used)
        if is_batch:
            return len(data ^ set(sharding.dims[0])) + len(used - set(sharding.dims[0]))
        return len(data - used) if pattern.shards_state else len(data & used)

    distances = np.array([distance(sharding) for sharding in source.shardings])
    return np.where(distances == distances.min(), 0.0, np.inf)


class _Greedy:
    """Chooses an option of each node, greedily and in two passes.

    The first pass chooses units in the order of the step, and each source (argument or constant)
    together with the first unit that reads it. The second pass goes through all nodes from the last
    to the first, and chooses each again beside the options of all its neighbours. A reduction that
    was scattered to save time becomes an all-reduce again if its readers would gather the result.
    """

    def __init__(self, planning: PlanningProblem) -> None:
        self._first = len(planning.sources)
        self._nodes = planning.problem.nodes[: self._first + len(planning.unit_nodes)]
        bodies = rematerialised_bodies(planning.units) if planning.units.graph.program.loops else ()
        self._unwanted = {again: _unwanted(planning, bodies, again) for again in (False, True)}
        self._near: list[list[tuple[int, _End]]] = [[] for _ in self._nodes]
        for edge in planning.problem.edges:
            if max(edge.tail, edge.head) < len(self._near):
                tail, head = edge.tail_class, edge.head_class
                self._near[edge.tail].append((edge.head, _End(edge.costs.T, head, tail)))
                self._near[edge.head].append((edge.tail, _End(edge.costs, tail, head)))

    def chosen(self, allowed: Sequence[np.ndarray], *, recomputes: bool) -> list[int] | None:
        """Returns the option of each source and each unit; None if earlier choices leave a unit
        without a possible option.

        - `allowed`: costs by option of each source, infinite for options that the pattern excludes.
        - `recomputes`: whether units are recomputed where they may be.
        """
        option_of: dict[int, int] = {}
        unwanted = [*allowed, *self._unwanted[recomputes]]
        for i in range(self._first, len(self._near)):
            costs, source_costs = self._nodes[i].costs.copy(), dict[int, np.ndarray]()
            for j, end in self._near[i]:
                if j in option_of:
                    costs += end.beside(option_of[j])
                elif j < self._first:
                    source_costs[j] = source_costs.get(j, allowed[j][:, None]) + end.all
            for between in source_costs.values():
                costs += between.min(axis=0)
            wanted_costs = costs + unwanted[i]
            option_of[i] = best = int(
                np.argmin(wanted_costs if np.isfinite(wanted_costs).any() else costs)
            )
            if not np.isfinite(costs[best]):
                return None
            option_of |= {
                j: int(np.argmin(between[:, best])) for j, between in source_costs.items()
            }
        option_of = {
            i: int(np.argmin(allowed_costs)) for i, allowed_costs in enumerate(allowed)
        } | option_of
        for i in reversed(range(len(self._near))):
            costs = self._nodes[i].costs + unwanted[i]
            for j, end in self._near[i]:
                costs += end.beside(option_of[j])
            if np.isfinite(costs).any():
                option_of[i] = int(np.argmin(costs))
        return [option_of[i] for i in range(len(self._near))]


def _unwanted(
    planning: PlanningProblem, bodies: Sequence[UnitResidency], again: bool
) -> list[np.ndarray]:
    """Returns costs by option of each unit: 0 for options with the wanted residency, infinity for
    the others.

    - `bodies`: the residencies that recompute the bodies of loops; empty if there are no loops.
    - `again`: whether units are to be recomputed, otherwise kept.
    """
    name, costs = "recompute" if again else "keep", []
    for node in planning.unit_nodes:
        wanted = bodies[node.unit].options if again and bodies else ()
        suits = [
            option in wanted if wanted else option.name == name for option in node.residency.options
        ]
        costs.append(np.where(np.tile(suits, len(node.strategies)), 0.0, np.inf))
    return costs


class _End:
    """The costs of an edge, seen from one of its two nodes.

    - `costs`: shape [lines of the other node, lines of this node].
    - `other_class`, `own_class`: the line of each option of the other node and of this node.

    Patterns often choose alike, so the costs beside an option of the other node are cached.
    """

    def __init__(self, costs: np.ndarray, other_class: np.ndarray, own_class: np.ndarray) -> None:
        self._costs, self._other_class, self._own_class = costs, other_class.tolist(), own_class
        self._known: dict[int, np.ndarray] = {}

    def beside(self, other: int) -> np.ndarray:
        """Returns the costs of all options of this node beside one option of the other node."""
        line = self._other_class[other]
        if line not in self._known:
            self._known[line] = self._costs[line][self._own_class]
        return self._known[line]

    @functools.cached_property
    def all(self) -> np.ndarray:
        """The costs of the edge, shape [options of the other node, options of this node]."""
        return self._costs[self._other_class][:, self._own_class]


@dataclass(frozen=True)
class LeastPeak:
    """The smallest known peak of a step.

    - `peak_bytes`: the peak of the known solution with the least memory; None if there is none.
    - `start`: a solution within the limit and the problem that offers it; None if there is none.
    """

    peak_bytes: int | None
    start: Start | None = None


def least_peak(planning: PlanningProblem, limit_bytes: int, tools: Tools) -> LeastPeak:
    """Returns the least peak of the fastest shardings, or of the obvious ones.

    The search ends with a solution within `limit_bytes`, if it finds one.
    """
    allowed = tools.allowance.part(shares.LEAST_PEAK_SHARE)
    quick = tools.with_settings(gap=shares.ANY_PLAN, on_progress=None)
    layers = rematerialised_layers(planning.units)
    planning = _offering(planning, layers)
    equal = EqualLayers(planning, quick)
    fastest = equal.solve_roughly(replace(planning.problem, limit_bytes=None), allowed)
    if fastest.solution is None:
        return LeastPeak(None)
    limited = replace(planning.problem, limit_bytes=limit_bytes)
    slim = equal.solve_roughly(with_shardings_of(planning, limited, fastest.solution), allowed)
    sharded = (fastest.solution, *obvious_starts(planning))
    again = [_recomputed(planning, solution, layers) for solution in sharded]
    known = [option for option in (fastest.solution, slim.solution, *again) if option is not None]
    for _, solution in fitting(limited, known):
        return LeastPeak(evaluate(limited, solution).peak_bytes, Start(planning, solution))
    priced = (evaluate(limited, option) for option in known)
    peaks = [price.peak_bytes for price in priced if np.isfinite(price.cost)]
    return LeastPeak(min(*peaks, slim.least_peak_bytes or peaks[0]))


def _offering(planning: PlanningProblem, layers: Sequence[UnitResidency]) -> PlanningProblem:
    """Returns the problem that also offers the residencies of full rematerialisation, `layers`. The
    problem is unchanged if it offers all of them, or if a rule decides recomputation."""
    fixed = planning.fixed
    is_ruled = not fixed.recompute or fixed.rewrite is not None
    pairs = zip(planning.unit_nodes, layers, strict=True)
    if is_ruled or all(set(layer.options) <= set(node.residency.options) for node, layer in pairs):
        return planning
    before = fixed.offered or ((),) * len(layers)
    offered = tuple(
        (*options, *layer.options) for options, layer in zip(before, layers, strict=True)
    )
    offering = replace(fixed, offered=offered)
    return build_problem(planning.kernels, planning.mesh, offering, planning.problem.limit_bytes)


def _recomputed(
    planning: PlanningProblem, solution: Sequence[int], layers: Sequence[UnitResidency]
) -> tuple[int, ...] | None:
    """Returns the solution with the residencies of full rematerialisation, `layers`; None if the
    problem does not offer one of them."""
    choices = Choices.of(planning, solution)
    pairs = zip(choices.units, layers, strict=True)
    units = tuple(replace(choice, residency=layer.options[0]) for choice, layer in pairs)
    return replace(choices, units=units).solution_of(planning)


def with_shardings_of(
    planning: PlanningProblem, problem: Problem, solution: Sequence[int]
) -> Problem:
    """Returns the problem in which sources and units can only be sharded as in a solution. The
    residencies of units remain open."""
    nodes, first = list(problem.nodes), len(planning.sources)
    widths = [1] * first + [len(node.residency.options) for node in planning.unit_nodes]
    for number, width in enumerate(widths):
        node, option = nodes[number], solution[number]
        same = np.arange(node.costs.size) // width == option // width
        costs = np.where(same, node.costs, np.inf)
        nodes[number] = replace(node, costs=costs, parts={})
    return replace(problem, nodes=tuple(nodes))
