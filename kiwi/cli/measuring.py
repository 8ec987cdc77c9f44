"""What is measured on the attached devices.

- `kiwi cluster`: the mesh whose axes have uniform links, from a file or from measurements.
- `kiwi profile`: a profile table.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import jax

from kiwi.api import PlannedFunction
from kiwi.cli.output import Output, Show
from kiwi.errors import InvalidArgumentError, NotEnoughDevicesError
from kiwi.loading import load, use_cpu_devices
from kiwi.mesh import Assignment, Cluster, ProfileTable, best_assignment
from kiwi.profiling.cluster_probe import measure_cluster
from kiwi.profiling.recording import Progress, record_profile
from kiwi.sizes import format_seconds


def cluster(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi cluster`."""
    found = _measured_cluster(output) if arguments.file is None else Cluster.load(arguments.file)
    if arguments.out:
        found.save(arguments.out)
        output.note(f"Measurements saved to {arguments.out}")
    assignment = best_assignment(found, arguments.mesh)
    data = {
        "mesh_shape": list(assignment.shape),
        "device_order": list(assignment.order),
        "uniform": assignment.is_uniform,
        # JSON knows no infinity: along a single device nothing is sent.
        "axes": [dataclasses.asdict(a) if a.size > 1 else {"size": 1} for a in assignment.axes],
    }
    output.result(data, _cluster_text(found, assignment))
    return True


def _measured_cluster(output: Output) -> Cluster:
    pairs = math.comb(jax.device_count(), 2)
    with output.progress(pairs) as show:
        show(description=f"measuring {pairs} connections")
        return measure_cluster(on_pair=lambda: show(advance=1))


def _cluster_text(found: Cluster, assignment: Assignment) -> str:
    shape = " x ".join(map(str, assignment.shape))
    kind = "uniform links" if assignment.is_uniform else "links that differ along an axis"
    lines = [f"{found.size} devices as a mesh of {shape}: {kind}"]
    for number, axis in enumerate(assignment.axes):
        if axis.size > 1:
            slowest = axis.link.bandwidth_bytes_per_second / 1e9
            lines.append(
                f"axis {number}: {axis.size} devices, {slowest:.4g} GB/s "
                f"(fastest {axis.fastest_bytes_per_second / 1e9:.4g}), "
                f"{format_seconds(axis.link.latency_seconds)}"
            )
    names = ", ".join(str(found.devices[index]) for index in assignment.order)
    order = ",".join(map(str, assignment.order))
    return "\n".join([*lines, f"device order: {order}", f"devices: {names}"])


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
        with output.progress(total=1) as show:
            show(description="tracing")
            table = record_profile(
                PlannedFunction(user.function, user.options),
                *user.args,
                mesh_shape=arguments.mesh,
                compiler=arguments.compiler,
                path=arguments.out,
                repetitions=arguments.repetitions,
                on_progress=_reporter(show),
                **user.kwargs,
            )
    except KeyboardInterrupt:
        if Path(arguments.out).exists():
            output.note(f"{arguments.out} has what was measured; the same command goes on.")
        raise
    except NotEnoughDevicesError as error:
        size = math.prod(arguments.mesh)
        raise error.changed(
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
        "scales": dict(table.scales),
    }
    assert table.environment is not None
    device = table.hardware.description.removeprefix("measured ").partition(";")[0]
    compiler = table.environment.compiler
    how = f"stated by {compiler} for" if compiler else "measured on"
    lines = [
        f"{len(table.operators)} operators and {len(table.collectives)} collectives {how} {device}"
        + (f" ({before} of them before)" if before else "")
        + f": {path}",
        *(f"times of {of} scaled by {scale:.3f}" for of, scale in table.scales.items()),
        *(f"skipped: {note}" for note in table.skipped),
        f"Plan with it: kiwi plan FILE.py:FUNCTION --mesh ... --profile {path}",
    ]
    output.result(data, "\n".join(lines))


def _reporter(show: Show) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        seconds, left = progress.seconds_left, ""
        if math.isfinite(seconds):
            left = f", {seconds / 60:.0f} min left" if seconds > 90 else f", {seconds:.0f} s left"
        text = f"{progress.done} of {progress.total}{left}: {progress.what[:60]}"
        show(description=text, completed=progress.done, total=progress.total)

    return report
