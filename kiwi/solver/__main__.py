"""`python -m kiwi.solver INSTANCE --time-limit 60 --seed 0 --out solution.json`.

Reads an instance of the ASPLOS/EuroSys 2025 contest and writes {"solution": [option per node],
"objective": ..., "bound": ..., "gap": ..., "peak": ..., "status": ..., "deterministic": ...}. The
file is written for the first solution and again for every better one. The time limit counts from
the start of the process. On Ctrl-C and SIGTERM the search ends with the best solution so far. The
exit status is 0 with a solution, 1 without one, 2 for bad input, and 130 if the command was
interrupted before there was a solution.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kiwi.errors import KiwiError
from kiwi.solver.contest import read_contest
from kiwi.solver.result import OnProgress, Progress, SolveResult, SolveStatus
from kiwi.solver.solve import DEFAULT_GAP, SOLVERS, solve
from kiwi.solver.supervise import Supervisor, interrupt_once, signals_wait
from kiwi.solver.warm_up import warm_up

_MARGIN_SECONDS, _MARGIN_SECONDS_PER_NODE = 0.5, 5e-5
"""The seconds of the time limit that are reserved for the last step of the search, and for pricing
and writing the solution: a constant, and an amount per node."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command in this process; returns the exit status."""
    return _run(_parser().parse_args(arguments), _started())


def _supervised() -> int:
    """Runs the command in a process that is killed at the time limit; returns the exit status."""
    options, started = _parser().parse_args(), _started()
    supervisor = Supervisor(started + options.time_limit)

    def work() -> int:
        interrupt_once()
        return _run(options, started, supervisor.note_written)

    return supervisor.run(work)


def _run(
    options: argparse.Namespace, started: float, on_written: Callable[[], None] = lambda: None
) -> int:
    try:
        problem = read_contest(options.instance)
        warm_up()  # The time limit of this command includes it.
        margin = _MARGIN_SECONDS + _MARGIN_SECONDS_PER_NODE * len(problem.nodes)
        seconds_left = options.time_limit - (time.monotonic() - started) - margin
        listeners: list[OnProgress] = [] if options.quiet else [_Printer(started)]
        if options.out is not None:
            listeners.append(_Writer(options.out, on_written))

        def tell(state: Progress) -> None:
            for listener in listeners:
                listener(state)

        result = solve(
            problem,
            solver=options.solver,
            time_limit_seconds=max(seconds_left, 0.1),
            seed=options.seed,
            gap=options.gap,
            until_time_limit=not options.stop_early,
            on_progress=tell,
            any_time=True,
        )
    except KiwiError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted before there was a solution.", file=sys.stderr)
        return 130
    _print_result(result)
    return 0 if result.solution is not None else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kiwi.solver", description=__doc__)
    parser.add_argument("instance", type=Path, help="contest instance, .json or .json.gz")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gap", type=float, default=DEFAULT_GAP / 1e3)
    parser.add_argument("--solver", choices=sorted(SOLVERS), default="auto")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE")
    parser.add_argument("--stop-early", action="store_true", help="end when nothing improves")
    parser.add_argument("--quiet", action="store_true")
    return parser


def _started() -> float:
    """Returns the start of this process, or the present if the system does not tell it; a reading
    of `time.monotonic`."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age_seconds = uptime - float(fields[19]) / 100.0  # clock ticks of 1/100 s
    except (OSError, ValueError, IndexError):
        age_seconds = 0.0
    return time.monotonic() - max(0.0, age_seconds)


class _Writer:
    """Writes every better solution, and the result. A file with the best solution so far exists
    however the process ends, and is always a whole document."""

    def __init__(self, path: Path, on_written: Callable[[], None]) -> None:
        self._path, self._on_written = path, on_written
        self._last: float | None = None

    def __call__(self, state: Progress) -> None:
        if state.objective == self._last and not isinstance(state, SolveResult):
            return
        self._last = state.objective
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(json.dumps(_document(state)) + "\n")
        with signals_wait():
            part.replace(self._path)
            self._on_written()


def _document(state: Progress) -> dict:
    ended = isinstance(state, SolveResult)
    document = {
        "solution": state.solution,
        "objective": state.objective,
        "bound": state.bound if math.isfinite(state.bound) else None,
        "gap": state.gap,
        "peak": state.peak_bytes,
        "status": (state.status if ended else SolveStatus.FEASIBLE).value,
        "deterministic": ended and state.deterministic,
    }
    return document if state.solution is None else {**document, "limit_met": True}


class _Printer:
    """Prints a line whenever the cost improves, or the bound improves noticeably."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._last: tuple[float | None, float] | None = None

    def __call__(self, state: Progress) -> None:
        standing = (state.objective, state.bound)
        if self._last is not None:
            same = self._last[0] == standing[0]
            if same and standing[1] - self._last[1] <= 1e-4 * abs(standing[1]):
                return
        self._last = standing
        cost = "-" if state.objective is None else f"{state.objective:.10g}"
        gap = "-" if state.gap is None else f"{100 * state.gap:.3f} %"
        elapsed = time.monotonic() - self._started
        print(
            f"{elapsed:8.1f} s  cost {cost}  bound {state.bound:.10g}  gap {gap}  "
            f"peak {state.peak_bytes}",
            flush=True,
        )


def _print_result(result: SolveResult) -> None:
    gap = "unknown" if result.gap is None else f"{100 * result.gap:.4f} %"
    print(
        f"{result.status.value}: cost {result.objective}, bound {result.bound:.10g}, gap {gap}, "
        f"peak {result.peak_bytes}, {result.seconds:.1f} s"
    )
    if result.message:
        print(result.message)
    if result.solution is None and result.least_peak_bytes is not None:
        print(f"The least peak found is {result.least_peak_bytes} bytes.")
    if not result.deterministic:
        print("The clock ended the search: another run may find another solution.")


if __name__ == "__main__":
    status = _supervised()
    sys.stdout.flush()
    os._exit(status)  # To unload the libraries takes seconds on a busy machine.
