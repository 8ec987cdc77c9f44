"""Records goldens and checks them; see `benchmarks.goldens`."""

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.goldens import command
from benchmarks.goldens.cells import PLANNERS, SHARES
from benchmarks.goldens.models import MODELS, use_devices
from benchmarks.goldens.work import Selection, Work, check, confirm, record


def _each(work: Work, examples: Sequence[str], jobs: int, selection: Selection) -> list[list[str]]:
    """`work` on each example, in so many processes."""
    if jobs == 1:
        use_devices()
        return [work(example, selection) for example in examples]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, use_devices) as pool:
        running = [pool.submit(work, example, selection) for example in examples]
        return [each.result() for each in running]


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goldens")
    parser.add_argument(
        "action",
        choices=("record", "check", "confirm"),
        help="confirm: plan again what was recorded, and mark what the clock decides",
    )
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=", ".join(MODELS))
    planners, budgets = (*PLANNERS, command.COMMAND), (*SHARES, *command.CALLS)
    parser.add_argument("--planner", nargs="+", default=[], choices=planners)
    parser.add_argument("--budget", nargs="+", default=[], choices=budgets)
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parsed = parser.parse_args()
    unknown = sorted(set(parsed.examples) - set(MODELS))
    if unknown:
        parser.error(f"no example {', '.join(unknown)}; there are {', '.join(MODELS)}")
    return parsed


def main() -> int:
    """Records or checks; the exit code is 1 where something differs."""
    parsed = _parsed()
    examples = parsed.examples or list(MODELS)
    selection = Selection(tuple(parsed.planner), tuple(parsed.budget))
    work = {"record": record, "check": check, "confirm": confirm}[parsed.action]
    found = [line for own in _each(work, examples, parsed.jobs, selection) for line in own]
    if parsed.action == "record":
        return 0
    print("\n".join(found) if found else "Nothing differs.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
