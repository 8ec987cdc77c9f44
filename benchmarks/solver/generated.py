"""`python -m benchmarks.solver.generated`: made instances, one half to tune on, one only measured.

An instance is made from its number alone: Kiwi's own problem of GPT layers on some mesh, or
made-up layers (`layered`); costs perturbed; with or without hubs, nodes that many others must agree
with; costs as seconds or as large integers; and a limit between the least peak and that of a
plan without one. Even numbers are for tuning, odd ones are only ever measured.

Each is searched for `--rounds` rounds, and by every method with ten times the work: ten times the
rounds with another seed, and toulbar2 and HiGHS for as long as that took. Writes
results/generated.json and results/generated.md: how far the first is from the best of all.
"""

import argparse
import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.solver.layered import layered_problem
from benchmarks.solver.models import model_problem
from kiwi.solver import Edge, Node, Problem, SolveResult, solve
from kiwi.solver.least_peak import least_peak
from kiwi.solver.network import build_network
from kiwi.solver.presolve.pipeline import presolve

RESULTS = Path(__file__).parent / "results"
_SOURCES = (("layered", 1), ("layered", 2), ("gpt", 1), ("layered", 4), ("gpt", 2))
_MESHES = ((2, 4), (8,), (2, 2), (4, 4))
_INTEGER_COST = 1e9
_HUB_OPTIONS, _HUB_SHARE = 12, 0.2
_TIGHTNESS = (0.05, 0.15, 0.3, 0.5, 0.8)
"""Where the limit lies between the least peak found and the peak without a limit."""


@dataclass(frozen=True)
class Case:
    """What an instance is made from."""

    number: int
    source: str
    layers: int
    mesh_shape: tuple[int, ...]
    spread: float
    hubs: int
    integral: bool
    tightness: float

    @property
    def half(self) -> str:
        """Which half the instance belongs to."""
        return "measured" if self.number % 2 else "tuning"


@dataclass(frozen=True)
class Row:
    """One instance, searched; shares are of the best cost of all methods."""

    case: Case
    objective: float | None
    gap: float | None
    best: float | None
    best_solver: str
    seconds: float

    @property
    def excess(self) -> float | None:
        """By which share the cost lies above the best."""
        if self.objective is None or self.best is None:
            return None
        return self.objective / self.best - 1.0


