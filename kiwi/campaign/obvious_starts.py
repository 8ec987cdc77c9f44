"""Obvious solutions, such as data parallelism, behind which no search may end.

Each axis of the mesh divides either the batch or the work on each part of it. Values handed on to
the next step (parameters, moments) are whole along the former axes, or divided along them, too.
Everything is kept, or everything that may be is recomputed; in a program with loops these are their
bodies (`kiwi.memory.residency.rematerialised_bodies`). That gives data parallelism, FSDP,
Megatron's sharding and mixtures of them, for any program, without regard to names. Options are
chosen node by node in the order of the step, each at its least cost beside those before it. So of
the weights that the batch's axes leave alone, one is cut by columns and the next one by rows.

**The least memory of the fastest shardings** answers budgets for which no plan was found. The
solver's search for the least peak follows prices of memory through all options at once. The useful
question is simpler: how far recomputation lowers the peak of the plan without a limit. So its
shardings are fixed, and only the residencies are searched; repeated layers are tied
(`kiwi.campaign.equal_layers`). The result is never worse than full rematerialisation layer by layer
under these shardings, or under the obvious ones.
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
    """How a step is divided.

    - `data_axes`: the axes that divide the batch. All others divide the work on it.
    - `shards_state`: whether these axes also divide the values handed on to the next step.
    - `recomputes`: whether everything that may be is recomputed.
    """

    data_axes: tuple[int, ...]
    shards_state: bool
    recomputes: bool


@timed("starts")
def obvious_starts(planning: PlanningProblem) -> tuple[tuple[int, ...], ...]:
    """The distinct solutions of all patterns, without regard to memory."""
    greedy, batch = _Greedy(planning), _batch(planning)
    found: dict[tuple[int, ...], None] = {}
    for pattern in _patterns(planning.mesh.nontrivial_axes, recomputes=planning.fixed.recompute):
        allowed = [_allowed(source, pattern, source.value in batch) for source in planning.sources]
        choices = greedy.chosen(allowed, recomputes=pattern.recomputes)
        if choices is not None:
            found[copies_that_follow(planning, choices)] = None
    return tuple(found)


def better_start(
    starts: Callable[[], Sequence[tuple[int, ...]]], problem: Problem, found: SolveResult
) -> tuple[int, ...] | None:
    """The fastest start within the limit, if it is faster than the found solution.

    - `problem`: the problem that the starts solve, perhaps with further nodes of one option each.
    """
    if found.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE):
        return None
    every = [(*s, *[0] * (len(problem.nodes) - len(s))) for s in starts()]
    seconds, best = next(iter(fitting(problem, every)), (math.inf, None))
    return best if seconds < (math.inf if found.objective is None else found.objective) else None


def _patterns(axes: Sequence[int], *, recomputes: bool) -> Iterator[Pattern]:
    for count in reversed(range(len(axes) + 1)):
        for data_axes in itertools.combinations(axes, count):
            for shards_state in (False, True)[: 1 + bool(data_axes)]:
                yield Pattern(data_axes, shards_state, recomputes=False)
                if recomputes:
                    yield Pattern(data_axes, shards_state, recomputes=True)


def _batch(planning: PlanningProblem) -> frozenset[int]:
    """The arguments that are divided along the batch: those that no result replaces in the next
    step. If none is replaced, they are those with the most rows."""
    program = planning.units.graph.program
    state = set(planning.fixed.carried.values())
    arrays = [value for value in program.arguments if program.values[value].shape]
    if state:
        return frozenset(arrays) - state
    most = max((program.values[value].shape[0] for value in arrays), default=0)
    return frozenset(value for value in arrays if program.values[value].shape[0] == most)


def _allowed(source: SourceNode, pattern: Pattern, is_batch: bool) -> np.ndarray:
    """Infinite for the options of an argument or constant that do not suit a pattern best."""
    data = set(pattern.data_axes)

    def distance(sharding: TensorSharding) -> int:
        used = set(sharding.axes_used)
        if is_batch:
            return len(data ^ set(sharding.dims[0])) + len(used - set(sharding.dims[0]))
        return len(data - used) if pattern.shards_state else len(data & used)

    distances = np.array([distance(sharding) for sharding in source.shardings])
    return np.where(distances == distances.min(), 0.0, np.inf)


class _Greedy:
    """Chooses units one after the other, and each source with the first unit that reads it. Then
    all are chosen once more, from the last one on, beside the choices around them: a sum that was
    scattered to save time is whole again if its readers would gather it."""

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
        """The options of sources and units; None if earlier choices leave a unit without any."""
        found: dict[int, int] = {}
        unwanted = [*allowed, *self._unwanted[recomputes]]
        for i in range(self._first, len(self._near)):
            costs, read = self._nodes[i].costs.copy(), dict[int, np.ndarray]()
            for j, end in self._near[i]:
                if j in found:
                    costs += end.beside(found[j])
                elif j < self._first:
                    read[j] = read.get(j, allowed[j][:, None]) + end.all
            for between in read.values():
                costs += between.min(axis=0)
            wanted = costs + unwanted[i]
            found[i] = best = int(np.argmin(wanted if np.isfinite(wanted).any() else costs))
            if not np.isfinite(costs[best]):
                return None
            found |= {j: int(np.argmin(between[:, best])) for j, between in read.items()}
        found = {i: int(np.argmin(own)) for i, own in enumerate(allowed)} | found
        for i in reversed(range(len(self._near))):
            costs = self._nodes[i].costs + unwanted[i]
            for j, end in self._near[i]:
                costs += end.beside(found[j])
            if np.isfinite(costs).any():
                found[i] = int(np.argmin(costs))
        return [found[i] for i in range(len(self._near))]


def _unwanted(
    planning: PlanningProblem, bodies: Sequence[UnitResidency], again: bool
) -> list[np.ndarray]:
    """Infinite for the options of units that are not the best for keeping, or recomputing,
    everything."""
    name, found = "recompute" if again else "keep", []
    for node in planning.unit_nodes:
        wanted = bodies[node.unit].options if again and bodies else ()
        suits = [r in wanted if wanted else r.name == name for r in node.residency.options]
        found.append(np.where(np.tile(suits, len(node.strategies)), 0.0, np.inf))
    return found


class _End:
    """An edge as one of its nodes sees it. `costs`: [lines of the other node, own lines].

    Patterns often choose alike, so costs by option of the other node are kept.
    """

    def __init__(self, costs: np.ndarray, other_class: np.ndarray, own_class: np.ndarray) -> None:
        self._costs, self._other_class, self._own_class = costs, other_class.tolist(), own_class
        self._known: dict[int, np.ndarray] = {}

    def beside(self, other: int) -> np.ndarray:
        """Costs of all own options beside one of the other node."""
        line = self._other_class[other]
        if line not in self._known:
            self._known[line] = self._costs[line][self._own_class]
        return self._known[line]

    @functools.cached_property
    def all(self) -> np.ndarray:
        """[options of the other node, own options]."""
        return self._costs[self._other_class][:, self._own_class]


@dataclass(frozen=True)
class LeastPeak:
    """The smallest peak that is known.

    - `peak_bytes`: the peak of the known solution with least memory; None if there is none.
    - `start`: a solution within the limit with the problem that offers it, if there is one.
    """

    peak_bytes: int | None
    start: Start | None = None


def least_peak(planning: PlanningProblem, limit_bytes: int, tools: Tools) -> LeastPeak:
    """The least peak of the fastest shardings. A peak below `limit_bytes` is of no further
    interest."""
    allowed = tools.allowance.part(shares.LEAST_PEAK_SHARE)
    quick = tools.with_settings(gap=shares.ANY_PLAN, on_progress=None)
    layers = rematerialised_layers(planning.units)
    planning = _offering(planning, layers)
    equal = EqualLayers(planning, quick)
    fastest = equal.solve_roughly(replace(planning.problem, limit_bytes=None), allowed)
    if fastest.solution is None:
        return LeastPeak(None)
    limited = replace(planning.problem, limit_bytes=limit_bytes)
    found = equal.solve_roughly(with_shardings_of(planning, limited, fastest.solution), allowed)
    sharded = (fastest.solution, *obvious_starts(planning))
    again = [_recomputed(planning, each, layers) for each in sharded]
    every = [each for each in (fastest.solution, found.solution, *again) if each is not None]
    for _, solution in fitting(limited, every):
        return LeastPeak(evaluate(limited, solution).peak_bytes, Start(planning, solution))
    priced = (evaluate(limited, each) for each in every)
    peaks = [price.peak_bytes for price in priced if np.isfinite(price.cost)]
    return LeastPeak(min(*peaks, found.least_peak_bytes or peaks[0]))


def _offering(planning: PlanningProblem, layers: Sequence[UnitResidency]) -> PlanningProblem:
    """The problem with the residencies of full rematerialisation among the others. It is unchanged
    if it has all of them, or if a rule decides recomputation."""
    fixed = planning.fixed
    is_ruled = not fixed.recompute or fixed.rewrite is not None
    pairs = zip(planning.unit_nodes, layers, strict=True)
    if is_ruled or all(set(own.options) <= set(node.residency.options) for node, own in pairs):
        return planning
    before = fixed.offered or ((),) * len(layers)
    offered = tuple((*mine, *own.options) for mine, own in zip(before, layers, strict=True))
    offering = replace(fixed, offered=offered)
    return build_problem(planning.kernels, planning.mesh, offering, planning.problem.limit_bytes)


def _recomputed(
    planning: PlanningProblem, solution: Sequence[int], layers: Sequence[UnitResidency]
) -> tuple[int, ...] | None:
    """A solution with the residencies of full rematerialisation; None if one of them is not
    offered."""
    found = Choices.of(planning, solution)
    pairs = zip(found.units, layers, strict=True)
    units = tuple(replace(choice, residency=own.options[0]) for choice, own in pairs)
    return replace(found, units=units).solution_of(planning)


def with_shardings_of(
    planning: PlanningProblem, problem: Problem, solution: Sequence[int]
) -> Problem:
    """The problem in which sources and units are sharded as in a solution."""
    nodes, first = list(problem.nodes), len(planning.sources)
    widths = [1] * first + [len(node.residency.options) for node in planning.unit_nodes]
    for number, width in enumerate(widths):
        node, option = nodes[number], solution[number]
        same = np.arange(node.costs.size) // width == option // width
        costs = np.where(same, node.costs, np.inf)
        nodes[number] = replace(node, costs=costs, parts={})
    return replace(problem, nodes=tuple(nodes))
