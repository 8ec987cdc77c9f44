"""Fences: how a compiled program is kept to the order, and the second computations, of a plan.

XLA chooses its own order, and merges what is computed twice. Memory then is what XLA makes it,
not what was planned. A fence in front of a step passes all that the step reads of earlier steps
through one `optimization_barrier`, together with the result of a recent step, the trigger: the
step cannot start before the trigger is there. Fences have `SLACK` steps of play:

- a value that one of the last `SLACK` steps computed is read as it is, so that neighbours may
  be fused;
- the trigger is the latest result that is older than that, so that collectives of a step
  overlap with the steps next to it.

An update that overwrites a donated argument is tied to the steps next to it as well if these read
the argument: XLA knows only the order that data dependencies imply, and would copy the argument
at the start of the step.

A trigger has to be read behind the barrier from then on: XLA drops the elements of a barrier that
nothing reads, and the tie with them. So only what is still to be read can be one.

`SLACK` was found by compiling ten models of `benchmarks/fidelity` for CPU and GPU: predicted over
compiled peak at 60 % of the free peak, for values 0, 1, 3 and for barriers at second computations
only, was 0.96, 0.94, 0.75 and 0.80 for a state-space model on one CPU, and 0.93, 0.92, 0.97 and
0.69 for a GPT on a (2, 4) mesh of GPUs. Without slack collectives could not overlap at all.
"""

from dataclasses import dataclass

from kiwi.hlo.units import Unit
from kiwi.plan.execution import Execution

SLACK = 1
"""How many of the latest steps a step is not tied to."""


@dataclass(frozen=True)
class Fence:
    """What passes the barrier in front of one step; no barrier without `values`.

    `triggers` are read behind the barrier from then on; none if one of `values` ties the step.
    """

    values: tuple[int, ...]
    triggers: tuple[int, ...]


def fences(execution: Execution) -> tuple[Fence, ...]:
    """One fence per step of the execution's schedule."""
    return _Fences(execution).build()


class _Fences:
    """Walks the schedule; `_computed[v]` is the step that last computed value v, -1 before."""

    def __init__(self, execution: Execution) -> None:
        self._units = execution.units.units
        self._steps = execution.schedule.steps
        self._aliased = execution.units.aliased_results
        self._results = execution.units.graph.program.result_values
        self._last_read = self._last_reads()
        self._computed: dict[int, int] = {}

    def build(self) -> tuple[Fence, ...]:
        found = []
        for step, index in enumerate(self._steps):
            unit = self._units[index]
            found.append(self._fence(step, unit))
            self._computed.update(dict.fromkeys(unit.outputs, step))
        return tuple(found)

    def _last_reads(self) -> dict[tuple[int, int], int]:
        """(value, step that computed it) → the last step that reads this computation."""
        computed: dict[int, int] = {}
        last: dict[tuple[int, int], int] = {}
        for step, index in enumerate(self._steps):
            unit = self._units[index]
            last.update(((v, computed.get(v, -1)), step) for v in unit.reads)
            computed.update(dict.fromkeys(unit.outputs, step))
        end = len(self._steps)
        last.update(((v, computed[v]), end) for v in self._results if v in computed)
        return last

    def _fence(self, step: int, unit: Unit) -> Fence:
        values = {v for v in unit.reads if self._computed.get(v, -1) < step - SLACK}
        triggers = self._neighbours(step, unit) | self._latest(step)
        if not triggers:
            return Fence((), ())
        return Fence(tuple(sorted(values)), tuple(sorted(triggers - values)))

    def _latest(self, step: int) -> set[int]:
        """The latest result older than the slack that is still to be read."""
        for earlier in range(step - 1 - SLACK, -1, -1):
            alive = self._alive_results(earlier, step)
            if alive:
                return {alive[0]}
        return set()

    def _neighbours(self, step: int, unit: Unit) -> set[int]:
        """Results of the neighbours, if they read an argument that the unit overwrites."""
        overwritten = {self._aliased[o] for o in unit.outputs if o in self._aliased}
        steps = range(max(0, step - 1 - SLACK), step)
        if not any(overwritten & set(self._units[self._steps[s]].reads) for s in steps):
            return set()
        return {v for s in steps for v in self._alive_results(s, step)} - set(unit.reads)

    def _alive_results(self, computed: int, step: int) -> list[int]:
        """What an earlier step yielded and is still to be read."""
        outputs = self._units[self._steps[computed]].outputs
        return [v for v in outputs if self._is_alive(v, computed, step)]

    def _is_alive(self, value: int, computed: int, step: int) -> bool:
        return (
            self._computed.get(value) == computed
            and self._last_read.get((value, computed), -1) >= step
        )
