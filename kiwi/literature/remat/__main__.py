"""Command line: `python -m kiwi.literature.remat GRAPH.json --budget 0.8 --planner fastsa`.

Writes `{"schedule": [node id, ...], "peak": bytes, "time": seconds, "bound": seconds}`. `bound` is
a proven lower bound on the time of every schedule.
"""

import argparse
import json
import sys
from pathlib import Path

from kiwi.errors import KiwiError
from kiwi.literature.remat.node_link import NodeLinkGraph, read_node_link
from kiwi.literature.remat.result import RematResult
from kiwi.literature.remat.simulate import budget_from_share, order_peak_bytes
from kiwi.literature.remat.solve import DEFAULT_PLANNER, PLANNERS, solve


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0, or 2 without a schedule or with unusable
    input."""
    options = _parser().parse_args(arguments)
    try:
        loaded = read_node_link(options.graph)
        budget_bytes = budget_from_share(loaded.graph, options.budget)
        result = solve(
            loaded.graph,
            budget_bytes,
            planner=options.planner,
            time_limit_seconds=options.time_limit,
            seed=options.seed,
        )
    except (KiwiError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _report(loaded, result, budget_bytes)
    answer = {
        "schedule": [loaded.ids[step] for step in result.schedule.steps],
        "peak": result.peak_bytes,
        "time": result.compute_seconds,
        "bound": result.bound_seconds,
    }
    text = json.dumps(answer)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kiwi.literature.remat",
        description="Plan recomputation of a graph under a memory budget.",
    )
    parser.add_argument("graph", type=Path, help="graph in networkx node-link JSON")
    parser.add_argument(
        "--budget", type=float, required=True, help="share of the given order's peak, e.g. 0.8"
    )
    parser.add_argument("--planner", choices=sorted(PLANNERS), default=DEFAULT_PLANNER)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to write; default: standard output")
    return parser


def _report(loaded: NodeLinkGraph, result: RematResult, budget_bytes: int) -> None:
    given = order_peak_bytes(loaded.graph)
    print(
        f"{result.planner}: time +{100 * result.overhead:.2f} %, peak "
        f"{100 * result.peak_bytes / given:.1f} % of the given order's "
        f"(budget {100 * budget_bytes / given:.1f} %), {result.status.value}, "
        f"{result.seconds:.1f} s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
