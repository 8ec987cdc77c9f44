"""Planners with copies to the host beside planners without, and OffMate beside its published
figures.

    python -m benchmarks.remat.offload --out benchmarks/remat/results/offload.json

**Activations alone.** Each generated graph (`benchmarks.remat.graphs`) and each step from JAX has a
link whose rate moves all values of the forward part to the host in `LINK_SHARE` of the step's time.
blocks-12 has twelve of the blocks below with their link; its weights and their updates stay on the
device. Steps from JAX also have the plans of `kiwi.plan` for one device with that link. Their
figures are shares of its own estimates of memory and time, and copies that hide cost nothing, as
for the planners of graphs.

**Llama2-7B.** The blocks have the sizes and speeds of Zhao's thesis, section 4.8: 32 bit, batch 4
of 512 tokens each, an RTX 3060 with 10 of its 12 GB for the step, 10.4 GB/s to the host each way,
Adam at 16.6 GB/s on the device and 1.1 GB/s on the host. The time of the step without limits is
13.1 s / 1.203, by table 4.2, and includes the updates. All activations have 40.8 GB. The published
figures are the times of table 4.2 in per cent of the step without limits. The rows are the
planner's times for the same figures, in the same per cent. A step here ends in the state in which
it starts, so all its copies and updates end within the step. In the source they may run into the
next step.
"""

import argparse
import functools
import math
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import kiwi
from benchmarks.remat.graphs import Layer, Optimizer, fine_tuning, graph_named
from benchmarks.remat.jax_models import MODELS, trace_model
from benchmarks.remat.row import WIDTH, Results, Row, command_of, solved, table
from kiwi.errors import KiwiError
from kiwi.literature.remat import PLANNERS, RematGraph, Search, order_peak_bytes
from kiwi.literature.remat.offload import Host, OffloadSimulation, simulate, solve_offload
from kiwi.literature.remat.offload.offmate import offmate
from kiwi.literature.remat.offload.simulate import fits
from kiwi.literature.remat.result import Task
from kiwi.mesh import hardware

LINK_SHARE = 0.5
BUDGETS = {"resnet-1": (70, 60), "blocks-12": (70, 50, 35, 20)}
PLANNERS_OF = {
    "resnet-1": ("rk-checkmate", "poet+host", "rotor", "pofo+host", "fastsa", "fastsa+host"),
    "resnet-4": ("rotor", "pofo+host", "fastsa", "fastsa+host"),
    "unet-3": ("rotor", "pofo+host", "fastsa", "fastsa+host"),
    **dict.fromkeys(
        ("blocks-12", "gpt-4"),
        ("rotor", "pofo+host", "offmate+host", "fastsa", "fastsa+host"),
    ),
}
JOINT = "joint+host"
MORE_BUDGETS = (70, 50, 35)
HOST_BUDGET = "64GiB"
TRACED = ("gpt-4",)
"""Steps from JAX (`benchmarks.remat.jax_models`)."""
LATEST = 4
"""The factor from the planned seconds of a search that counts moves to its time limit, for slow
machines."""
SUFFIX = "+host"
"""The suffix of the names of planners that copy to the host."""

GB = 10**9
LLAMA_BYTES = 10 * GB
WHOLE, NO_UPDATES, NO_ACTIVATIONS = "offmate", "offmate, no updates", "offmate, no activations"
PUBLISHED = {WHOLE: 120.3, NO_UPDATES: 139.5, NO_ACTIVATIONS: 135.0}
"""Table 4.2: OffMate, OffMate without updates on the host, and OffMate without activations on the
host."""
FREE_SECONDS, LLAMA_LAYERS = 13.1 / 1.203, 32
ACTIVATION_BYTES = 40.8 * GB
LINK = 10.4 * GB
ADAM = Optimizer(2, 16.6 * GB, 1.1 * GB)
HIDDEN, INNER, TOKENS, HEADS = 4096, 11008, 2048, 32
CHEAP_BYTES_PER_SECOND = 360 * GB
"""The memory bandwidth of the RTX 3060. Elementwise operators read and write their values once."""


def llama_block() -> list[Layer]:
    """Returns a transformer block, with times of matrices by their weights and of elementwise
    operators by their bytes.

    Outputs are scaled, so that all blocks together have the published bytes of activations.
    """
    hidden, inner, scores = HIDDEN * TOKENS, INNER * TOKENS, HEADS * 512 * TOKENS
    square, wide = HIDDEN * HIDDEN, HIDDEN * INNER
    shapes = [
        (hidden, 0),
        *[(hidden, square)] * 3,
        (2 * hidden, 0),
        *[(scores, 0)] * 3,
        (hidden, 0),
        (hidden, square),
        *[(hidden, 0)] * 2,
        (inner, wide),
        (inner, 0),
        (inner, wide),
        (inner, 0),
        (hidden, wide),
        (hidden, 0),
    ]
    scale = ACTIVATION_BYTES / LLAMA_LAYERS / sum(output for output, _ in shapes)
    weight_bytes = 4 * sum(weight for _, weight in shapes)
    seconds = FREE_SECONDS / LLAMA_LAYERS - weight_bytes / ADAM.device_bytes_per_second
    cheap = [2 * scale * out / CHEAP_BYTES_PER_SECOND * (not weight) for out, weight in shapes]
    matrices = seconds / 3 - sum(cheap)
    return [
        Layer(round(scale * out), 4 * weight, spent + matrices * 4 * weight / weight_bytes)
        for (out, weight), spent in zip(shapes, cheap, strict=True)
    ]


