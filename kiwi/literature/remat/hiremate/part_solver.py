"""One cluster: combinations of its parts' options, and H-ILP (`kiwi.literature.remat.stages`)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.literature.remat.graph import Operator, RematGraph
from kiwi.literature.remat.hiremate.cluster import Cluster, StepPair, leaving
from kiwi.literature.remat.hiremate.option import (
    Option,
    combinations,
    combined,
    make_option,
    plain_options,
    select,
)
from kiwi.literature.remat.simulate import evenly, largest_working_set, order_peak_bytes
from kiwi.literature.remat.stages import Node, Part, StageGraph, StageProgram, Substep
from kiwi.solver.mathopt_run import solve_model

GAP = 1e-3
"""Parts are priced by options that are themselves approximate: no need for more."""
CELLS_PER_SECOND = 10_000
"""Terms that are written down in a second, roughly."""

Options = tuple[StepPair, ...]
"""The ways to run a cluster, in its own numbers."""


@dataclass(frozen=True)
class HiremateSettings:
    """How graphs are divided, and how the parts are solved.

    - `most_top`, `most_lower`: most parts of the whole graph and of a cluster (M^t, M^l).
    - `most_at_all`: the whole is divided again into twice as many parts, up to this number. At
      first it is divided into fewer, down to `FEWEST_TOP`.
    - `most_options`: most options of a cluster. `peak_budgets`, `save_budgets`: the budgets for
      which a cluster is solved.
    - `parts_share`: share of the time limit for all clusters except the whole.
    - `most_direct`: a graph with at most this many operators is first given to `moccasin`.
    - `workers`: parallel processes. `process_seconds`: roughly the time of starting them. Levels
      with less than twice the time are solved in this process unless the others already run.
    """

    most_top: int = 12
    most_at_all: int = 48
    most_lower: int = 6
    most_options: int = 8
    peak_budgets: int = 2
    save_budgets: int = 3
    parts_share: float = 0.6
    workers: int = 2
    process_seconds: float = 2.0
    most_direct: int = 150


@dataclass(frozen=True)
class PartProblem:
    """A cluster with the options of its parts, in the cluster's numbers."""

    cluster: Cluster
    parts: tuple[Options, ...]
    settings: HiremateSettings
    seed: int


def solve_part(problem: PartProblem, seconds: float) -> tuple[Options, bool]:
    """Options of a cluster: combinations of its parts', then for budgets as far as time goes; and
    whether the clock left nothing out."""
    cluster, deadline = problem.cluster, time.monotonic() + seconds
    pairs, complete = plain_options(cluster), True
    if cluster.children and cluster.backward:
        options = part_options(problem)
        chosen = combinations(cluster, options)
        evenly_spaced = evenly(0, len(chosen) - 1, problem.settings.most_options - 1)
        pairs += [combined(options, chosen[count]) for count in sorted({0, *evenly_spaced})]
        budgets = _budgets(problem)
        for number, (peak_bytes, save_bytes) in enumerate(budgets):
            left = deadline - time.monotonic()
            if left <= 0:
                complete = False
                break
            share = left / (len(budgets) - number)
            pair, closed = solve_once(problem, options, peak_bytes, save_bytes, share)
            complete = complete and closed
            pairs += [] if pair is None else [pair]
    found = dict.fromkeys(pairs)
    made = [make_option(cluster.graph, cluster.interface, pair) for pair in found]
    selected = select(made, problem.settings.most_options)
    return tuple((option.forward.steps, option.backward.steps) for option in selected), complete


def solve_once(
    problem: PartProblem,
    options: Sequence[Sequence[Option]],
    peak_bytes: int,
    save_bytes: int | None,
    seconds: float,
    known: Sequence[int] | None = None,
) -> tuple[StepPair | None, bool]:
    """The best way that HiGHS finds to run a cluster within the budgets, or None; and whether the
    clock did not end the search.

    A program that would take `seconds` to write down is not begun. `save_bytes`: None for the whole
    graph; `known`: a combination (an option for each part) to start from.
    """
    options = fewer_options(options, problem.settings.most_options)
    graph = stage_graph(problem.cluster, options, is_whole=save_bytes is None)
    if _cells(graph) > CELLS_PER_SECOND * seconds:
        return None, False
    ends = time.monotonic() + seconds
    program = StageProgram(graph, peak_bytes, save_bytes)
    hint = None if known is None else program.hint(known)
    left = ends - time.monotonic()
    answer = solve_model(program.model, left, problem.seed, GAP, hint)
    if answer.values is None:
        return None, not answer.timed_out
    runs = program.runs(answer.values)
    at = next(place for place, (node, _) in enumerate(runs) if node == graph.loss)
    return (graph.steps_of(runs[:at]), graph.steps_of(runs[at:])), not answer.timed_out


