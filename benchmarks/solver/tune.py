"""`python -m benchmarks.solver.tune`: parameters of the search, found on generated instances.

Candidates are drawn at random, and the present parameters are among them. They are chosen only on
the tuning half of the generated instances (`benchmarks.solver.generated`, recorded even numbers),
by rungs of successive halving (Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and
Hyperparameter Optimization*, AISTATS 2016): all candidates run on few instances with little work,
the better ones on more instances with more work. The best candidate is then compared with the
present parameters on both halves. Work is counted in passes over the options and table cells that
presolve leaves, never in seconds, so that every machine finds the same. Writes results/tune.json
and results/tune.md. The result is adopted by hand, if the measured half is not worse.
"""

import argparse
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
"""The values of each parameter. The middle values were chosen by hand."""
_CHECKPOINTS = (1 / 4, 1 / 2, 1)
"""The shares of the work at which a search is scored."""
_LEAST_ROUNDS = 3
"""Instances that take fewer rounds are solved with any parameters, and are left out."""
_CLOSE = 1e-4
"""Smaller distances are not distinguished."""
_NO_TIME_LIMIT_SECONDS = 1e6


@dataclass(frozen=True)
class Rung:
    """The number of candidates, the number of instances that each runs on, and the number of passes
    on each instance."""

    candidates: int
    instances: int
    passes: int


RUNGS = (Rung(16, 5, 1000), Rung(4, 10, 2000))


@dataclass(frozen=True)
class Score:
    """A candidate's mean distance, in decades. `on`: the number of the rung, or the half."""

    on: str
    parameters: Parameters
    distance: float


class Start:
    """A presolved instance that searches start from.

    - `best`: the least known cost.
    - `cells`: the number of options and table cells that presolve leaves.
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

    def distance(self, parameters: Parameters, passes: int) -> float:
        """Returns the mean distance of cost and bound from the best cost over the checkpoints, in
        decades."""
        most_work = passes * self.cells
        states = [(0, 0.0)]

        def note(state: Progress) -> None:
            states.append((state.work, self._decades(state)))

        search = copy.copy(self._search)
        search.request = replace(
            search.request, parameters=parameters, on_progress=note, work_limit=most_work
        )
        search.run()
        at = [share * most_work for share in _CHECKPOINTS]
        return float(np.mean([min(d for work, d in states if work <= most) for most in at]))

    def _decades(self, state: Progress) -> float:
        if state.objective is None:
            return 0.0
        excess = max(0.0, state.objective / self.best - 1.0)
        below = max(0.0, 1.0 - state.bound / self.best)
        return sum(math.log10(_CLOSE + min(1.0, distance)) for distance in (excess, below)) / 2.0


def main() -> None:
    """Runs the rungs on the recorded instances, and writes the results."""
    options = _arguments()
    warm_up()
    starts = [Start(row) for row in of_half("tuning", on_record())]
    print(f"instances {[start.number for start in starts]}", flush=True)
    rng = np.random.default_rng(options.seed)
    candidates = [DEFAULT, *(drawn(rng) for _ in range(RUNGS[0].candidates - 1))]
    scores: list[Score] = []
    for number, rung in enumerate(RUNGS):
        few = starts[: rung.instances]
        rung_scores = _scores(str(number), rung.passes, candidates, few)
        ranked = sorted(rung_scores, key=lambda score: score.distance)
        scores += ranked
        following = RUNGS[number + 1].candidates if number + 1 < len(RUNGS) else 0
        candidates = [score.parameters for score in ranked[:following]]
        if DEFAULT not in candidates:  # All candidates are compared with it.
            candidates.append(DEFAULT)
        _write(scores)
    others = [Start(row) for row in of_half("measured", on_record())]
    best = candidates_compared(scores)
    for half, half_starts in (("tuning", starts), ("measured", others)):
        scores += _scores(half, RUNGS[-1].passes, best, half_starts)
    _write(scores)


def candidates_compared(scores: Sequence[Score]) -> list[Parameters]:
    """Returns the present parameters and the best ones of the last rung."""
    last = [score for score in scores if score.on == str(len(RUNGS) - 1)]
    best = min(last, key=lambda score: score.distance).parameters
    return [DEFAULT] if best == DEFAULT else [DEFAULT, best]


def of_half(half: str, rows: Sequence[Row]) -> list[Row]:
    """Returns the instances of a half that took enough rounds, the smaller ones first."""
    rows_of_half = [row for row in rows if row.case.half == half and row.rounds >= _LEAST_ROUNDS]
    return sorted(rows_of_half, key=lambda row: (row.options, row.case.number))


def drawn(rng: np.random.Generator) -> Parameters:
    """Draws a candidate, with each parameter independent of the others."""
    return Parameters(**{name: rng.choice(values).item() for name, values in RANGES.items()})


def _scores(
    on: str, passes: int, candidates: Sequence[Parameters], starts: Sequence[Start]
) -> Iterator[Score]:
    for parameters in candidates:
        distances = [start.distance(parameters, passes) for start in starts]
        score = Score(on, parameters, float(np.mean(distances)))
        print(f"{on}: {score.distance:.4f} {_told(parameters)}", flush=True)
        yield score


def _told(parameters: Parameters) -> str:
    """Returns the differences of parameters from the present ones, as text."""
    given, default = asdict(parameters), asdict(DEFAULT)
    differ = [f"{name} {value}" for name, value in given.items() if value != default[name]]
    return ", ".join(differ) or "as they are"


def _write(scores: Sequence[Score]) -> None:
    (RESULTS / "tune.json").write_text(json.dumps([asdict(score) for score in scores], indent=1))
    lines = ["| rung or half | candidates | as they are | best | which |", "| --- " * 5 + "|"]
    for on in dict.fromkeys(score.on for score in scores):
        group = [score for score in scores if score.on == on]
        best = min(group, key=lambda score: score.distance)
        kept = next((score.distance for score in group if score.parameters == DEFAULT), math.nan)
        lines.append(
            f"| {on} | {len(group)} | {kept:.4f} | {best.distance:.4f} | {_told(best.parameters)} |"
        )
    (RESULTS / "tune.md").write_text("\n".join([*lines, ""]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the candidates drawn")
    return parser.parse_args()


if __name__ == "__main__":
    main()