def main() -> None:
    """Makes the missing rows, then prints the table."""
    options = _parser().parse_args()
    wanted = [
        Row(name, 0, budget, planner, options.time_limit)
        for name in PLANNERS_OF
        for budget in BUDGETS.get(name, MORE_BUDGETS)
        for planner in (*PLANNERS_OF[name], *((JOINT,) if name in TRACED else ()))
    ]
    wanted += [
        Row(f"llama-{count}", 0, 0, planner, options.llama_time_limit)
        for count in options.llama
        for planner in PUBLISHED
    ]
    command = command_of("benchmarks.remat.offload")
    names = [*PLANNERS_OF, *(f"llama-{count}" for count in options.llama)]
    rows = Results(options.out, command, names).make(wanted, run_row)
    Console(width=WIDTH).print(table(rows))


def run_row(row: Row) -> Row:
    """Plans one row."""
    if row.graph.startswith("llama"):
        return _llama_row(row)
    if row.planner == JOINT:
        return _joint_row(row)
    graph, link = graph_and_link(row.graph)
    row = replace(row, operators=len(graph.operators))
    beyond_bytes = order_peak_bytes(graph) - graph.resident_bytes
    budget_bytes = graph.resident_bytes + math.ceil(beyond_bytes * row.budget_percent / 100)
    planned, limit = row.time_limit_seconds, LATEST * row.time_limit_seconds
    if row.planner in PLANNERS:
        search = Search(graph, row.planner, limit, planned_seconds=planned)
        return solved(row, graph, budget_bytes, search)[0]
    try:
        name = row.planner.removesuffix(SUFFIX)
        result = solve_offload(graph, link, budget_bytes, name, limit, planned_seconds=planned)
    except KiwiError as error:
        return replace(row, note=error.what)
    return replace(_with_figures(row, graph, result.simulation), seconds=result.seconds)


@functools.cache
def graph_and_link(name: str) -> tuple[RematGraph, Host]:
    """Returns a graph by its name, and the link of its device."""
    if name.startswith("blocks"):
        graph, _ = fine_tuning(llama_block(), int(name.split("-")[1]), ADAM)
        return graph, Host(LINK, LINK)
    graph = trace_model(name).graph if name in TRACED else graph_named(name)
    written = {v for k, _ in graph.backward_of for v in graph.operators[k].outputs}
    rate = graph.bytes_of(written) / (LINK_SHARE * graph.once_seconds)
    return graph, Host(rate, rate)


def _joint_row(row: Row) -> Row:
    """Returns the row of the plan of `kiwi.plan` for a step on one device."""
    graph, link = graph_and_link(row.graph)
    step, state, batch = MODELS[row.graph]()
    rate = link.outward_bytes_per_second
    options = {
        "mesh_shape": (1,),
        "profile": replace(
            hardware("h100-sxm"), host_bandwidth_bytes_per_second=rate, host_interference=0.0
        ),
        "verify": None,
        "donate_argnums": 0,
        "effort": "thorough",
        "gap": 0.0,
        "equal_layers": False,
    }
    free = kiwi.plan(step, state, batch, **options).estimate
    beyond = free.peak_bytes - graph.resident_bytes
    budget_bytes = graph.resident_bytes + math.ceil(beyond * row.budget_percent / 100)
    budgets = {"memory_budget": budget_bytes, "host_memory_budget": HOST_BUDGET}
    plan = kiwi.plan(step, state, batch, **budgets, **options)
    gap = plan.solve_result.gap
    return replace(
        row,
        operators=len(graph.operators),
        increase_percent=100 * (plan.estimate.step_seconds / free.step_seconds - 1),
        peak_percent=100 * (plan.estimate.peak_bytes - graph.resident_bytes) / beyond,
        seconds=plan.planning_seconds,
        note="" if gap is None else f"gap {gap:.2%}",
    )


def _with_figures(row: Row, graph: RematGraph, found: OffloadSimulation) -> Row:
    beyond = order_peak_bytes(graph) - graph.resident_bytes
    return replace(
        row,
        increase_percent=100 * (found.seconds / graph.once_seconds - 1),
        peak_percent=100 * (found.peak_bytes - graph.resident_bytes) / beyond,
    )


def _llama_row(row: Row) -> Row:
    """Returns the row of a number of Llama's blocks. The budget is `LLAMA_BYTES` for any number."""
    graph, updates = fine_tuning(llama_block(), int(row.graph.split("-")[1]), ADAM)
    if row.planner == NO_UPDATES:
        updates = tuple(replace(update, host_seconds=math.inf) for update in updates)
    host = Host(LINK, LINK, updates=updates)
    started = time.monotonic()
    task = Task(graph, LLAMA_BYTES, started + row.time_limit_seconds, row.time_limit_seconds, 0)
    finding = offmate(task, host, sends_activations=row.planner != NO_ACTIVATIONS)
    row = replace(row, operators=len(graph.operators), seconds=time.monotonic() - started)
    share = 100 * LLAMA_BYTES / order_peak_bytes(graph)
    note = f"budget {share:.1f} % of the peak without limit, published {PUBLISHED[row.planner]} %"
    if finding.schedule is None:
        return replace(row, note=f"none, {note}")
    simulation = simulate(graph, host, finding.schedule)
    if not fits(task, host, simulation):
        return replace(row, note=f"none within the budget, {note}")
    least = 100 * (finding.family_bound or 0.0) / graph.once_seconds
    percent = 100 * simulation.seconds / graph.once_seconds
    note = f"{percent:.1f} % of the free step ({least:.1f} by the program), {note}"
    return replace(row, increase_percent=percent - 100, note=note)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--time-limit", type=float, default=8.0, help="seconds")
    parser.add_argument("--llama", nargs="*", type=int, default=[32], help="numbers of blocks")
    parser.add_argument("--llama-time-limit", type=float, default=200.0, help="seconds")
    parser.add_argument("--out", type=Path, help="JSON; the table is written beside it")
    return parser


if __name__ == "__main__":
    main()