def _cells(graph: StageGraph) -> int:
    """About how many terms the program has."""
    return sum(
        (last - k + 1) * sum(5 + len(part.substeps) for part in graph.nodes[k].parts)
        for k, last in enumerate(graph.latest)
    )


def _budgets(problem: PartProblem) -> list[tuple[int, int]]:
    """(peak, save), evenly spaced (section 2.6)."""
    cluster = problem.cluster
    block = _with_loss(cluster)
    low, high = largest_working_set(block).size_bytes, order_peak_bytes(block)
    keep = make_option(cluster.graph, cluster.interface, (cluster.forward, cluster.backward))
    peaks = evenly(low, high, problem.settings.peak_budgets)
    outputs = cluster.graph.bytes_of(cluster.outputs)
    saves = evenly(0, keep.saved_bytes + outputs, problem.settings.save_budgets)
    return [(peak_bytes, save_bytes) for save_bytes in saves for peak_bytes in peaks]


def _with_loss(cluster: Cluster) -> RematGraph:
    """The cluster with a loss in place of the rest of the graph, as a plain graph."""
    loss = Operator("loss", 0.0, tuple(cluster.outputs), tuple(cluster.gradients), 0, False)
    operators = cluster.graph.operators
    first = cluster.forward_count
    listed = (*operators[:first], loss, *operators[first:])
    results = cluster.interface - cluster.outputs
    return RematGraph(listed, cluster.graph.values, tuple(range(len(listed))), results)


def part_options(problem: PartProblem) -> list[list[Option]]:
    """The options of each part, with their prices within the cluster."""
    cluster = problem.cluster
    found = []
    for operators, pairs in zip(cluster.children, problem.parts, strict=True):
        interface = leaving(cluster.graph, operators)
        found.append([make_option(cluster.graph, interface, pair) for pair in pairs])
    return found


def fewer_options(options: Sequence[Sequence[Option]], most: int) -> list[list[Option]]:
    """The options that take part in H-ILP: half of `most` on average (section 3.4.5)."""
    room, total = most * len(options) // 2, max(1, sum(map(len, options)))
    return [select(list(each), max(1, room * len(each) // total)) for each in options]


def stage_graph(
    cluster: Cluster, options: Sequence[Sequence[Option]], *, is_whole: bool
) -> StageGraph:
    """Parts forward, the loss, parts backward in reverse."""
    count, nodes = len(options), []
    for each in options:
        again = (cluster.graph.operators[k].recomputable for o in each for k in o.forward.steps)
        nodes.append(Node(tuple(o.forward for o in each), repeatable=all(again)))
    reads = frozenset() if is_whole else cluster.outputs
    gradients = frozenset() if is_whole else cluster.gradients
    nodes.append(Node((Part((), 0.0, reads, (Substep(0),)),)))
    behind: dict[int, int] = {}
    phantom_bytes: dict[int, dict[int, int]] = {}
    for child in reversed(range(count)):
        if any(k >= cluster.forward_count for k in cluster.children[child]):
            behind[child] = len(nodes)
            sizes = {o: option.saved_bytes for o, option in enumerate(options[child])}
            phantom_bytes[len(nodes)] = {o: size for o, size in sizes.items() if size}
            nodes.append(Node(tuple(o.backward for o in options[child]), forward=child))
    writer = dict.fromkeys(gradients, count)
    for child, operators in enumerate(cluster.children):
        for v in sorted(leaving(cluster.graph, operators)):
            is_forward = cluster.graph.producer[v] < cluster.forward_count
            writer[v] = child if is_forward else behind[child]
    return StageGraph(
        tuple(nodes),
        {v: cluster.graph.values[v].size_bytes for v in writer},
        writer,
        cluster.interface if is_whole else cluster.interface - cluster.outputs,
        phantom_bytes,
        count,
        gradients,
    )
