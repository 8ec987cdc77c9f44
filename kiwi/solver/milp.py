"""The problem as a mixed-integer linear program, written once in MathOpt for several solvers.

Sets: nodes i with options o; edges e = (i, j) with pairs (A, B) of option classes (options whose
lines in the edge's table are equal, see `network`); the points of time t that can bind.

Variables: x[i, o] in {0, 1}, 1 where node i takes option o; y[e, A, B] in [0, 1], 1 where the
options of i and j lie in the classes A and B. Where x is integral, so is y.

Objective: min sum cost[i, o] x[i, o] + sum table[e, A, B] y[e, A, B]

Constraints:
(a) one[i]:        sum_o x[i, o] = 1
(b) row[e, A]:     sum_B y[e, A, B] = sum_{o in A} x[i, o]
(c) column[e, B]:  sum_A y[e, A, B] = sum_{o in B} x[j, o]
(d) mem[t]:        sum_{i, o} bytes[i, o, t] x[i, o] <= limit

Forbidden options and pairs get no variable. This is the local polytope of the cost network
(Schlesinger 1976; Wainwright and Jordan 2008, section 4.1) with rows for memory.
"""

import math
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from ortools.math_opt.python import mathopt

from kiwi.solver.answer import MilpAnswer
from kiwi.solver.gurobi import solve_with_gurobi
from kiwi.solver.mathopt_run import solve_with_mathopt
from kiwi.solver.network import NO_LIMIT_BYTES, Network, build_network
from kiwi.solver.outcome import conclude
from kiwi.solver.presolve import presolve
from kiwi.solver.prices import usage_of
from kiwi.solver.problem import Problem
from kiwi.solver.result import SolveResult

SCALED_COST = 1e4
"""Costs are scaled to this order of magnitude: tolerances of the solvers are absolute."""

SCALED_LIMIT = 1e3
"""Memory rows are scaled to this right-hand side, for the same reason."""

_REPAIR_ROUNDS = 3
_BOUND_SAFETY = 1e-7
"""Floating-point MILP solvers prove bounds up to their tolerances; this much is given back."""


@dataclass(frozen=True, eq=False)
class Formulation:
    """The model, its variables x by (node, option), its rows (d), and the factor that scaled the
    costs."""

    model: mathopt.Model
    choose: dict[tuple[int, int], mathopt.Variable]
    memory_rows: list[mathopt.LinearConstraint]
    cost_scale: float


def formulate(network: Network, *, integral_pairs: bool = False) -> Formulation:
    """Writes the model. `integral_pairs` makes y integral too, for solvers that know no other."""
    model = mathopt.Model(name="kiwi")
    scale = _cost_scale(network)
    choose = _add_choices(model, network)
    objective = [network_cost * scale * x for network_cost, x in _costs_of(network, choose)]
    for edge in range(network.edge_count):
        objective += _add_pairs(model, network, choose, edge, scale, integral_pairs)
    rows = _add_memory(model, network, choose)
    model.minimize(mathopt.fast_sum(objective))
    return Formulation(model, choose, rows, scale)


def solve_milp(
    problem: Problem,
    *,
    solver: str,
    time_limit_seconds: float,
    seed: int,
    gap: float,
    warm_start: tuple[int, ...] | None = None,
) -> SolveResult:
    """Presolves `problem`, and solves what is left with one of the MILP solvers."""
    reduction = presolve(build_network(problem))
    if reduction.infeasible:
        return conclude(problem, None, math.inf, solver=solver)
    hint = None
    if warm_start is not None:
        hint = reduction.lower(np.array(warm_start, dtype=np.int64))
    choice, bound, timed_out = solve_network(
        reduction.net,
        solver=solver,
        time_limit_seconds=time_limit_seconds,
        seed=seed,
        gap=gap,
        hint=hint,
    )
    solution = warm_start if choice is None else reduction.lift(choice).tolist()
    return conclude(
        problem, solution, bound, solver=solver, iterations=1, deterministic=not timed_out
    )


def solve_network(
    network: Network,
    *,
    solver: str,
    time_limit_seconds: float,
    seed: int,
    gap: float,
    hint: np.ndarray | None = None,
) -> tuple[np.ndarray | None, float, bool]:
    """The choice found or None, the proven bound (+inf: infeasible), and whether time ran out.

    The memory rows hold up to the solver's tolerance only; where a few bytes too many are held,
    the rows are tightened by as much and the model is solved again. The bound of the first round
    holds for the network.
    """
    deadline = time.monotonic() + time_limit_seconds
    form = formulate(network, integral_pairs=solver == "cp-sat")
    run = solve_with_gurobi if solver == "gurobi" else partial(solve_with_mathopt, solver=solver)
    excess_bytes = 0
    bound, timed_out = -math.inf, False
    for round_index in range(_REPAIR_ROUNDS):
        _tighten(form, network, excess_bytes)
        answer = run(
            form.model,
            time_limit_seconds=deadline - time.monotonic(),
            seed=seed,
            gap=gap,
            hint=_hint(form, hint),
        )
        if round_index == 0:
            bound = _bound(answer, form)
        timed_out = timed_out or answer.timed_out
        choice = _read(answer, form, network)
        if choice is None:
            return None, bound, timed_out
        excess = int(usage_of(network, choice).max(initial=0)) - network.limit_bytes
        if excess <= 0:
            return choice, bound, timed_out
        excess_bytes += excess
    return None, bound, timed_out


