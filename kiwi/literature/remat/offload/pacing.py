"""When to copy: transfers for values that are to be away from the device, within its budget.

A longer transfer lets the device wait less, but its value holds memory for longer. Every absence
begins as short as possible, around the step of highest memory. While some step is over the budget,
one absence is widened over that step: the absence whose transfer then has most time to spare.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.host import IDLE, Host, OffloadSchedule, Transfer
from kiwi.literature.remat.offload.simulate import simulate


@dataclass(frozen=True)
class Absence:
    """A value that is to be away from the device between two of its uses.

    - `after`: the step of its last use before; -1 if the value is away when the training step
      begins.
    - `before`: the step of its next use; the number of steps if it stays away.
    - `ready`: the first step that may copy the value to the host; None if it is there already.
    """

    value: int
    after: int
    before: int
    ready: int | None = None


def absence_over(
    graph: RematGraph, steps: Sequence[int], step: int, value: int, turn: int
) -> Absence | None:
    """Returns the absence of a value that `step` computes, over the step `turn`.

    The absence is between the last use in front of `turn` and the first use from there on. None if
    the value is computed again before such a use, or has none.
    """
    after = step
    for later in range(step + 1, len(steps)):
        if steps[later] == IDLE:
            continue
        operator = graph.operators[steps[later]]
        if value in operator.inputs:
            if later >= turn:
                return Absence(value, after, later, step + 1)
            after = later
        if value in operator.outputs:
            return None
    return None


@dataclass(frozen=True)
class _Pace:
    """An absence with its transfers: outward until step `out`, inward from step `back` on."""

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
        """Returns whether the absence frees memory in at least one step."""
        return self.back > self.leaves_after + 1

    def transfers(self, count: int) -> tuple[Transfer | None, Transfer | None]:
        """Returns the outward and the inward transfer, each None if there is none.

        `count` is the number of steps.
        """
        absence = self.absence
        out = None if absence.ready is None else Transfer(absence.value, absence.ready, self.out)
        back = (
            None
            if absence.before >= count
            else Transfer(absence.value, self.back, absence.before - 1)
        )
        return out, back


def paced(
    graph: RematGraph,
    host: Host,
    steps: Sequence[int],
    absences: Sequence[Absence],
    budget_bytes: int,
    fixed: OffloadSchedule | None = None,
) -> OffloadSchedule:
    """Returns the schedule of `steps` with transfers for `absences`.

    The schedule is within the budget if the search succeeds. Otherwise all absences are as long as
    possible. Absences too short for their transfers are left out, and so are absences that free no
    memory.

    `fixed` holds the copies and updates that happen in any case. Its own steps are ignored.
    """
    pacer = _Pacer(graph, host, steps, fixed or OffloadSchedule(()))
    held = [0] * len(steps)
    for _ in range(2):  # first at any step, then at the step of highest memory
        begun = [pacer.shortest(absence, held) for absence in absences]
        paces = [pace for pace in begun if pace is not None]
        schedule = pacer.schedule(paces)
        held = list(simulate(graph, host, schedule).memory_bytes)
    for step in sorted(range(len(held)), key=lambda index: -held[index]):
        if held[step] <= budget_bytes:
            continue
        wider = [
            (k, widened) for k, pace in enumerate(paces) if (widened := pacer.widened(pace, step))
        ]
        for k, chosen in sorted(wider, key=lambda entry: -pacer.spare_seconds(entry[1], step)):
            if held[step] <= budget_bytes:
                break
            for freed_step in _freed(paces[k], chosen):
                held[freed_step] -= graph.values[chosen.absence.value].size_bytes
            paces[k] = chosen
        if held[step] > budget_bytes:
            return pacer.schedule([pacer.longest(pace) for pace in paces])
    again = {absence.value for absence in absences if absence.ready is None}
    needed = [pace for pace in paces if pace.is_away or pace.absence.value in again]
    return pacer.schedule(needed)


def _freed(before: _Pace, after: _Pace) -> range:
    """Returns the steps in which the narrower absence holds memory and the wider one does not."""
    if after.back > before.back:
        return range(max(before.back, after.leaves_after + 1), after.back)
    return range(after.leaves_after + 1, min(before.leaves_after + 1, before.back))


class _Pacer:
    """The steps of a schedule, with the operations that `paced` needs."""

    def __init__(
        self, graph: RematGraph, host: Host, steps: Sequence[int], fixed: OffloadSchedule
    ) -> None:
        self._graph, self._host, self._steps, self._fixed = graph, host, tuple(steps), fixed
        seconds = [graph.operators[k].compute_seconds if k != IDLE else 0.0 for k in steps]
        self._until = [0.0, *accumulate(seconds)]

    def schedule(self, paces: Sequence[_Pace]) -> OffloadSchedule:
        """Returns the schedule with the transfers of all absences."""
        pairs = [pace.transfers(len(self._steps)) for pace in paces]
        outward = [*self._fixed.outward, *(out for out, _ in pairs if out is not None)]
        inward = [*self._fixed.inward, *(back for _, back in pairs if back is not None)]
        return replace(
            self._fixed,
            steps=self._steps,
            outward=tuple(sorted(outward, key=_order)),
            inward=tuple(sorted(inward, key=_order)),
        )

    def shortest(self, absence: Absence, held: Sequence[int]) -> _Pace | None:
        """Returns the pace that is away for no step; None without room for both transfers.

        The transfers meet where most memory is held, or in the middle of the time.
        """
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
        out = min(
            range(first, last), key=lambda step: (-held[step], abs(self._until[step + 1] - middle))
        )
        return _Pace(absence, out, out + 1)

    def longest(self, pace: _Pace) -> _Pace:
        """Returns the pace that is away from the first to the last step possible."""
        absence = pace.absence
        away = absence.before >= len(self._steps)
        out = pace.out if absence.ready is None else absence.ready
        return replace(pace, out=out, back=absence.before if away else absence.before - 1)

    def widened(self, pace: _Pace, step: int) -> _Pace | None:
        """Returns the narrowest wider pace that frees memory in a step; None if there is none."""
        limit = self.longest(pace)
        if not limit.leaves_after < step < limit.back or pace.leaves_after < step < pace.back:
            return None
        if step < pace.back:
            return replace(pace, out=step - 1)
        return replace(pace, back=step + 1)

    def spare_seconds(self, pace: _Pace, step: int) -> float:
        """Returns the time to spare of the transfer that was shortened for a step."""
        absence, host = pace.absence, self._host
        size_bytes = self._graph.values[absence.value].size_bytes
        if step == pace.out + 1 and absence.ready is not None:
            seconds = self._until[pace.out + 1] - self._until[absence.ready]
            return seconds - host.outward_seconds(size_bytes)
        seconds = self._until[absence.before] - self._until[pace.back]
        return seconds - host.inward_seconds(size_bytes)


def _order(transfer: Transfer) -> tuple[int, int, int]:
    return transfer.first, transfer.last, transfer.value
