"""`python -m benchmarks.solver.tune`: parameters of the search, found on generated instances.

Only instances to tune on are read (`benchmarks.solver.generated`, even numbers on record).
Candidates are drawn at random, the present parameters among them, and go through rungs of
successive halving (Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and
Hyperparameter Optimization*, AISTATS 2016): all of them on few instances with little work, the
better ones on more with more. Work is counted in passes over the options and table cells that
presolve leaves, never in seconds, so that every machine finds the same. Writes results/tune.json
and results/tune.md; what it finds is adopted by hand, where
`python -m benchmarks.solver.generated` shows that the measured half is not worse.
"""

import argparse
import contextlib
import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.solver.generated.__main__ import on_record
from benchmarks.solver.generated.cases import fingerprint, instance
from benchmarks.solver.generated.measure import Row
from kiwi.solver.lagrangian import Search
from kiwi.solver.parameters import DEFAULT, Parameters
from kiwi.solver.request import Request
from kiwi.solver.result import Progress
from kiwi.solver.warm_up import warm_up

RESULTS = Path(__file__).parent / "results"

RANGES = {
    "dual_steps": (5, 7, 10, 14, 20),
    "most_sweep_pairs": (3, 5, 7, 10, 15),
    "tree_nodes": (15, 30, 60, 120, 240),
    "forced_tries": (15, 30, 60, 100, 150),
    "ball_nodes": (40, 75, 150, 300, 600),
    "most_told": (2, 3, 4, 6, 10),
    "telling": (0.02, 0.05, 0.1, 0.2, 0.5),
    "repair_growth": (1.15, 1.3, 1.5, 2.0, 3.0),
}
"""Values of each parameter; the middle ones were chosen by hand."""
_CHECKPOINTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""Shares of the work after which a search is looked at."""
_CLOSE = 1e-4
"""Distances are told apart down to this."""
_NO_TIME_LIMIT_SECONDS = 1e6


@dataclass(frozen=True)
class Rung:
    """How many candidates are run, on how many of the instances, with how many passes each and how
    many seeds."""

    candidates: int
    instances: int
    passes: int
    seeds: int


RUNGS = (Rung(32, 6, 1000, 1), Rung(10, 12, 4000, 1), Rung(4, 99, 8000, 2))


@dataclass(frozen=True)
class Score:
    """A candidate's mean distance on a rung, in decades; `rung`: counted from 0."""

    rung: int
    parameters: Parameters
    distance: float


class _Enough(Exception):
    """A search has done its work."""


class Start:
    """An instance presolved, to begin searches from.

    - `best`: the least cost known.
    - `cells`: options and table cells that presolve leaves.
    """

    def __init__(self, row: Row) -> None:
        problem = instance(row.case, row.limit_bytes).problem
        assert fingerprint(problem) == row.fingerprint, f"{row.case.number} is not as on record"
        assert row.best is not None
        self.number, self.best = row.case.number, row.best
        self._search = Search(
            Request(problem, "lagrangian", time_limit_seconds=_NO_TIME_LIMIT_SECONDS, gap=_CLOSE),
            "lagrangian",
        )
        net = self._search.left.net
        self.cells = net.option_count + net.cell_count

    def distance(self, parameters: Parameters, passes: int, seed: int) -> float:
        """The mean over checkpoints of how far cost and bound lie from the best, in decades."""
        most_work = passes * self.cells
        states = [(0, 0.0)]

        def note(state: Progress) -> None:
            states.append((state.work, self._decades(state)))
            if state.work >= most_work:
                raise _Enough

        search = copy.copy(self._search)
        search.request = replace(search.request, parameters=parameters, on_progress=note, seed=seed)
        with contextlib.suppress(_Enough):
            search.run()
        at = [share * most_work for share in _CHECKPOINTS]
        return float(np.mean([min(d for work, d in states if work <= most) for most in at]))

    def _decades(self, state: Progress) -> float:
        if state.objective is None:
            return 0.0
        excess = max(0.0, state.objective / self.best - 1.0)
        below = max(0.0, 1.0 - state.bound / self.best)
        return sum(math.log10(_CLOSE + min(1.0, each)) for each in (excess, below)) / 2.0


def main() -> None:
    """Runs the rungs on the instances on record and writes the results."""
    options = _arguments()
    warm_up()
    starts = [Start(row) for row in to_tune_on(on_record())]
    print(f"instances {[start.number for start in starts]}", flush=True)
    rng = np.random.default_rng(options.seed)
    candidates = [DEFAULT, *(drawn(rng) for _ in range(RUNGS[0].candidates - 1))]
    scores: list[Score] = []
    for number, rung in enumerate(RUNGS):
        here = sorted(_scores(number, rung, candidates, starts), key=lambda each: each.distance)
        scores += here
        following = RUNGS[number + 1].candidates if number + 1 < len(RUNGS) else 0
        candidates = [each.parameters for each in here[:following]]
        if DEFAULT not in candidates:  # what all others are compared with
            candidates.append(DEFAULT)
        _write(scores)


def to_tune_on(rows: Sequence[Row]) -> list[Row]:
    """Those of the half to tune on, the ones that took more rounds first: others are settled by any
    parameters."""
    mine = [row for row in rows if row.case.half == "tuning"]
    return sorted(mine, key=lambda row: (-row.rounds, row.case.number))


def drawn(rng: np.random.Generator) -> Parameters:
    """A candidate, each parameter by itself."""
    return Parameters(**{name: rng.choice(values).item() for name, values in RANGES.items()})


def _scores(
    number: int, rung: Rung, candidates: Sequence[Parameters], starts: Sequence[Start]
) -> Iterator[Score]:
    for parameters in candidates:
        distances = [
            start.distance(parameters, rung.passes, seed)
            for start in starts[: rung.instances]
            for seed in range(rung.seeds)
        ]
        score = Score(number, parameters, float(np.mean(distances)))
        print(f"rung {number}: {score.distance:.4f} {_told(parameters)}", flush=True)
        yield score


def _told(parameters: Parameters) -> str:
    """How parameters differ from those chosen by hand."""
    given, default = asdict(parameters), asdict(DEFAULT)
    differ = [f"{name} {value}" for name, value in given.items() if value != default[name]]
    return ", ".join(differ) or "as they are"


def _write(scores: Sequence[Score]) -> None:
    (RESULTS / "tune.json").write_text(json.dumps([asdict(each) for each in scores], indent=1))
    lines = ["| rung | candidates | best mean distance | as they are | best |", "| --- " * 5 + "|"]
    for number in sorted({each.rung for each in scores}):
        here = [each for each in scores if each.rung == number]
        best = min(here, key=lambda each: each.distance)
        kept = next((each.distance for each in here if each.parameters == DEFAULT), math.nan)
        lines.append(
            f"| {number} | {len(here)} | {best.distance:.4f} | {kept:.4f} "
            f"| {_told(best.parameters)} |"
        )
    (RESULTS / "tune.md").write_text("\n".join([*lines, ""]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the candidates drawn")
    return parser.parse_args()


if __name__ == "__main__":
    main()
