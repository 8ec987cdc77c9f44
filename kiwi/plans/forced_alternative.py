"""What another choice for one operator costs when everything around it may follow."""

from dataclasses import dataclass

from kiwi.mesh import TensorSharding


@dataclass(frozen=True)
class ForcedAlternative:
    """An operator pinned to one layout and residency, and everything solved again.

    - `alone_seconds`: change of the step time if nothing else changed.
    - `step_seconds`, `peak_bytes`: of the best plan found with the pin; None where there is
      none, and `reason` says why.
    - `bound_seconds`: proven: no plan with the pin is faster, but for copies of operands that it
      keeps for later readers (`kiwi.problem.kept_copies`).
    """

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    recompute_at: int | None
    alone_seconds: float
    step_seconds: float | None
    peak_bytes: int | None
    bound_seconds: float
    reason: str = ""
