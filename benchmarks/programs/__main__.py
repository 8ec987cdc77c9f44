"""Plans random programs, compares their results with the original's, and writes the outcomes.

python -m benchmarks.programs               # 300 programs without loops, 300 with, 600 choosing
python -m benchmarks.programs --cases=50 --seeds=3 --out=build/programs
python -m benchmarks.programs --kinds=choosing --choosing=50 --seeds=0,1,2,3

Each seed is a batch, which is written at its end. Recorded batches are not run again, nor are
programs that an earlier batch has drawn. A program with a wrong result or a crash is printed as its
recipe, and recorded. `--again` runs the recorded failures again. `make test-slow` finds the
smallest failing program.
"""

import collections
import datetime
import hashlib
import json
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import kiwi
from benchmarks.programs.batches import NOTHING, Summary, merged
from benchmarks.programs.check import Outcome, check, forget
from benchmarks.programs.recipes import Recipe, choosing_recipes, recipes
from benchmarks.programs.report import report
from benchmarks.programs.steps import Step
from benchmarks.provenance import commit

STRATEGIES = {
    "with loops": recipes(),
    "without loops": recipes(loops=False),
    "choosing": choosing_recipes(),
}

_FORGET_EVERY = 25

_CASES = flags.DEFINE_integer("cases", 300, "Programs without, and programs with loops.")
_CHOOSING = flags.DEFINE_integer("choosing", 600, "Small programs with a while or a conditional.")
_KINDS = flags.DEFINE_list("kinds", list(STRATEGIES), "Kinds of programs; others are kept.")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Of the batches of programs.")
_AGAIN = flags.DEFINE_bool("again", False, "Runs those that went wrong instead of new ones.")
_OUT = flags.DEFINE_string("out", "benchmarks/programs/results", "Folder of the results.")


@dataclass
class _Tally:
    """The outcomes of the programs of one kind. `drawn`: the digests of all drawn programs,
    including those of earlier batches."""

    drawn: set[str]
    outcomes: list[Outcome]
    failures: list[dict[str, str]]
    operations: collections.Counter[str]
    settings: collections.Counter[str]
    seconds: float = 0.0


def main(_: list[str]) -> None:
    """Checks all kinds of programs, and writes `programs.json` and `programs.md`."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    # As in tests: without most of LLVM's optimisations, which do not affect plans, compiling takes
    # a third of the time.
    jax.config.update("jax_disable_most_optimizations", True)
    results: dict[str, Any] = _known()
    for name in _KINDS.value:
        if _AGAIN.value:
            results[name] = _again(results[name])
            _write(results)
            continue
        cases = _CHOOSING.value if name == "choosing" else _CASES.value
        for first in map(int, _SEEDS.value):
            before = results.get(name, NOTHING)
            if any(batch["seed"] == first for batch in before["batches"]):
                continue
            tally = _run(STRATEGIES[name], cases, first, set(before["drawn"]))
            results[name] = merged(before, _summary(tally, first))
            _write(results)
    print(report(results))
    sys.exit(any(summary["failures"] for summary in results.values()))


def _again(before: Summary) -> Summary:
    """Returns the summary with the failed programs run again as another batch."""
    failures = before["failures"]
    if not failures:
        return before
    tally = _Tally(set(), [], [], collections.Counter(), collections.Counter())
    started = time.monotonic()
    for failure in failures:
        _try(eval(failure["recipe"], {"Recipe": Recipe, "Step": Step}), tally)
    tally.seconds = time.monotonic() - started
    # The first run has already drawn and counted these programs.
    again = _summary(tally, None) | {"drawn": before["drawn"], "operations": {}, "settings": {}}
    others = before["programs"] - len(failures)
    return merged(before | {"failures": [], "programs": others}, again)


def _known() -> dict[str, Any]:
    path = Path(_OUT.value) / "programs.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _write(results: dict[str, Any]) -> None:
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    (out / "programs.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "programs.md").write_text(report(results))


def _run(strategy: SearchStrategy[Recipe], cases: int, first: int, drawn: set[str]) -> _Tally:
    tally = _Tally(drawn, [], [], collections.Counter(), collections.Counter())
    started = time.monotonic()

    @seed(first)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def every(recipe: Recipe) -> None:
        _try(recipe, tally)

    every()
    tally.seconds = time.monotonic() - started
    return tally


def _try(recipe: Recipe, tally: _Tally) -> None:
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]
    if digest in tally.drawn:
        return
    tally.drawn.add(digest)
    tally.operations.update(step.name for step in _all_steps(recipe.steps))
    mesh = "x".join(map(str, recipe.mesh_shape))
    tally.settings.update((recipe.mode, recipe.dtype, recipe.planner, f"mesh {mesh}"))
    try:
        tally.outcomes.append(check(recipe))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        tally.failures.append({"recipe": repr(recipe), "error": text})
        print(f"{recipe}\n{text}", file=sys.stderr, flush=True)
    if (len(tally.outcomes) + len(tally.failures)) % _FORGET_EVERY == 0:
        forget()


def _all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from _all_steps(step.body)


def _summary(tally: _Tally, first: int | None) -> Summary:
    planned = [o for o in tally.outcomes if o.kind == "equal"]
    programs = len(tally.outcomes) + len(tally.failures)
    batch = {"seed": first, "programs": programs, "commit": commit(), **_environment()}
    return {
        "batches": [batch],
        "drawn": sorted(tally.drawn),
        "programs": programs,
        "failures": tally.failures,
        "outcomes": dict(collections.Counter(o.kind for o in tally.outcomes).most_common()),
        "recomputing": sum(o.recomputed > 0 for o in planned),
        "communicating": sum(o.collectives > 0 for o in planned),
        "random_plans": sum(o.recomputed_anyhow > 0 for o in tally.outcomes),
        "recomputed_by_random_plans": sum(o.recomputed_anyhow for o in tally.outcomes),
        "operators": sum(o.operators for o in planned),
        "largest_difference": max((o.difference for o in planned), default=0.0),
        "operations": dict(sorted(tally.operations.items())),
        "settings": dict(sorted(tally.settings.items())),
        "seconds": round(tally.seconds),
    }


def _environment() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.programs " + " ".join(sys.argv[1:]),
        "kiwi": kiwi.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    app.run(main)
