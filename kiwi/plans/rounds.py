"""What the closed loop did, round by round."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """One plan of the closed loop, see `kiwi.planners.closed_loop`.

    - `limit_bytes`: the memory limit that the solver was given.
    - `correction_bytes`: the most that earlier rounds' compiled programs added to the prediction.
    - `predicted_peak_bytes`: of the plan's estimate; `compiled_peak_bytes` None without a check.
    - `solve_seconds`, `compile_seconds`: wall time.
    - `is_tied`: whether barriers kept every step in the plan's order.
    """

    limit_bytes: int
    correction_bytes: int
    predicted_peak_bytes: int
    compiled_peak_bytes: int | None
    solve_seconds: float
    compile_seconds: float
    is_tied: bool = True

    @property
    def peak_bytes(self) -> int:
        """The compiled peak, or the predicted one without a check."""
        compiled_bytes = self.compiled_peak_bytes
        return self.predicted_peak_bytes if compiled_bytes is None else compiled_bytes
