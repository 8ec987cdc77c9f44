"""Table 1 of the paper: the full, reduced and joint formulations on a 7-layer MLP.

Forward and backward pass have 7 products, 6 rectifiers and their gradients: 27 operators (the paper
has 26). The devices are 8 V100s behind Ethernet, mesh (8, 1). There are two sizes: large weights,
and large activations. Limits are shares of the peak of the fastest plan without a limit, and times
are relative to its time. All times and peaks are simulated. Solver seconds are processor seconds,
because the machine may be shared.

    python -m benchmarks.paper.table1
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from absl import app, flags

import kiwi
from benchmarks.paper._setup import NO_LIMIT_BYTES, Results, begin, define_flags
from kiwi.literature.formulations import FORMULATIONS, Answer, ShardedGraph, solve_formulation
from kiwi.literature.planners.paper_models import sharded_graph
from kiwi.mesh import DeviceMesh
from kiwi.options import Settings
from kiwi.planners.registry import planner_named

define_flags("table1", seconds=60.0)

LAYERS = 7
SIZES = {"weights": (2048, 1024), "activations": (512, 8192)}
"""Width and batch of each size."""
LIMITS = (0.2, 0.4, 0.6, 0.8)
JOINT_SECONDS = 0.8
JOINT_GAP = 0.01
_LINES: dict[str, dict[str, Any]] = {
    "full": {"color": "#9ecae1", "marker": "o", "linewidth": 5, "markersize": 11},
    "reduced": {"color": "#ff7f0e", "marker": "s", "linewidth": 2.5, "markersize": 6},
    "joint": {"color": "#d62728", "marker": "*", "linestyle": "--", "markersize": 6},
}
"""The style of each line. Widths differ, so that lines on top of each other stay visible."""
PAPER = {
    0.2: {"full": (8.35, 1717.18), "reduced": (8.35, 0.79)},
    0.4: {"full": (4.88, 660.41), "reduced": (5.09, 0.91)},
    0.6: {"full": (2.71, 718.49), "reduced": (3.13, 0.80)},
    0.8: {"full": (1.54, 39.71), "reduced": (1.72, 0.67)},
}
"""The paper's normalised latency and solver seconds, by limit and formulation."""


def main(_: list[str]) -> None:
    """Solves the missing cases, then draws the table."""
    results = begin("table1")
    for size, (width, batch) in SIZES.items():
        wanted = [(r, f) for r in LIMITS for f in FORMULATIONS]
        if all(f"{size} {r:.0%} {f}" in results.rows for r, f in wanted):
            continue
        graph = mlp_graph(width, batch)
        free = solve_formulation(graph, NO_LIMIT_BYTES, "joint")
        solve_formulation(graph, NO_LIMIT_BYTES, "full")  # Compiles code before timing.
        for share, formulation in wanted:
            key = f"{size} {share:.0%} {formulation}"
            if key not in results.rows:
                results.add(key, _row(graph, free, share, formulation))
    _draw(results)


def mlp_graph(width: int, batch: int) -> ShardedGraph:
    """Returns the gradient of the MLP's loss as a graph, with the strategies of each operator on
    the mesh."""
    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * LAYERS
    inputs = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    step = kiwi.jit(jax.grad(_loss), mesh_shape=(1,), verify=None)
    settings = Settings(
        mesh=DeviceMesh.create((8, 1), flags.FLAGS.profile),
        memory_budget_bytes=NO_LIMIT_BYTES,
        planner="joint",
        time_limit_seconds=60.0,
        verify=None,
        solver="auto",
        seed=0,
        gap=1e-6,
        respect_user_checkpoint=False,
    )
    problem = planner_named("joint").formulate(
        step.traced(weights, inputs), NO_LIMIT_BYTES, settings
    )
    return sharded_graph(problem)


def _loss(weights, x):
    for w in weights[:-1]:
        x = jax.nn.relu(x @ w)
    return jnp.sum((x @ weights[-1]) ** 2)


def _row(graph: ShardedGraph, free: Answer, share: float, formulation: str) -> dict[str, object]:
    assert free.priced is not None
    limit = int(share * free.priced.peak_bytes)
    joint = formulation == "joint"
    wall = time.perf_counter()
    answer = solve_formulation(
        graph,
        limit,
        formulation,
        time_limit_seconds=JOINT_SECONDS if joint else flags.FLAGS.time_limit_seconds,
        gap=JOINT_GAP if joint else 1e-6,
    )
    priced = answer.priced
    return {
        "operators": len(graph.computing),
        "limit_bytes": limit,
        "status": answer.status.value,
        "normalised_latency": None if priced is None else priced.compute_seconds / free.seconds,
        "normalised_bound": answer.bound_seconds / free.seconds,
        "peak_bytes": None if priced is None else priced.peak_bytes,
        "solve_seconds": round(answer.solve_seconds, 3),
        "wall_seconds": round(time.perf_counter() - wall, 3),
        "solver": answer.solver,
        "paper": PAPER[share].get(formulation),
    }


def _draw(results: Results) -> None:
    figure, panels = plt.subplots(2, len(SIZES), figsize=(9, 5.6), squeeze=False, sharex=True)
    for column, size in enumerate(SIZES):
        for formulation in FORMULATIONS:
            rows = [results.rows[f"{size} {r:.0%} {formulation}"] for r in LIMITS]
            shares = [100 * r for r in LIMITS]
            for panel, name in enumerate(("normalised_latency", "solve_seconds")):
                values = [float("nan") if r[name] is None else r[name] for r in rows]
                panels[panel][column].plot(shares, values, label=formulation, **_LINES[formulation])
        panels[0][column].set_title(f"7-layer MLP, heavy in {size}")
        panels[1][column].set_xlabel("limit, % of the unlimited peak")
        panels[1][column].set_ylim(0, None)
        for panel in panels[:, column]:
            panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("time / unlimited")
    panels[1][0].set_ylabel("solver seconds (processor)")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
