"""`kiwi profile`: records a profile table on the attached devices."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from kiwi.api import PlannedFunction
from kiwi.cli.output import Bar, Output
from kiwi.errors import InvalidArgumentError, NotEnoughDevicesError
from kiwi.loading import load, use_cpu_devices
from kiwi.mesh import ProfileTable
from kiwi.profiling.recording import Progress, record_profile


def profile(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi profile`."""
    _check_path(arguments.out)
    if arguments.cpu_devices is not None:
        use_cpu_devices(arguments.cpu_devices)
    user = load(arguments.function, arguments.args)
    before = 0
    if Path(arguments.out).exists():
        known = ProfileTable.load(arguments.out)
        before = len(known.operators) + len(known.collectives)
    try:
        with output.progress(total=1) as bar:
            bar.say("tracing")
            table = record_profile(
                PlannedFunction(user.function, user.options),
                *user.args,
                mesh_shape=arguments.mesh,
                path=arguments.out,
                repetitions=arguments.repetitions,
                on_progress=_reporter(bar),
                **user.kwargs,
            )
    except KeyboardInterrupt:
        if Path(arguments.out).exists():
            output.note(f"{arguments.out} has what was measured; the same command goes on.")
        raise
    except NotEnoughDevicesError as error:
        size = math.prod(arguments.mesh)
        raise NotEnoughDevicesError(
            error.what,
            cause="A table is recorded on the devices that it is for.",
            suggestion=f"A smaller --mesh; or --cpu-devices {size} to measure virtual ones.",
        ) from error
    _report(arguments.out, table, before, output)
    return True


def _check_path(path: str) -> None:
    """`--profile` takes other texts for names."""
    if not path.endswith(".json"):
        raise InvalidArgumentError(
            f"--out {path} does not end with .json, as --profile wants it.",
            suggestion=f"--out {path}.json",
        )


def _report(path: str, table: ProfileTable, before: int, output: Output) -> None:
    data = {
        "path": path,
        "operators": len(table.operators),
        "collectives": len(table.collectives),
        "measured_before": before,
        "skipped": list(table.skipped),
    }
    lines = [
        f"{len(table.operators)} operators and {len(table.collectives)} collectives measured on "
        f"{table.hardware.description.removeprefix('measured ').partition(';')[0]}"
        + (f" ({before} of them before)" if before else "")
        + f": {path}",
        *(f"skipped: {note}" for note in table.skipped),
        f"Plan with it: kiwi plan FILE.py:FUNCTION --mesh ... --profile {path}",
    ]
    output.result(data, "\n".join(lines))


def _reporter(bar: Bar) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        seconds, left = progress.seconds_left, ""
        if math.isfinite(seconds):
            left = f", {seconds / 60:.0f} min left" if seconds > 90 else f", {seconds:.0f} s left"
        bar.say(f"{progress.done} of {progress.total}{left}: {progress.what[:60]}")
        bar.set(progress.done, progress.total)

    return report
