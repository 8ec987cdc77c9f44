"""The correction of a plan's overlap by its compiled program.

A plan assumes how much communication runs behind computation (`kiwi.problem.overlap`). A compiler
may reach less overlap: XLA:TPU runs one collective at a time beside a matmul, and leaves others
waiting. If waiting for communication explains most of the time by which a program is slower than
its plan, the next plan may count on less overlap only. That plan then communicates less, or at
other operators.
"""

from kiwi.campaign import shares
from kiwi.plans.record import PlanRecord
from kiwi.xla.simulated import SimulatedTime


class LessOverlap(Exception):
    """Ends a search whose program shows that plans may count on less overlap.

    - `overlap`: the part of the possible overlap to count on, as in `Corrections`.
    - `seconds`: the program's step time, infinite if the program is over the budget.
    """

    def __init__(self, overlap: float, seconds: float) -> None:
        super().__init__(f"{overlap:.0%} of the overlap is reached.")
        self.overlap, self.seconds = overlap, seconds


def reached_overlap(plan: PlanRecord, known: float) -> float | None:
    """Returns the part of the possible overlap that the next plan may count on; None if the program
    agrees with the plan, or differs for another reason.

    The returned part lies between `known` and the part that the program reached
    (`shares.LEARNT_OVERLAP`): another plan communicates elsewhere, where the compiler may hide
    more.

    - `known`: the part that this plan counted on.
    """
    compiled, estimate = plan.compiled, plan.estimate
    if compiled is None or compiled.time is None:
        return None
    hidden_seconds = estimate.hidden_seconds - estimate.without_overlap.hidden_seconds
    late_seconds = compiled.time.step_seconds - estimate.step_seconds
    if hidden_seconds <= 0 or late_seconds <= (shares.LATE_PROGRAM - 1) * estimate.step_seconds:
        return None
    waiting_seconds = min(
        hidden_seconds, _waiting_seconds(compiled.time) - estimate.exposed_seconds
    )
    if waiting_seconds < shares.CAUSED_BY_WAITING * late_seconds:
        return None
    return known * (1 - shares.LEARNT_OVERLAP * waiting_seconds / hidden_seconds)


def _waiting_seconds(time: SimulatedTime) -> float:
    """Returns the seconds for which a program waits for communication between devices."""
    return sum(row.exposed_seconds for row in time.communication if row.axes != ())
