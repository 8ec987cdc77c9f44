"""`python -m benchmarks.solver.generated`: the distance of searches from the best known solution.

Writes results/generated.json and results/generated.md after each instance, and the picture of
docs/evidence/solver.md at the end. `--missing` continues an interrupted run. The recorded limit and
reference of a number are reused, so that a change of the search costs one search per instance. Both
are found again if the problem is no longer the recorded one, and with `--anew`. `--references`
looks for better references than the recorded ones.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.solver.generated.cases import Case, case, fingerprint, instance
from benchmarks.solver.generated.measure import Reference, Row, measure
from benchmarks.solver.generated.picture import draw
from benchmarks.solver.generated.table import table

RESULTS = Path(__file__).parents[1] / "results"
PICTURE = Path(__file__).parents[3] / "docs" / "images" / "solver_generated.png"


def main() -> None:
    """Runs the requested numbers, and writes the results."""
    options = _arguments()
    rows = {row.case.number: row for row in on_record()}
    for number in range(options.numbers[0], options.numbers[1], options.step):
        if options.missing and number in rows:
            continue
        known = None if options.anew else rows.get(number)
        rows[number] = _measured(number, known, more=options.references)
        print(rows[number], f"above best: {rows[number].excess:.3%}", flush=True)
        write([rows[key] for key in sorted(rows)])
    draw([rows[key] for key in sorted(rows)], PICTURE)


def _measured(number: int, known: Row | None, *, more: bool = False) -> Row:
    made = case(number)
    if known is not None:
        given = instance(made, known.limit_bytes)
        if fingerprint(given.problem) == known.fingerprint:
            return measure(made, given, known.reference, more=more)
    return measure(made, instance(made))


def on_record() -> list[Row]:
    """Returns the recorded results."""
    path = RESULTS / "generated.json"
    return [_row(entry) for entry in json.loads(path.read_text())] if path.exists() else []


def write(rows: list[Row]) -> None:
    """Writes both files of results."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "generated.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    (RESULTS / "generated.md").write_text(table(rows))


def _row(entry: dict[str, Any]) -> Row:
    made = {**entry["case"], "mesh_shape": tuple(entry["case"]["mesh_shape"])}
    trace = tuple(map(tuple, entry["trace"]))
    reference = Reference(**entry["reference"])
    return Row(**{**entry, "case": Case(**made), "trace": trace, "reference": reference})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", nargs=2, type=int, default=(0, 40), metavar=("FROM", "TO"))
    parser.add_argument("--step", type=int, default=1, help="2: one half only")
    parser.add_argument("--missing", action="store_true", help="only what is not on record")
    parser.add_argument("--anew", action="store_true", help="find limits and references again")
    parser.add_argument("--references", action="store_true", help="look for better references")
    return parser.parse_args()


if __name__ == "__main__":
    main()
