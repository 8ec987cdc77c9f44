"""The strategies of all units of a graph; units of one `KernelKind` share theirs.

A transformer's layers consist of the same kinds, so that enumerating one layer serves all.

Some strategies are left out without losing an optimal plan: s is dominated by t if t, with
resharding before and after it, does what s does for no more time and no more memory:

    own(t) + m sum over reads R(s.read -> t.read) + 2 n R(t.result -> s.result) <= own(s)

where m and n count how often operands and results are resharded in a step, in all iterations of
loops, and the factor 2 covers readers that are recomputed.
Replacing s by t then never makes a plan worse, because resharding costs obey the triangle
inequality. The typical victim computes a large matmul redundantly along a mesh axis. Where
communication may hide behind computation, t also computes no longer than s: then it is no worse
where computing takes longest. Where the links do, s may have been better, and is left out.

Before, strategies whose partial sums XLA all-reduces and then cuts (`cuts_sums`) make way for
those that compute the same and scatter as far. This may lose a plan, of which such a sum's layout
is the point; on three axes it halves the problem.
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
    """Strategies by unit."""

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
        """The strategies of a unit that no other one dominates, in order."""
        strategies = _without_cut_sums(strategies)
        if len(strategies) < 2:
            return tuple(strategies)
        own = np.array([s.seconds for s in strategies])
        held = np.array([s.result_bytes for s in strategies])
        workspace = np.array([sum(s.buffers_while_running) for s in strategies])
        detour = self._detour_seconds(unit, strategies, own)
        fits = held[None, :] <= held[:, None]
        fits &= workspace[None, :] <= workspace[:, None]
        if self.mesh.hardware.overlapping_share:
            compute = np.array([s.compute_seconds for s in strategies])
            fits &= compute[None, :] <= compute[:, None]
        better = fits & (detour < own[:, None])
        alive = np.ones(len(strategies), dtype=bool)
        # The costliest come first: a strategy is replaced only by one that stays.
        for s in np.argsort(-own, kind="stable"):
            alive[s] = not (better[s] & alive).any()
        return tuple(s for s, keep in zip(strategies, alive, strict=True) if keep)

    def _detour_seconds(
        self, unit: Unit, strategies: Sequence[ShardingStrategy], own: np.ndarray
    ) -> np.ndarray:
        """[s, t]: the cost of doing t where s is wanted. `own` is the cost of each
        strategy alone."""
        values, kind = self.units.graph.program.values, self._kinds.of(unit)
        moved = self.kernels[unit.index].moved
        before = (self._between(v, [s.reads[k] for s in strategies]) for k, v in enumerate(moved))
        seconds = kind.operand_trips * sum(before, np.zeros((len(strategies),) * 2))
        seconds = own[None, :] + seconds
        for k, value in enumerate(unit.outputs):
            behind = self._between(values[value], [s.results[k] for s in strategies]).T
            seconds += 2 * kind.result_trips[k] * behind
        return seconds

    def _between(self, moved: Value, layouts: Sequence[TensorSharding]) -> np.ndarray:
        """Seconds of resharding what is moved between any two layouts."""
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
        """Units with the same key share their strategies."""
        is_corrected = kind_of(self.units, unit) if self._corrections else ""
        return self._kinds.of(unit), is_corrected


def _without_cut_sums(strategies: Sequence[ShardingStrategy]) -> Sequence[ShardingStrategy]:
    """The kept strategies whose result is smaller than any scattered one from the same operands."""
    least_bytes: dict[object, int] = {}
    for s in strategies:
        if not s.cuts_sums:
            least_bytes[s.reads] = min(s.result_bytes, least_bytes.get(s.reads, s.result_bytes))
    return [
        s
        for s in strategies
        if not s.cuts_sums or least_bytes.get(s.reads, s.result_bytes + 1) > s.result_bytes
    ]