def _cost_scale(network: Network) -> float:
    """Brings a plausible objective, every node and edge at a middling price, to `SCALED_COST`."""
    slices = [network.cost[network.option_slice(node)] for node in range(network.node_count)]
    tables = [network.edge_table(edge) for edge in range(network.edge_count)]
    total = 0.0
    for values in (*slices, *tables):
        finite = np.abs(values[np.isfinite(values)])
        total += float(np.median(finite)) if finite.size else 0.0
    return SCALED_COST / total if total > 0 else 1.0


def _add_choices(model: mathopt.Model, network: Network) -> dict[tuple[int, int], mathopt.Variable]:
    """Variables x and constraints (a)."""
    choose = {}
    for node in range(network.node_count):
        costs = network.cost[network.option_slice(node)]
        for option in np.flatnonzero(np.isfinite(costs)):
            choose[node, int(option)] = model.add_binary_variable(name=f"x[{node},{option}]")
        mine = [choose[node, int(o)] for o in np.flatnonzero(np.isfinite(costs))]
        model.add_linear_constraint(mathopt.fast_sum(mine) == 1.0, name=f"one[{node}]")
    return choose


def _costs_of(network: Network, choose: dict) -> list[tuple[float, mathopt.Variable]]:
    return [
        (float(network.cost[network.option_start[node] + option]), x)
        for (node, option), x in choose.items()
    ]


def _add_pairs(
    model: mathopt.Model,
    network: Network,
    choose: dict,
    edge: int,
    scale: float,
    integral: bool,
) -> list:
    """Variables y of one edge, constraints (b) and (c); returns its terms of the objective."""
    table = network.edge_table(edge)
    if not table.any():
        return []
    pairs = {
        (int(a), int(b)): model.add_variable(
            lb=0.0, ub=1.0, is_integer=integral, name=f"y[{edge},{a},{b}]"
        )
        for a, b in np.argwhere(np.isfinite(table))
    }
    nodes = (int(network.tail[edge]), int(network.head[edge]))
    for side, letter in ((0, "row"), (1, "column")):
        members = _members(network.classes(edge)[side], nodes[side], choose)
        lines: list[list] = [[] for _ in range(table.shape[side])]
        for pair, y in pairs.items():
            lines[pair[side]].append(y)
        for index, line in enumerate(lines):
            both = mathopt.fast_sum(line) - mathopt.fast_sum(members.get(index, []))
            if line or members.get(index):
                model.add_linear_constraint(both == 0.0, name=f"{letter}[{edge},{index}]")
    return [float(table[pair]) * scale * y for pair, y in pairs.items()]


def _members(classes: np.ndarray, node: int, choose: dict) -> dict[int, list]:
    members: dict[int, list] = {}
    for option, line in enumerate(classes):
        if (node, option) in choose:
            members.setdefault(int(line), []).append(choose[node, option])
    return members


def _add_memory(model: mathopt.Model, network: Network, choose: dict) -> list:
    """Constraints (d), scaled to `SCALED_LIMIT`."""
    if network.limit_bytes == NO_LIMIT_BYTES:
        return []
    unit = SCALED_LIMIT / max(network.limit_bytes, 1)
    terms: list[list] = [[] for _ in network.times]
    for (node, option), x in choose.items():
        flat = network.option_start[node] + option
        for use in range(network.use_start[flat], network.use_start[flat + 1]):
            for t in range(network.use_begin[use], network.use_end[use]):
                terms[t].append(float(network.use_bytes[use]) * unit * x)
    limit = network.limit_bytes * unit
    return [
        model.add_linear_constraint(mathopt.fast_sum(line) <= limit, name=f"mem[{time}]")
        for time, line in zip(network.times, terms, strict=True)
    ]


def _tighten(form: Formulation, network: Network, excess_bytes: int) -> None:
    unit = SCALED_LIMIT / max(network.limit_bytes, 1)
    for row in form.memory_rows:
        row.upper_bound = (network.limit_bytes - excess_bytes) * unit


def _hint(form: Formulation, choice: np.ndarray | None) -> dict[mathopt.Variable, float] | None:
    if choice is None:
        return None
    return {x: float(choice[node] == option) for (node, option), x in form.choose.items()}


def _bound(answer: MilpAnswer, form: Formulation) -> float:
    if math.isinf(answer.bound):
        return answer.bound
    return (answer.bound - _BOUND_SAFETY * abs(answer.bound)) / form.cost_scale


def _read(answer: MilpAnswer, form: Formulation, network: Network) -> np.ndarray | None:
    if answer.values is None:
        return None
    count = network.node_count
    choice, most = np.zeros(count, dtype=np.int64), np.full(count, -1.0)
    for (node, option), x in form.choose.items():
        if answer.values[x] > most[node]:
            choice[node], most[node] = option, answer.values[x]
    return choice
