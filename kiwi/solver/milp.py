"""The problem as a mixed-integer linear program, written in MathOpt for several solvers.

Sets: nodes i with options o; edges e = (i, j) with pairs (A, B) of option classes (options whose
lines in the edge's table are equal, see `network`); the points of time t at which memory can bind.

Variables: x[i, o] in {0, 1} is 1 if node i takes option o. y[e, A, B] in [0, 1] is 1 if the options
of i and j lie in the classes A and B. If x is integral, so is y.

Objective: min sum cost[i, o] x[i, o] + sum table[e, A, B] y[e, A, B]

Constraints:
(a) one[i]:        sum_o x[i, o] = 1
(b) row[e, A]:     sum_B y[e, A, B] = sum_{o in A} x[i, o]
(c) column[e, B]:  sum_A y[e, A, B] = sum_{o in B} x[j, o]
(d) mem[t]:        sum_{i, o} bytes[i, o, t] x[i, o] <= limit

For problems with loads, t[w] >= 0 is the time of window w and is added to the objective:

(e) load[w, c]:    sum load[i, o] x[i, o] + sum load[e, A, B] y[e, A, B] <= t[w]

Forbidden options and pairs have no variable. If all rows (d) together have many terms, only rows
that some solution has broken are written: an option of a node that represents hundreds of nodes
holds memory in thousands of rows. (a) to (c) are the local polytope of the cost network
(Schlesinger 1976; Wainwright and Jordan 2008, section 4.1).
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.math_opt.python import mathopt

from kiwi.solver.edge_tables import owners
from kiwi.solver.mathopt_run import Hint, MilpAnswer, solve_model
from kiwi.solver.network import NO_LIMIT_BYTES, Network
from kiwi.solver.relaxed import usage_of
from kiwi.solver.request import Request

SCALED_COST = 1e4
"""The order of magnitude to which costs are scaled, since the tolerances of solvers are
absolute."""

SCALED_LIMIT = 1e3
"""The right-hand side to which rows of memory are scaled, since the tolerances of solvers are
absolute."""

_REPAIR_ROUNDS = 3
"""The number of choices that may exceed the limit in spite of their rows. Then no solution counts
as found."""
_MOST_TERMS = 200_000
"""The largest number of terms in all rows (d) for which all rows are written at once. Beyond it,
only broken rows are added."""
_ROW_ROUNDS, _NEW_ROWS = 40, 20
"""The largest number of times that broken rows are added, and the largest number of rows each time.
"""
_BETWEEN_SECONDS = 0.05
"""The seconds that must be left for another round of solving to begin."""
_BOUND_SAFETY = 1e-7
"""The share of a bound that is subtracted from it, because floating-point MILP solvers prove bounds
only up to their tolerances."""


Choices = dict[int, mathopt.Variable]
Pairs = dict[tuple[int, int], mathopt.Variable]
Windows = Mapping[int, Sequence[tuple[np.ndarray, np.ndarray]]]
"""For each window, the loads of each channel: by option (K,), and by cell of `Network.table`."""


@dataclass(frozen=True, eq=False)
class Formulation:
    """A network as a MathOpt model.

    - `choose`: the variables x by option, in the network's numbering.
    - `memory_rows`: the rows (d) by index in `Network.times`.
    - `cost_scale`: the factor by which costs were multiplied.
    """

    model: mathopt.Model
    choose: Choices
    memory_rows: dict[int, mathopt.LinearConstraint]
    cost_scale: float


def formulate(
    network: Network,
    windows: Windows | None = None,
    *,
    integral_pairs: bool = False,
    deadline: float = math.inf,
) -> Formulation:
    """Writes the model of a network.

    - `windows`: the loads for the constraints (e).
    - `integral_pairs`: whether y is integral, too, for solvers without continuous variables.
    - `deadline`: a reading of `time.monotonic`.

    **Raises:** `TimeoutError` at the deadline.
    """
    model = mathopt.Model(name="kiwi")
    scale = _cost_scale(network)
    choose = _add_choices(model, network)
    loads = windows or {}
    used = _used_edges(network, [table for channels in loads.values() for _, table in channels])
    pairs: list[Pairs] = []
    for edge in range(network.edge_count):
        if time.monotonic() > deadline:
            raise TimeoutError
        edge_pairs = _add_pairs(model, network, choose, edge, integral_pairs) if used[edge] else {}
        pairs.append(edge_pairs)
    objective = _terms(network, choose, pairs, (network.cost, network.table), scale)
    for window, channels in loads.items():
        longest = model.add_variable(lb=0.0, name=f"t[{window}]")
        objective.append(1.0 * longest)
        for channel, amounts in enumerate(channels):
            load = mathopt.fast_sum(_terms(network, choose, pairs, amounts, scale))
            model.add_linear_constraint(load - longest <= 0.0, name=f"load[{window},{channel}]")
    model.minimize(mathopt.fast_sum(objective))
    form = Formulation(model, choose, {}, scale)
    term_count = int((network.use_end - network.use_begin).sum())
    if network.limit_bytes < NO_LIMIT_BYTES and term_count <= _MOST_TERMS:
        _add_memory(form, network, range(len(network.times)))
    return form


def solve_network(
    network: Network,
    request: Request,
    hint: np.ndarray | None = None,
    windows: Windows | None = None,
) -> tuple[np.ndarray | None, float, bool]:
    """Solves the MILP of a network. Returns the choice found or None, the proven bound (+inf if
    infeasible), and whether the time ran out.

    Rows of memory that the choice breaks are added, and the model is solved again. The bound of
    each round is valid, since a model with fewer rows has a lower optimum. A solver meets rows only
    up to its tolerance. If a choice exceeds the limit by a few bytes in spite of its row, all rows
    are tightened by as many bytes, and later bounds do not count.
    """
    deadline, integral = request.deadline, request.solver == "cp-sat"
    try:
        form = formulate(network, windows, integral_pairs=integral, deadline=deadline)
    except TimeoutError:
        return None, -math.inf, True
    if hint is not None:
        _add_memory(form, network, _highest(usage_of(network, hint), 0, form))
    excess_bytes, bound, timed_out = 0, -math.inf, False
    repairs, additions = 0, 0
    while repairs < _REPAIR_ROUNDS and additions < _ROW_ROUNDS:
        seconds_left = deadline - time.monotonic()
        if seconds_left < _BETWEEN_SECONDS and additions + repairs:
            return None, bound, True
        settings = (seconds_left, request.seed, request.gap, _hint(form, network, hint))
        answer = solve_model(
            form.model, *settings, solver=request.solver, tree_nodes=request.tree_nodes
        )
        if not repairs:
            bound = max(bound, _bound(answer, form))
        timed_out = timed_out or answer.timed_out
        choice = _read(answer, form, network)
        if choice is None:
            return None, bound, timed_out
        usage = usage_of(network, choice)
        excess = int(usage.max(initial=0)) - network.limit_bytes
        if excess <= 0:
            return choice, bound, timed_out
        broken = _highest(usage, network.limit_bytes, form)
        if len(broken):
            additions += 1
            _add_memory(form, network, broken)
        else:
            repairs += 1
            excess_bytes += excess
        _tighten(form, network, excess_bytes)
    return None, bound, timed_out


def _cost_scale(network: Network) -> float:
    """Returns the factor that scales the sum of the median cost of every node and edge to
    `SCALED_COST`."""
    slices = [network.cost[network.option_slice(node)] for node in range(network.node_count)]
    tables = [network.edge_table(edge) for edge in range(network.edge_count)]
    total = 0.0
    for values in (*slices, *tables):
        finite = np.abs(values[np.isfinite(values)])
        total += float(np.median(finite)) if finite.size else 0.0
    return SCALED_COST / total if total > 0 else 1.0


def _add_choices(model: mathopt.Model, network: Network) -> Choices:
    """Adds the variables x, which it returns, and constraints (a)."""
    choose = {}
    for node, first in enumerate(network.option_start[:-1].tolist()):
        finite = np.isfinite(network.cost[network.option_slice(node)])
        for option in np.flatnonzero(finite).tolist():
            choose[first + option] = model.add_binary_variable(name=f"x[{node},{option}]")
        variables = [
            choose[first + option_in_node] for option_in_node in np.flatnonzero(finite).tolist()
        ]
        model.add_linear_constraint(mathopt.fast_sum(variables) == 1.0, name=f"one[{node}]")
    return choose


def _used_edges(network: Network, loads: Sequence[np.ndarray]) -> np.ndarray:
    """Returns, for each edge, whether it has a cost or a load, shape (E,)."""
    is_used = network.table != 0.0
    for table in loads:
        is_used |= table != 0.0
    return network.over_edges(np.logical_or, is_used).astype(np.bool_)


def _terms(
    network: Network,
    choose: Choices,
    pairs: Sequence[Pairs],
    amounts: tuple[np.ndarray, np.ndarray],
    scale: float,
) -> list:
    """Returns the terms of a sum: amounts by option and by cell, times the variables x and y."""
    cost, table = amounts
    terms = [float(cost[o]) * scale * x for o, x in choose.items() if cost[o]]
    for edge, edge_pairs in enumerate(pairs):
        start, columns = int(network.table_start[edge]), int(network.line_count[2 * edge + 1])
        cells = [(start + a * columns + b, y) for (a, b), y in edge_pairs.items()]
        terms += [float(table[k]) * scale * y for k, y in cells if table[k]]
    return terms


def _add_pairs(
    model: mathopt.Model, network: Network, choose: Choices, edge: int, integral: bool
) -> Pairs:
    """Adds the variables y of one edge, which it returns, and constraints (b) and (c)."""
    table = network.edge_table(edge)
    pairs = {
        (int(a), int(b)): model.add_variable(
            lb=0.0, ub=1.0, is_integer=integral, name=f"y[{edge},{a},{b}]"
        )
        for a, b in np.argwhere(np.isfinite(table))
    }
    for side, letter in ((0, "row"), (1, "column")):
        first = int(network.option_start[network.ends[edge, side]])
        members: dict[int, list] = {}
        for option, index in enumerate(network.lines(edge)[side].tolist(), first):
            if option in choose:
                members.setdefault(index, []).append(choose[option])
        lines: list[list] = [[] for _ in range(table.shape[side])]
        for pair, y in pairs.items():
            lines[pair[side]].append(y)
        for index, line in enumerate(lines):
            difference = mathopt.fast_sum(line) - mathopt.fast_sum(members.get(index, []))
            if line or members.get(index):
                model.add_linear_constraint(difference == 0.0, name=f"{letter}[{edge},{index}]")
    return pairs


def _highest(usage: np.ndarray, above_bytes: int, form: Formulation) -> np.ndarray:
    """Returns the highest local maxima of memory use that exceed `above_bytes` and have no row yet,
    at most `_NEW_ROWS`, as indices in `Network.times`."""
    if not len(usage):
        return np.zeros(0, dtype=np.int64)
    before, after = np.append(usage[:1] - 1, usage[:-1]), np.append(usage[1:], usage[-1:] - 1)
    tops = np.flatnonzero((usage > above_bytes) & (usage > before) & (usage >= after))
    new = np.array([t for t in tops.tolist() if t not in form.memory_rows], dtype=np.int64)
    return new[np.argsort(-usage[new], kind="stable")][:_NEW_ROWS]


def _add_memory(form: Formulation, network: Network, times: Iterable[int]) -> None:
    """Adds constraints (d), scaled to `SCALED_LIMIT`. `times`: indices in `Network.times`."""
    unit = SCALED_LIMIT / max(network.limit_bytes, 1)
    owner = owners(network.use_start)
    for position in times:
        is_alive = (network.use_begin <= position) & (position < network.use_end)
        held = np.bincount(owner[is_alive], network.use_bytes[is_alive])
        terms = [
            float(held[option]) * unit * form.choose[option]
            for option in np.flatnonzero(held).tolist()
            if option in form.choose
        ]
        form.memory_rows[int(position)] = form.model.add_linear_constraint(
            mathopt.fast_sum(terms) <= network.limit_bytes * unit,
            name=f"mem[{network.times[position]}]",
        )


def _tighten(form: Formulation, network: Network, excess_bytes: int) -> None:
    unit = SCALED_LIMIT / max(network.limit_bytes, 1)
    for row in form.memory_rows.values():
        row.upper_bound = (network.limit_bytes - excess_bytes) * unit


def _hint(form: Formulation, network: Network, choice: np.ndarray | None) -> Hint:
    if choice is None:
        return None
    taken_options = set((network.option_start[:-1] + choice).tolist())
    return {x: float(option in taken_options) for option, x in form.choose.items()}


def _bound(answer: MilpAnswer, form: Formulation) -> float:
    if math.isinf(answer.bound):
        return answer.bound
    return (answer.bound - _BOUND_SAFETY * abs(answer.bound)) / form.cost_scale


def _read(answer: MilpAnswer, form: Formulation, network: Network) -> np.ndarray | None:
    if answer.values is None:
        return None
    values = np.full(network.option_count, -1.0)
    values[list(form.choose)] = [answer.values[x] for x in form.choose.values()]
    nodes = range(network.node_count)
    return np.array([np.argmax(values[network.option_slice(i)]) for i in nodes], dtype=np.int64)
