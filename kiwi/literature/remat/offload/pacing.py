"""When to copy: transfers for values that are to be away from the device, within its budget.

The longer a transfer may take the less the device waits, and the longer the value holds memory.
Every absence begins as short as can be, where memory is highest. While some step is over the
budget, one absence is widened over it: that whose transfer has most time to spare then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.host import IDLE, Host, OffloadSchedule, Transfer
from kiwi.literature.remat.offload.simulate import simulate


@dataclass(frozen=True)
class Absence:
    """A value is to be away from the device between two of its uses.

    - `after`: its last use before, a step; `before`: its next use. `before` is the number of steps
      where it stays away, `after` is -1 where it is away when the step begins.
    - `ready`: the first step that may copy it to the host, None where it is there already.
    """

    value: int
    after: int
    before: int
    ready: int | None = None


def absence_over(
    graph: RematGraph, steps: Sequence[int], step: int, value: int, turn: int
) -> Absence | None:
    """The absence of a value that `step` computes between its uses in front of the step `turn` and
    those from there on; None if there is none of these before it is computed again."""
    after = step
    for t in range(step + 1, len(steps)):
        if steps[t] == IDLE:
            continue
        operator = graph.operators[steps[t]]
        if value in operator.inputs:
            if t >= turn:
                return Absence(value, after, t, step + 1)
            after = t
        if value in operator.outputs:
            return None
    return None


@dataclass(frozen=True)
class _Pace:
    """An absence with its transfers: out until step `out`, back from step `back` on."""

    absence: Absence
    out: int
    back: int

    @property
    def leaves_after(self) -> int:
        """The last step in which the old copy holds memory."""
        absence = self.absence
        return absence.after if absence.ready is None else max(absence.after, self.out)

    @property
    def is_away(self) -> bool:
        """Whether it frees memory in some step."""
        return self.back > self.leaves_after + 1

    def transfers(self, count: int) -> tuple[Transfer | None, Transfer | None]:
        """Outward and inward, as far as there are any; `count`: of steps."""
        own = self.absence
        out = None if own.ready is None else Transfer(own.value, own.ready, self.out)
        back = None if own.before >= count else Transfer(own.value, self.back, own.before - 1)
        return out, back


def paced(
    graph: RematGraph,
    host: Host,
    steps: Sequence[int],
    absences: Sequence[Absence],
    budget_bytes: int,
    fixed: OffloadSchedule | None = None,
) -> OffloadSchedule:
    """The schedule of `steps` with transfers for `absences`, within the budget if the search finds
    one, else with all absences as long as can be. Absences too short for their transfers, and those
    that free no memory, are left out.

    `fixed`: what goes on beside the steps in any case; its own steps do not count.
    """
    pacer = _Pacer(graph, host, steps, fixed or OffloadSchedule(()))
    held = [0] * len(steps)
    for _ in range(2):  # first in any place, then where memory turned out to be highest
        begun = [pacer.shortest(each, held) for each in absences]
        paces = [pace for pace in begun if pace is not None]
        schedule = pacer.schedule(paces)
        held = list(simulate(graph, host, schedule).memory_bytes)
    for step in sorted(range(len(held)), key=lambda t: -held[t]):
        if held[step] <= budget_bytes:
            continue
        wider = [(k, w) for k, p in enumerate(paces) if (w := pacer.widened(p, step))]
        for k, chosen in sorted(wider, key=lambda each: -pacer.spare_seconds(each[1], step)):
            if held[step] <= budget_bytes:
                break
            for t in _freed(paces[k], chosen):
                held[t] -= graph.values[chosen.absence.value].size_bytes
            paces[k] = chosen
        if held[step] > budget_bytes:
            return pacer.schedule([pacer.longest(p) for p in paces])
    again = {each.value for each in absences if each.ready is None}
    needed = [p for p in paces if p.is_away or p.absence.value in again]
    return pacer.schedule(needed)


def _freed(before: _Pace, after: _Pace) -> range:
    """The steps in which the wider absence holds no memory and the narrower did."""
    if after.back > before.back:
        return range(max(before.back, after.leaves_after + 1), after.back)
    return range(after.leaves_after + 1, min(before.leaves_after + 1, before.back))


class _Pacer:
    """The steps of a schedule, with what `paced` asks about them."""

    def __init__(
        self, graph: RematGraph, host: Host, steps: Sequence[int], fixed: OffloadSchedule
    ) -> None:
        self._graph, self._host, self._steps, self._fixed = graph, host, tuple(steps), fixed
        seconds = [graph.operators[k].compute_seconds if k != IDLE else 0.0 for k in steps]
        self._until = [0.0, *accumulate(seconds)]

    def schedule(self, paces: Sequence[_Pace]) -> OffloadSchedule:
        """With the transfers of all absences."""
        pairs = [each.transfers(len(self._steps)) for each in paces]
        outward = [*self._fixed.outward, *(out for out, _ in pairs if out is not None)]
        inward = [*self._fixed.inward, *(back for _, back in pairs if back is not None)]
        return replace(
            self._fixed,
            steps=self._steps,
            outward=tuple(sorted(outward, key=_order)),
            inward=tuple(sorted(inward, key=_order)),
        )

    def shortest(self, absence: Absence, held: Sequence[int]) -> _Pace | None:
        """Away for no step at all: transfers meet where most memory is held, or in the middle of
        the time; None where there is no room for both."""
        if absence.before >= len(self._steps):
            last = len(self._steps) - 1
            room = absence.ready is not None and absence.ready <= last
            return _Pace(absence, last, last + 1) if room else None
        last = absence.before - 1
        if absence.ready is None:
            first = absence.after + 1
            return _Pace(absence, first - 1, first) if first <= last else None
        first = max(absence.ready, absence.after)
        if first >= last:
            return None
        middle = (self._until[absence.ready] + self._until[last + 1]) / 2
        out = min(range(first, last), key=lambda t: (-held[t], abs(self._until[t + 1] - middle)))
        return _Pace(absence, out, out + 1)

    def longest(self, pace: _Pace) -> _Pace:
        """Away from the first to the last step that it can be."""
        own = pace.absence
        away = own.before >= len(self._steps)
        out = pace.out if own.ready is None else own.ready
        return replace(pace, out=out, back=own.before if away else own.before - 1)

    def widened(self, pace: _Pace, step: int) -> _Pace | None:
        """The least wider absence that frees memory in a step; None if there is none."""
        limit = self.longest(pace)
        if not limit.leaves_after < step < limit.back or pace.leaves_after < step < pace.back:
            return None
        if step < pace.back:
            return replace(pace, out=step - 1)
        return replace(pace, back=step + 1)

    def spare_seconds(self, pace: _Pace, step: int) -> float:
        """The time left for a transfer, of the time that was shortened for a step."""
        own, host = pace.absence, self._host
        size_bytes = self._graph.values[own.value].size_bytes
        if step == pace.out + 1 and own.ready is not None:
            seconds = self._until[pace.out + 1] - self._until[own.ready]
            return seconds - host.outward_seconds(size_bytes)
        seconds = self._until[own.before] - self._until[pace.back]
        return seconds - host.inward_seconds(size_bytes)


def _order(transfer: Transfer) -> tuple[int, int, int]:
    return transfer.first, transfer.last, transfer.value
