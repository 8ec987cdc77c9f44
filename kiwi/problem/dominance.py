"""Strategies that can be left out without losing an optimal plan.

Strategy s is dominated by t if t, with resharding before and after it, does what s does for
no more time and no more memory:

    own(t) + m sum over reads R(s.read -> t.read) + 2 n R(t.result -> s.result) <= own(s)

where m and n count how often operands and results are resharded in a step, in all iterations of
loops, and the factor 2 covers readers that are recomputed.
Replacing s by t then never makes a plan worse, because resharding costs obey the triangle
inequality. The typical victim computes a large matmul redundantly along a mesh axis.

Before, strategies whose partial sums XLA all-reduces and then cuts (`cuts_sums`) make way for
those that compute the same and scatter as far. This may lose a plan, of which such a sum's layout
is the point; on three axes it halves the problem.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import ReshardingTable
from kiwi.problem.strategies import ShardingStrategy

Tables = Callable[[int], ReshardingTable]
"""By value, the table between its layouts."""


def undominated(
    units: UnitGraph,
    unit: Unit,
    table: Tables,
    strategies: Sequence[ShardingStrategy],
) -> tuple[ShardingStrategy, ...]:
    """The strategies that are left, in order."""
    strategies = _without_cut_sums(strategies)
    if len(strategies) < 2:
        return tuple(strategies)
    own = np.array([s.compute_seconds + s.communication_seconds for s in strategies])
    held = np.array([s.result_bytes for s in strategies])
    workspace = np.array([sum(s.buffers_while_running) for s in strategies])
    # detour[s, t]: seconds of doing t where s is wanted.
    detour = own[None, :] + units.operand_trips(unit) * _reads_seconds(unit, table, strategies)
    detour += _results_seconds(units, unit, table, strategies)
    fits = held[None, :] <= held[:, None]
    fits &= workspace[None, :] <= workspace[:, None]
    better = fits & (detour < own[:, None])
    alive = np.ones(len(strategies), dtype=bool)
    # From the costliest on: a strategy may only be replaced by one that stays.
    for s in np.argsort(-own, kind="stable"):
        alive[s] = not (better[s] & alive).any()
    return tuple(s for s, keep in zip(strategies, alive, strict=True) if keep)


def _without_cut_sums(strategies: Sequence[ShardingStrategy]) -> Sequence[ShardingStrategy]:
    """Those kept whose result is smaller than any scattered one from the same operands."""
    least_bytes: dict[object, int] = {}
    for s in strategies:
        if not s.cuts_sums:
            least_bytes[s.reads] = min(s.result_bytes, least_bytes.get(s.reads, s.result_bytes))
    return [
        s
        for s in strategies
        if not s.cuts_sums or least_bytes.get(s.reads, s.result_bytes + 1) > s.result_bytes
    ]


def _reads_seconds(unit: Unit, table: Tables, strategies: Sequence[ShardingStrategy]) -> np.ndarray:
    total = np.zeros((len(strategies), len(strategies)))
    for read, (value, _) in enumerate(unit.rule.reads):
        layouts = [s.reads[read] for s in strategies]
        total += table(value).seconds_matrix(layouts, layouts)
    return total


def _results_seconds(
    units: UnitGraph,
    unit: Unit,
    table: Tables,
    strategies: Sequence[ShardingStrategy],
) -> np.ndarray:
    total = np.zeros((len(strategies), len(strategies)))
    for k, value in enumerate(unit.outputs):
        layouts = [s.results[k] for s in strategies]
        total += 2 * units.result_trips(value) * table(value).seconds_matrix(layouts, layouts).T
    return total