def case(number: int) -> Case:
    """The case of a number; halves have the same mixture."""
    rng = np.random.default_rng(number)
    kind = number // 2
    source, layers = _SOURCES[kind % len(_SOURCES)]
    return Case(
        number=number,
        source=source,
        layers=layers,
        mesh_shape=_MESHES[int(rng.integers(len(_MESHES)))],
        spread=float(rng.choice([0.02, 0.1, 0.5])),
        hubs=int(rng.choice([0, 0, 2])),
        integral=bool(rng.integers(2)),
        tightness=_TIGHTNESS[(kind // len(_SOURCES) + kind) % len(_TIGHTNESS)],
    )


def instance(made: Case) -> Problem:
    """The problem of a case."""
    rng = np.random.default_rng([made.number, 1])
    problem = perturbed(_source(made.source, made.layers, made.mesh_shape), made.spread, rng)
    for _ in range(made.hubs):
        problem = with_hub(problem, rng)
    if made.integral:
        problem = _scaled(problem, _INTEGER_COST)
    return limited(problem, made.tightness)


@functools.lru_cache(maxsize=4)
def _source(source: str, layers: int, mesh_shape: tuple[int, ...]) -> Problem:
    if source == "layered":
        return layered_problem(layers, seed=sum(mesh_shape))
    return model_problem(layers, mesh_shape)


def perturbed(problem: Problem, spread: float, rng: np.random.Generator) -> Problem:
    """Every cost times a factor of its own, log-normal."""
    nodes = tuple(replace(n, costs=_noisy(n.costs, spread, rng), parts={}) for n in problem.nodes)
    edges = tuple(replace(e, costs=_noisy(e.costs, spread, rng), parts={}) for e in problem.edges)
    return replace(problem, nodes=nodes, edges=edges)


def _noisy(costs: np.ndarray, spread: float, rng: np.random.Generator) -> np.ndarray:
    return costs * np.exp(spread * rng.standard_normal(costs.shape)) if spread else costs


def with_hub(problem: Problem, rng: np.random.Generator) -> Problem:
    """A free node more; each option suits a random part of the options of a fifth of the others,
    and costs a typical edge with the rest."""
    hub = Node("hub", np.zeros(_HUB_OPTIONS), ((),) * _HUB_OPTIONS)
    chosen = rng.permutation(len(problem.nodes))[: int(_HUB_SHARE * len(problem.nodes))]
    finite = [n.costs[np.isfinite(n.costs)] for n in problem.nodes]
    typical = float(np.median(np.concatenate(finite)))
    edges = []
    for node in sorted(chosen.tolist()):
        suits = rng.random((problem.nodes[node].costs.size, _HUB_OPTIONS)) < 0.5
        edges.append(Edge(node, len(problem.nodes), np.where(suits, 0.0, typical)))
    return replace(problem, nodes=(*problem.nodes, hub), edges=(*problem.edges, *edges))


def _scaled(problem: Problem, factor: float) -> Problem:
    """Costs in integers."""
    nodes = tuple(replace(n, costs=np.rint(factor * n.costs)) for n in problem.nodes)
    edges = tuple(replace(e, costs=np.rint(factor * e.costs)) for e in problem.edges)
    return replace(problem, nodes=nodes, edges=edges)


def limited(problem: Problem, tightness: float) -> Problem:
    """A limit between the least peak found and the peak of a plan without a limit."""
    free = solve(replace(problem, limit_bytes=None), solver="lagrangian", round_limit=2)
    assert free.peak_bytes is not None
    net = presolve(build_network(replace(problem, limit_bytes=free.peak_bytes // 100))).net
    least = least_peak(net, 0, np.inf, free.peak_bytes).found_bytes
    assert least is not None
    return replace(problem, limit_bytes=int(least + tightness * (free.peak_bytes - least)))


def measure(made: Case, rounds: int) -> Row:
    """Searches one instance, and again with ten times the work."""
    problem = instance(made)
    result = solve(problem, gap=0.0, round_limit=rounds, time_limit_seconds=1e6)
    more = solve(problem, gap=0.0, seed=1, round_limit=10 * rounds, time_limit_seconds=1e6)
    others = [result, more]
    for solver in ("toulbar2", "highs"):
        others.append(solve(problem, solver=solver, gap=0.0, time_limit_seconds=more.seconds))
    best = min(others, key=_cost)
    return Row(made, result.objective, result.gap, best.objective, best.solver, result.seconds)


def _cost(result: SolveResult) -> float:
    return np.inf if result.objective is None else result.objective


def table(rows: Sequence[Row]) -> str:
    """Markdown: each half summed up, then one row per instance."""
    lines = [
        "| half | instances | within 0.5 % of the best | worst | mean gap to the bound |",
        "| --- | --- | --- | --- | --- |",
    ]
    for half in ("tuning", "measured"):
        mine = [row for row in rows if row.case.half == half]
        excess = [np.inf if row.excess is None else row.excess for row in mine]
        gaps = [row.gap for row in mine if row.gap is not None]
        if mine:
            close = sum(share <= 0.005 for share in excess)
            lines.append(
                f"| {half} | {len(mine)} | {close / len(mine):.0%} | {max(excess):.2%} "
                f"| {np.mean(gaps) if gaps else np.nan:.2%} |"
            )
    head = (
        "| number | from | mesh | spread | hubs | integers | limit | above best | gap | best by |"
    )
    lines += ["", head, "| --- " * 10 + "|"]
    for row in rows:
        made = row.case
        excess_text = "no solution" if row.excess is None else f"{row.excess:.3%}"
        gap = "-" if row.gap is None else f"{row.gap:.3%}"
        lines.append(
            f"| {made.number} | {made.source} x {made.layers} | {made.mesh_shape} | {made.spread} "
            f"| {made.hubs} | {made.integral} | {made.tightness} | {excess_text} | {gap} "
            f"| {row.best_solver} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs the numbers asked for and writes the results."""
    options = _arguments()
    rows = []
    for number in range(*options.numbers):
        rows.append(measure(case(number), options.rounds))
        print(rows[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "generated.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    (RESULTS / "generated.md").write_text(table(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", nargs=2, type=int, default=(0, 40), metavar=("FROM", "TO"))
    parser.add_argument("--rounds", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    main()
