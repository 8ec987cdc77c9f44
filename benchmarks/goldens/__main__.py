"""Records goldens and checks them; see `benchmarks.goldens`."""

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.goldens.cells import BUDGETS, TARGETS, Series, all_series
from benchmarks.goldens.models import MODELS, use_devices
from benchmarks.goldens.work import Done, Work, check, record


def _done(work: Work, chosen: Sequence[Series], jobs: int, budgets: Sequence[str]) -> list[Done]:
    """Runs `work` on each series in `jobs` processes, and returns the results in order."""
    if jobs == 1:
        use_devices()
        return [work(series, budgets) for series in chosen]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, use_devices) as pool:
        return list(pool.map(work, chosen, [budgets] * len(chosen)))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goldens")
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--target", nargs="+", default=[], choices=TARGETS)
    parser.add_argument("--budget", nargs="+", default=[], choices=BUDGETS, help="of a check")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parsed = parser.parse_args()
    unknown = sorted(set(parsed.models) - set(MODELS))
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if parsed.action == "record" and parsed.budget:
        parser.error("a model is recorded for all budgets; --budget is for check")
    return parsed


def _is_chosen(target: str, named: Sequence[str]) -> bool:
    return target in named if named else not TARGETS[target].takes_minutes


def main() -> int:
    """Records or checks. The exit code is 1 if anything differs or cannot be recorded."""
    parsed = _parsed()
    chosen = [
        series
        for series in all_series()
        if (not parsed.models or series.model in parsed.models)
        and _is_chosen(series.target, parsed.target)
        and (not parsed.budget or set(series.budgets) & set(parsed.budget))
    ]
    work = {"record": record, "check": check}[parsed.action]
    done = _done(work, chosen, parsed.jobs, tuple(parsed.budget))
    lines = [line for series in done for line in series.lines]
    print(f"{sum(series.cpu_seconds for series in done):.0f} CPU seconds")
    if parsed.action == "check" or lines:
        print("\n".join(lines) if lines else "Nothing differs.")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
