"""The solution of one cluster: combinations of its parts' options, and H-ILP.

The integer program is `kiwi.literature.remat.stages`.
"""

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
"""The relative gap at which H-ILP ends. Options of parts are approximate, so that a smaller gap is
of no use."""
CELLS_PER_SECOND = 10_000
"""The number of terms of a program that are written down in a second, roughly. A program that would
take longer than its time is not begun."""

Options = tuple[StepPair, ...]
"""The ways to run a cluster, in the cluster's own numbers."""


@dataclass(frozen=True)
class HiremateSettings:
    """How graphs are divided, and how the parts are solved.

    - `most_top`, `most_lower`: the largest number of parts of the whole graph and of a cluster
      (M^t, M^l).
    - `most_at_all`: in later rounds the whole graph is divided into twice as many parts, up to this
      number. In the first rounds it is divided into fewer, down to `FEWEST_TOP`.
    - `most_options`: the largest number of options of a cluster.
    - `peak_budgets`, `save_budgets`: the numbers of peak and save budgets for which a cluster is
      solved.
    - `parts_share`: the share of the time limit for all clusters except the whole graph.
    - `most_direct`: a graph with at most this many operators is first given to `moccasin`.
    - `workers`: the number of parallel processes.
    - `process_seconds`: roughly the time of starting them. A level with less than twice this time
      is solved in this process unless the others already run.
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
    """Returns options of a cluster, and whether the clock left nothing out.

    The options are combinations of its parts' options, then H-ILP's for budgets as far as `seconds`
    go.
    """
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
    distinct = dict.fromkeys(pairs)
    made = [make_option(cluster.graph, cluster.interface, pair) for pair in distinct]
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
    """Returns the best way that HiGHS finds to run a cluster within the budgets, or None.

    The second result is False if the clock ended the search or left no time for it. A program that
    would take `seconds` to write down is not begun.

    - `save_bytes`: the save budget; None for the whole graph.
    - `known`: a combination (an option for each part) to start from.
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
    """Returns about how many terms the program has."""
    return sum(
        (last - k + 1) * sum(5 + len(part.substeps) for part in graph.nodes[k].parts)
        for k, last in enumerate(graph.latest)
    )


def _budgets(problem: PartProblem) -> list[tuple[int, int]]:
    """Returns pairs (peak budget, save budget) in bytes, evenly spaced (section 2.6)."""
    cluster = problem.cluster
    block = _with_loss(cluster)
    low, high = largest_working_set(block).size_bytes, order_peak_bytes(block)
    keep = make_option(cluster.graph, cluster.interface, (cluster.forward, cluster.backward))
    peaks = evenly(low, high, problem.settings.peak_budgets)
    outputs = cluster.graph.bytes_of(cluster.outputs)
    saves = evenly(0, keep.saved_bytes + outputs, problem.settings.save_budgets)
    return [(peak_bytes, save_bytes) for save_bytes in saves for peak_bytes in peaks]


def _with_loss(cluster: Cluster) -> RematGraph:
    """Returns the cluster as a plain graph, with a loss in place of the rest of the step."""
    loss = Operator("loss", 0.0, tuple(cluster.outputs), tuple(cluster.gradients), 0, False)
    operators = cluster.graph.operators
    first = cluster.forward_count
    listed = (*operators[:first], loss, *operators[first:])
    results = cluster.interface - cluster.outputs
    return RematGraph(listed, cluster.graph.values, tuple(range(len(listed))), results)


def part_options(problem: PartProblem) -> list[list[Option]]:
    """Returns the options of each part, priced within the cluster."""
    cluster = problem.cluster
    priced = []
    for operators, pairs in zip(cluster.children, problem.parts, strict=True):
        interface = leaving(cluster.graph, operators)
        priced.append([make_option(cluster.graph, interface, pair) for pair in pairs])
    return priced


def fewer_options(options: Sequence[Sequence[Option]], most: int) -> list[list[Option]]:
    """Returns the options that take part in H-ILP: on average half of `most` per part (section
    3.4.5)."""
    room, total = most * len(options) // 2, max(1, sum(map(len, options)))
    return [
        select(list(alternatives), max(1, room * len(alternatives) // total))
        for alternatives in options
    ]


def stage_graph(
    cluster: Cluster, options: Sequence[Sequence[Option]], *, is_whole: bool
) -> StageGraph:
    """Returns the stage graph: parts forward, the loss, parts backward in reverse.

    `is_whole` says that the cluster is the whole graph, in which the loss reads and writes nothing.
    """
    count, nodes = len(options), []
    for alternatives in options:
        again = (
            cluster.graph.operators[k].recomputable
            for option in alternatives
            for k in option.forward.steps
        )
        nodes.append(Node(tuple(option.forward for option in alternatives), repeatable=all(again)))
    reads = frozenset() if is_whole else cluster.outputs
    gradients = frozenset() if is_whole else cluster.gradients
    nodes.append(Node((Part((), 0.0, reads, (Substep(0),)),)))
    backward_nodes: dict[int, int] = {}
    phantom_bytes: dict[int, dict[int, int]] = {}
    for child in reversed(range(count)):
        if any(k >= cluster.forward_count for k in cluster.children[child]):
            backward_nodes[child] = len(nodes)
            sizes = {number: option.saved_bytes for number, option in enumerate(options[child])}
            phantom_bytes[len(nodes)] = {number: size for number, size in sizes.items() if size}
            nodes.append(Node(tuple(option.backward for option in options[child]), forward=child))
    writer = dict.fromkeys(gradients, count)
    for child, operators in enumerate(cluster.children):
        for value in sorted(leaving(cluster.graph, operators)):
            is_forward = cluster.graph.producer[value] < cluster.forward_count
            writer[value] = child if is_forward else backward_nodes[child]
    return StageGraph(
        tuple(nodes),
        {value: cluster.graph.values[value].size_bytes for value in writer},
        writer,
        cluster.interface if is_whole else cluster.interface - cluster.outputs,
        phantom_bytes,
        count,
        gradients,
    )
