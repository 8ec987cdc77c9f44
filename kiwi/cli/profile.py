"""`kiwi profile`: records a profile table on the attached devices."""

import argparse
import math
from collections.abc import Callable

from kiwi.api import PlannedFunction
from kiwi.cli.output import Bar, Output
from kiwi.loading import load, use_cpu_devices
from kiwi.mesh import record_profile
from kiwi.mesh.recording import Progress
from kiwi.plan.budget import format_seconds


def profile(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi profile`."""
    if arguments.cpu_devices is not None:
        use_cpu_devices(arguments.cpu_devices)
    user = load(arguments.function, arguments.args)
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
    data = {
        "path": arguments.out,
        "operators": len(table.operators),
        "collectives": len(table.collectives),
        "skipped": list(table.skipped),
    }
    text = (
        f"{len(table.operators)} operators and {len(table.collectives)} collectives measured: "
        f"{arguments.out}"
    )
    output.result(data, "\n".join([text, *(f"skipped: {note}" for note in table.skipped)]))
    return True


def _reporter(bar: Bar) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        left = ""
        if math.isfinite(progress.seconds_left):
            left = f", {format_seconds(progress.seconds_left)} left"
        bar.say(f"{progress.done} of {progress.total}{left}: {progress.what[:60]}")
        bar.set(progress.done, progress.total)

    return report
