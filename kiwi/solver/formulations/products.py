"""Products of a binary decision with a one-hot choice, without products.

`b * s[o]` for `sum(o) s[o] = 1` becomes variables `p[o] <= s[o]` with `sum(o) p[o] = b`: exact
where `s` is integral, and the tightest linear relaxation there is (the convex hull).
"""

from collections.abc import Sequence

from ortools.math_opt.python import mathopt

Linear = mathopt.LinearTypes


def one_hot(model: mathopt.Model, count: int, name: str) -> list[mathopt.Variable]:
    """`count` binaries of which one is chosen (Eq. 21)."""
    chosen = [model.add_binary_variable(name=f"{name}[{o}]") for o in range(count)]
    model.add_linear_constraint(mathopt.fast_sum(chosen) == 1.0, name=f"one {name}")
    return chosen


def times(
    model: mathopt.Model, decision: Linear, chosen: Sequence[mathopt.Variable], name: str
) -> list[mathopt.Variable]:
    """The product of a decision in [0, 1] with each entry of a one-hot choice."""
    parts = [model.add_variable(lb=0.0, ub=1.0, name=f"{name}[{o}]") for o in range(len(chosen))]
    model.add_linear_constraint(mathopt.fast_sum(parts) == decision, name=f"sum {name}")
    if len(parts) > 1:
        for o, (part, whole) in enumerate(zip(parts, chosen, strict=True)):
            model.add_linear_constraint(part <= whole, name=f"only {name}[{o}]")
    return parts


def dot(weights: Sequence[float], variables: Sequence[Linear]) -> Linear:
    """The weighted sum; zero weights are left out."""
    pairs = zip(weights, variables, strict=True)
    return mathopt.fast_sum(w * v for w, v in pairs if w)


def pair_cost(
    model: mathopt.Model,
    seconds,
    tail: Sequence[mathopt.Variable],
    head: Sequence[Linear],
    name: str,
) -> Linear:
    """The resharding cost of a pair of choices, Eq. 22-23 as flows from `tail` to `head`.

    `head` may sum to less than one (a recomputation that may not happen): then the flow does.
    """
    if not seconds.any():
        return 0.0
    rows, columns = seconds.shape
    e = [
        [model.add_variable(lb=0.0, ub=1.0, name=f"{name}[{o},{p}]") for p in range(columns)]
        for o in range(rows)
    ]
    for p in range(columns):
        into = mathopt.fast_sum(e[o][p] for o in range(rows))
        model.add_linear_constraint(into == head[p], name=f"head {name}[{p}]")
    for o in range(rows):
        model.add_linear_constraint(mathopt.fast_sum(e[o]) <= tail[o], name=f"tail {name}[{o}]")
    return mathopt.fast_sum(
        float(seconds[o, p]) * e[o][p] for o in range(rows) for p in range(columns)
    )
