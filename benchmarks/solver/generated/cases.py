"""The choices that an instance is made from, and the instance.

The number of an instance determines it: Kiwi's problem of an example on some mesh, or generated
layers; perturbed costs; with or without hubs, which are nodes that many other nodes must agree
with; costs as seconds or as large integers; and a limit near a point of interest. Even numbers are
for tuning, odd numbers are only measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.solver.generated.models import MODELS
from benchmarks.solver.generated.sources import LAYERED, source
from kiwi.solver import Edge, Node, Problem, SolveResult, solve
from kiwi.solver.least_peak import least_peak
from kiwi.solver.network import build_network
from kiwi.solver.presolve.pipeline import presolve

_NAMES = (*MODELS, *[LAYERED] * 3)
_LAYERS = dict.fromkeys(MODELS, (1, 1, 2)) | {LAYERED: (1, 2, 4), "encoder_decoder": (1, 1, 1)}
_MESHES = ((8,), (4,), (2, 2), (2, 4))
_PROFILES = ("v100-sxm2", "h100-sxm")
_SPREADS = (0.0, 0.02, 0.1, 0.5)
_HUBS = (0, 0, 2)
POINTS = ("least", "between", "free", "by hand")
"""Points of interest: the least peak that was found, the middle between it and the peak of a
solution without a limit, the peak of a solution without a limit, and the peak of a solution with
arguments sharded by hand."""
_FACTORS = (0.85, 1.1)
_ROOM = 1.02
"""The limit is at least the least peak that was found, times this factor."""
_INTEGER_COST = 1e9
_HUB_OPTIONS, _HUB_SHARE = 12, 0.2
_FREE_ROUNDS = 2


@dataclass(frozen=True)
class Case:
    """The choices that an instance is made from. `factor`: the limit, as a share of the point of
    interest."""

    number: int
    name: str
    layers: int
    mesh_shape: tuple[int, ...]
    profile: str
    spread: float
    hubs: int
    integral: bool
    point: str
    factor: float

    @property
    def half(self) -> str:
        """The half that the instance belongs to."""
        return "measured" if self.number % 2 else "tuning"


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem, and for each hand-written sharding the problem with the choices that the sharding
    fixes."""

    problem: Problem
    starts: dict[str, Problem]


