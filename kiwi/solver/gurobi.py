"""A MathOpt model solved by gurobipy, where it is installed and its licence fits the model.

The wheel of gurobipy comes with a licence for at most 2000 variables and 2000 constraints.
"""

import math

from ortools.math_opt.python import mathopt

from kiwi.errors import SolverUnavailableError
from kiwi.solver.answer import Hint, MilpAnswer


def solve_with_gurobi(
    model: mathopt.Model, seconds: float, seed: int, gap: float, hint: Hint
) -> MilpAnswer:
    """Solves `model`, a minimisation without quadratic terms.

    Raises `SolverUnavailableError` where gurobipy is missing or refuses the model.
    """
    try:
        import gurobipy
    except ImportError as error:
        raise SolverUnavailableError(
            "gurobipy is not installed.", suggestion="pip install kiwi-planner[gurobi]"
        ) from error
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as copy:
            variables = _copy_model(gurobipy, model, copy, hint)
            copy.Params.TimeLimit = seconds
            copy.Params.Seed = seed
            copy.Params.MIPGap = gap
            copy.Params.Threads = 1
            copy.optimize()
            return _answer(gurobipy, copy, variables)
    except gurobipy.GurobiError as error:
        raise SolverUnavailableError(
            f"Gurobi declined: {error}",
            cause="the licence does not fit the model",
            suggestion='install a full licence, or use solver="auto"',
        ) from error


def _copy_model(gurobipy, model, copy, hint):
    variables = {}
    for variable in model.variables():
        kind = gurobipy.GRB.INTEGER if variable.integer else gurobipy.GRB.CONTINUOUS
        twin = copy.addVar(lb=variable.lower_bound, ub=variable.upper_bound, vtype=kind)
        if hint is not None and variable in hint:
            twin.Start = hint[variable]
        variables[variable] = twin
    for row in model.linear_constraints():
        terms = [(row.get_coefficient(v), variables[v]) for v in model.row_nonzeros(row)]
        left = gurobipy.LinExpr(terms)
        if row.lower_bound == row.upper_bound:
            copy.addLConstr(left, gurobipy.GRB.EQUAL, row.upper_bound)
            continue
        if math.isfinite(row.upper_bound):
            copy.addLConstr(left, gurobipy.GRB.LESS_EQUAL, row.upper_bound)
        if math.isfinite(row.lower_bound):
            copy.addLConstr(left, gurobipy.GRB.GREATER_EQUAL, row.lower_bound)
    objective = model.objective
    costs = [(term.coefficient, variables[term.variable]) for term in objective.linear_terms()]
    copy.setObjective(gurobipy.LinExpr(costs) + objective.offset, gurobipy.GRB.MINIMIZE)
    return variables


def _answer(gurobipy, copy, variables) -> MilpAnswer:
    if copy.Status == gurobipy.GRB.INFEASIBLE:
        return MilpAnswer(None, math.inf, False)
    timed_out = copy.Status == gurobipy.GRB.TIME_LIMIT
    values = {v: twin.X for v, twin in variables.items()} if copy.SolCount else None
    return MilpAnswer(values, float(copy.ObjBound), timed_out)
