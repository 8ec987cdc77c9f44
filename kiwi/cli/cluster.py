"""`kiwi cluster`: the mesh whose axes have uniform links, from a file or from measurements."""

import argparse
import dataclasses
import math

from kiwi.cli.output import Output
from kiwi.mesh import Assignment, Cluster, best_assignment
from kiwi.profiling.cluster_probe import measure_cluster
from kiwi.sizes import format_seconds


def cluster(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi cluster`."""
    found = _measured(output) if arguments.file is None else Cluster.load(arguments.file)
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
    output.result(data, _text(found, assignment))
    return True


def _measured(output: Output) -> Cluster:
    import jax

    pairs = math.comb(jax.device_count(), 2)
    with output.progress(pairs) as bar:
        bar.say(f"measuring {pairs} connections")
        return measure_cluster(on_pair=bar.advance)


def _text(found: Cluster, assignment: Assignment) -> str:
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
