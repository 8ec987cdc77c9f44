"""The strategies of all units of a graph. Units of one `KernelKind` share their strategies.

A transformer's layers consist of the same kinds, so the strategies of one layer serve all layers.

Dominated strategies are left out. Strategy s is dominated by t if t, with resharding before and
after it, takes no more time and no more memory than s:

    own(t) + m sum over reads R(s.read -> t.read) + 2 n R(t.result -> s.result) <= own(s)

Here own is the time of a strategy alone, and R the time of resharding. m and n count how often
operands and results are resharded in a step, over all iterations of loops. The factor 2 covers
readers that are recomputed. Replacing s by t then never makes a plan worse, because resharding
costs obey the triangle inequality. A typical dominated strategy computes a large matmul redundantly
along a mesh axis. If communication may hide behind computation, t must also compute no longer than
s: then t is no worse where computation is the longer channel. Where communication is the longer
channel, s might be better; it is left out nevertheless.

Before, strategies whose partial sums XLA all-reduces and then slices (`cuts_sums`) are removed if
another strategy with the same operands has a result at most as large. This may lose a plan that
needs the layout of such a sum. On a mesh with three axes it halves the problem.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from kiwi.corrections import NO_CORRECTIONS, Corrections
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.problem.corrected import corrected, kind_of
from kiwi.problem.edges import resharding_table
from kiwi.problem.kernel_kind import kernel_kinds
from kiwi.problem.strategies import ShardingStrategy, enumerate_strategies


class StrategyTable:
    """The strategies of each unit, enumerated and priced when first asked for."""

    def __init__(
        self, kernels: KernelGraph, mesh: DeviceMesh, corrections: Corrections = NO_CORRECTIONS
    ) -> None:
        self._corrections = corrections
        self.kernels, self.units, self.mesh = kernels, kernels.units, mesh
        self._kinds = kernel_kinds(kernels, mesh)
        self._all: dict[Hashable, tuple[ShardingStrategy, ...]] = {}
        self._undominated: dict[Hashable, tuple[ShardingStrategy, ...]] = {}

    def of(self, unit: Unit) -> tuple[ShardingStrategy, ...]:
        """The undominated strategies of one unit."""
        key = self._key(unit)
        if key not in self._undominated:
            self._undominated[key] = self.undominated(unit, self.all_of(unit))
        return self._undominated[key]

    def undominated(
        self, unit: Unit, strategies: Sequence[ShardingStrategy]
    ) -> tuple[ShardingStrategy, ...]:
        """The members of `strategies` that no other member dominates, in order."""
        strategies = _without_cut_sums(strategies)
        if len(strategies) < 2:
            return tuple(strategies)
        alone_seconds = np.array([strategy.seconds for strategy in strategies])
        held = np.array([strategy.result_bytes for strategy in strategies])
        workspace = np.array([sum(strategy.buffers_while_running) for strategy in strategies])
        detour = self._detour_seconds(unit, strategies, alone_seconds)
        fits = held[None, :] <= held[:, None]
        fits &= workspace[None, :] <= workspace[:, None]
        if self.mesh.hardware.overlapping_share:
            compute = np.array([strategy.compute_seconds for strategy in strategies])
            fits &= compute[None, :] <= compute[:, None]
        better = fits & (detour < alone_seconds[:, None])
        alive = np.ones(len(strategies), dtype=bool)
        # The costliest strategies come first: a strategy is replaced only by one that stays.
        for index in np.argsort(-alone_seconds, kind="stable"):
            alive[index] = not (better[index] & alive).any()
        return tuple(strategy for strategy, keep in zip(strategies, alive, strict=True) if keep)

    def _detour_seconds(
        self, unit: Unit, strategies: Sequence[ShardingStrategy], own: np.ndarray
    ) -> np.ndarray:
        """Returns float [s, t]: the seconds of strategy t with resharding to the layouts of
        strategy s. `own` holds the seconds of each strategy alone."""
        values, kind = self.units.graph.program.values, self._kinds.of(unit)
        moved = self.kernels[unit.index].moved
        before = (
            self._between(moved_value, [strategy.reads[k] for strategy in strategies])
            for k, moved_value in enumerate(moved)
        )
        seconds = kind.operand_trips * sum(before, np.zeros((len(strategies),) * 2))
        seconds = own[None, :] + seconds
        for k, value in enumerate(unit.outputs):
            behind = self._between(
                values[value], [strategy.results[k] for strategy in strategies]
            ).T
            seconds += 2 * kind.result_trips[k] * behind
        return seconds

    def _between(self, moved: Value, layouts: Sequence[TensorSharding]) -> np.ndarray:
        """Returns float [layouts, layouts]: the seconds of resharding a value between layouts."""
        table = resharding_table(self.mesh, self.kernels.facts, moved)
        return table.seconds_matrix(layouts, layouts)

    def all_of(self, unit: Unit) -> tuple[ShardingStrategy, ...]:
        """All strategies of one unit, dominated ones included."""
        key = self._key(unit)
        if key not in self._all:
            priced = enumerate_strategies(self.kernels, unit, self.mesh)
            self._all[key] = corrected(self._corrections, self.units, unit, priced)
        return self._all[key]

    def _key(self, unit: Unit) -> Hashable:
        """Returns the key of a unit's strategies. Units with the same key share strategies."""
        is_corrected = kind_of(self.units, unit) if self._corrections else ""
        return self._kinds.of(unit), is_corrected


def _without_cut_sums(strategies: Sequence[ShardingStrategy]) -> Sequence[ShardingStrategy]:
    """Returns the strategies without `cuts_sums`, and some of the others: those whose result is
    smaller than the result of every strategy without `cuts_sums` that reads the same layouts."""
    least_bytes: dict[object, int] = {}
    for strategy in strategies:
        if not strategy.cuts_sums:
            least_bytes[strategy.reads] = min(
                strategy.result_bytes, least_bytes.get(strategy.reads, strategy.result_bytes)
            )
    return [
        strategy
        for strategy in strategies
        if not strategy.cuts_sums
        or least_bytes.get(strategy.reads, strategy.result_bytes + 1) > strategy.result_bytes
    ]
