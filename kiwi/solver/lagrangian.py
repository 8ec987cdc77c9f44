"""The backend `lagrangian`: the engine over a problem's network, and what it proves."""

import math
import time

import numpy as np

from kiwi.solver.engine import Engine
from kiwi.solver.network import build_network
from kiwi.solver.outcome import OnProgress, conclude
from kiwi.solver.presolve import presolve
from kiwi.solver.problem import Problem
from kiwi.solver.result import Progress, SolveResult


def solve_lagrangian(
    problem: Problem,
    *,
    deadline: float,
    seed: int,
    gap: float,
    warm_start: tuple[int, ...] | None = None,
    on_progress: OnProgress | None = None,
) -> SolveResult:
    """Runs the engine until the gap is closed, its rounds are used up or the deadline passes.

    A bound above every finite cost proves that no assignment is feasible.
    """
    started = time.monotonic()
    reduction = presolve(build_network(problem))
    if reduction.infeasible:
        return conclude(problem, None, math.inf, solver="lagrangian")
    engine = Engine(reduction.net, seed, gap, deadline, _reporter(on_progress, started))
    start = None if warm_start is None else np.array(warm_start, dtype=np.int64)
    lowered = None if start is None else reduction.lower(start)
    if lowered is not None:
        engine.offer(lowered)
    engine.run()
    best = engine.incumbent
    return conclude(
        problem,
        warm_start if best is None else reduction.lift(best.choice).tolist(),
        math.inf if engine.infeasible else engine.bound,
        solver="lagrangian",
        iterations=engine.rounds,
        deterministic=not engine.out_of_time,
        least_peak_bytes=engine.least_peak_bytes,
    )


def _reporter(on_progress: OnProgress | None, started: float):
    if on_progress is None:
        return None

    def report(engine: Engine) -> None:
        best = engine.incumbent
        on_progress(
            Progress(
                seconds=time.monotonic() - started,
                objective=None if best is None else best.cost,
                bound=engine.bound,
                peak_bytes=None if best is None else best.peak_bytes,
                solver="lagrangian",
                iterations=engine.rounds,
            )
        )

    return report