def case(number: int) -> Case:
    """Returns the case of a number. Every example occurs equally often in both halves."""
    rng = np.random.default_rng(number)
    name = _NAMES[number // 2 % len(_NAMES)]
    mesh_shape = _MESHES[int(rng.integers(len(_MESHES)))]
    return Case(
        number=number,
        name=name,
        layers=int(rng.choice(_LAYERS[name])),
        mesh_shape=mesh_shape,
        profile=str(rng.choice(_PROFILES)),
        spread=float(rng.choice(_SPREADS)),
        hubs=int(rng.choice(_HUBS)),
        integral=bool(rng.integers(2)),
        point=str(rng.choice(POINTS)),
        factor=float(np.round(rng.uniform(*_FACTORS), 3)),
    )


def instance(made: Case, limit_bytes: int | None = None) -> Instance:
    """Returns the instance of a case. Short searches find its limit. A recorded limit should be
    passed, so that the instance stays the same if the search changes."""
    rng = np.random.default_rng([made.number, 1])
    origin = source(made.name, made.layers, made.mesh_shape, made.profile)
    problem = perturbed(origin.problem, made.spread, rng)
    for _ in range(made.hubs):
        problem = with_hub(problem, rng)
    if made.integral:
        problem = scaled(problem, _INTEGER_COST)
    starts = {name: fixed(problem, options) for name, options in origin.starts.items()}
    limit_bytes = limit_bytes or _limit_bytes(made, problem, starts)
    return Instance(
        replace(problem, limit_bytes=limit_bytes),
        {name: replace(start, limit_bytes=limit_bytes) for name, start in starts.items()},
    )


def fingerprint(problem: Problem) -> str:
    """Returns sums that distinguish an instance from the instance of the same number in another
    version of the examples or of their problems."""
    held = sum(
        use.bytes * (use.end - use.start) for n in problem.nodes for o in n.usage for use in o
    )
    costs = (part.costs for part in (*problem.nodes, *problem.edges))
    cost = sum(float(cost_table[np.isfinite(cost_table)].sum()) for cost_table in costs)
    cells = sum(edge.costs.size for edge in problem.edges)
    return f"{len(problem.nodes)} {problem.option_count} {cells} {held} {cost:.6e}"


def perturbed(problem: Problem, spread: float, rng: np.random.Generator) -> Problem:
    """Returns the problem with every cost multiplied by a separate log-normal factor."""
    if not spread:
        return problem
    nodes = tuple(replace(n, costs=_noisy(n.costs, spread, rng), parts={}) for n in problem.nodes)
    edges = tuple(replace(e, costs=_noisy(e.costs, spread, rng), parts={}) for e in problem.edges)
    return replace(problem, nodes=nodes, edges=edges)


def _noisy(costs: np.ndarray, spread: float, rng: np.random.Generator) -> np.ndarray:
    return costs * np.exp(spread * rng.standard_normal(costs.shape))


def with_hub(problem: Problem, rng: np.random.Generator) -> Problem:
    """Returns the problem with one more node without costs. Each of its options suits a random part
    of the options of a fifth of the other nodes, and costs a typical node's cost with the rest."""
    hub = Node("hub", np.zeros(_HUB_OPTIONS), ((),) * _HUB_OPTIONS)
    chosen = rng.permutation(len(problem.nodes))[: int(_HUB_SHARE * len(problem.nodes))]
    positive = [n.costs[np.isfinite(n.costs) & (n.costs > 0)] for n in problem.nodes]
    typical = float(np.median(np.concatenate(positive)))
    edges = []
    for node in sorted(chosen.tolist()):
        suits = rng.random((problem.nodes[node].costs.size, _HUB_OPTIONS)) < 0.5
        edges.append(Edge(node, len(problem.nodes), np.where(suits, 0.0, typical)))
    return replace(problem, nodes=(*problem.nodes, hub), edges=(*problem.edges, *edges))


def scaled(problem: Problem, factor: float) -> Problem:
    """Returns the problem with costs multiplied by `factor` and rounded to integers."""
    nodes = tuple(replace(n, costs=np.rint(factor * n.costs), parts={}) for n in problem.nodes)
    edges = tuple(replace(e, costs=np.rint(factor * e.costs), parts={}) for e in problem.edges)
    return replace(problem, nodes=nodes, edges=edges)


def fixed(problem: Problem, options: Mapping[int, int]) -> Problem:
    """Returns the problem in which some nodes have only one option."""
    nodes = list(problem.nodes)
    for i, option in options.items():
        costs = np.where(np.arange(nodes[i].costs.size) == option, nodes[i].costs, np.inf)
        nodes[i] = replace(nodes[i], costs=costs, parts={})
    return replace(problem, nodes=tuple(nodes))


def _limit_bytes(made: Case, problem: Problem, starts: dict[str, Problem]) -> int:
    free = _free(problem)
    net = presolve(build_network(replace(problem, limit_bytes=_peak(free) // 100))).net
    least = least_peak(net, 0, np.inf, _peak(free)).found_bytes
    assert least is not None
    by_hand = [
        _peak(hand_result) for start in starts.values() if (hand_result := _free(start)).solution
    ]
    points = {
        "least": least,
        "between": (least + _peak(free)) // 2,
        "free": _peak(free),
        "by hand": min(by_hand, default=_peak(free)),
    }
    return int(max(made.factor * points[made.point], _ROOM * least))


def _free(problem: Problem) -> SolveResult:
    return solve(problem, solver="lagrangian", round_limit=_FREE_ROUNDS, time_limit_seconds=1e6)


def _peak(result: SolveResult) -> int:
    assert result.peak_bytes is not None
    return result.peak_bytes
