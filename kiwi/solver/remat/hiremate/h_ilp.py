"""H-ILP (Zhao's thesis, section 3.4): the best schedule of parts that each have several options.

**Sets.** Nodes k and stages t >= k: forward parts, the loss, backward parts in reverse; stage t
ends with the first run of node t. Options o of node k; j(k) is the pair of a forward node f(j) and
its backward node b(j). Values d between parts, with writer w(d); reads(k, o). Substeps i of
(k, o) with own bytes m, freed and unborn values (`option.Substep`).

**Data.** time(k, o), bytes s(d), phantom bytes p(j, o), budget B, optionally a save budget.

**Variables.** `run[t, k, o]` in {0, 1}: node k runs in stage t with option o. `present[t, d]` in
{0, 1}: d is in memory when stage t begins. `saved[t, j, o]` in {0, 1}: so is the phantom of (j, o).
`created[t, d]`, `deleted[t, d, k]` in [0, 1]; `used[t, k]`: memory while k runs, with all that it
reads and writes and without its own bytes.

**Minimise** the sum of time(k, o) run[t, k, o].

**Constraints** (numbers of the thesis)

- (a) Node t runs in stage t (3.9), with one option (3.15); loss and backward nodes run once (3.10).
- (b) Options run if what they read is there (3.13, 3.14).
- (c) What is present was present or computed in the stage before (3.12).
- (d) A phantom is there if it was or its forward node ran with that option (3.17); one option at
  a time (3.16); a backward option needs its phantom (3.19).
- (e) Created if computed and not present (3.22, 3.23).
- (f) Deleted after k: if k runs, d is not present in the next stage, and no later reader runs
  (3.25, 3.26, stated one by one: tighter).
- (g) used[t, k] follows from what is present, created and deleted (3.27 to 3.32).
- (h) used + m run - freed and deleted - unborn and created <= B, for each substep (3.34).
- (i) At the end of the loss's stage, what is present but for gradients is within the save budget.
- (j) Results are present at the end (3.8).

Differs from the text: phantoms may be dropped between stages (3.18 is left out), values have one
writer each, and stages in which a forward node could only run in vain are left out.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortools.math_opt.python import mathopt

from kiwi.solver.mathopt_run import solve_model
from kiwi.solver.remat.hiremate.option import Part
from kiwi.solver.remat.milp import BUDGET_UNITS

GAP = 1e-3
"""Parts are priced by options that are themselves approximate: no need for more."""
CELLS_PER_SECOND = 10_000
"""Terms that are written down in a second, roughly."""


@dataclass(frozen=True)
class HNode:
    """A node: one `Part` per option. `forward`: the node's forward node if it is a backward one."""

    parts: tuple[Part, ...]
    forward: int = -1
    repeatable: bool = False


@dataclass(frozen=True)
class HGraph:
    """Nodes in topological order.

    - `size_bytes`, `writer`: of each value between nodes, `writer` a node.
    - `phantom_bytes[b]`: by option, for each backward node b.
    - `gradients`: values that the loss writes.
    - `results`: values that must be there at the end.
    """

    nodes: tuple[HNode, ...]
    size_bytes: Mapping[int, int]
    writer: Mapping[int, int]
    phantom_bytes: Mapping[int, tuple[int, ...]]
    loss: int
    gradients: frozenset[int]
    results: frozenset[int]


Runs = tuple[tuple[int, int], ...]
"""(node, option) in the order they run."""


@dataclass
class _Program:
    """The program under construction."""

    graph: HGraph
    unit: float
    model: mathopt.Model = field(default_factory=lambda: mathopt.Model(name="h-ilp"))
    run: dict[tuple[int, int, int], mathopt.Variable] = field(default_factory=dict)
    present: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    saved: dict[tuple[int, int, int], mathopt.Variable] = field(default_factory=dict)
    created: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    deleted: dict[tuple[int, int, int], mathopt.Variable] = field(default_factory=dict)

    def options(self, node: int) -> range:
        """Indices of the node's options."""
        return range(len(self.graph.nodes[node].parts))

    def computed(self, stage: int, node: int) -> mathopt.LinearTypes:
        """The sum of `run` over the options."""
        found = [self.run[c] for o in self.options(node) if (c := (stage, node, o)) in self.run]
        return mathopt.fast_sum(found)

    def at_start(self, stage: int, value: int) -> mathopt.LinearTypes:
        """`present`, or zero where the value cannot be there."""
        return self.present.get((stage, value), 0.0)

    def readers(self, value: int) -> dict[int, list[int]]:
        """The nodes with options that read `value`."""
        found = {}
        for k, node in enumerate(self.graph.nodes):
            options = [o for o, part in enumerate(node.parts) if value in part.reads]
            if options:
                found[k] = options
        return found

    def add(self, row: Any) -> None:
        """Adds a constraint."""
        self.model.add_linear_constraint(row)


def solve_h_ilp(
    graph: HGraph,
    budget_bytes: int,
    save_bytes: int | None,
    seconds: float,
    seed: int,
    known: Sequence[int] | None = None,
) -> Runs | None:
    """The best order of runs within the budgets that HiGHS finds in the time, or None.

    `known`: an option for each part, all of which run once, to start from. A program that would
    take the time to write down is not begun.
    """
    program = _Program(graph, BUDGET_UNITS / max(1, budget_bytes))
    readers = {d: program.readers(d) for d in graph.writer}
    latest = _latest_stages(graph, readers)
    if _cells(graph, latest) > CELLS_PER_SECOND * seconds:
        return None
    ends = time.monotonic() + seconds
    _add_variables(program, readers, latest)
    _add_runs(program)
    _add_reads(program, readers)
    _add_presence(program)
    _add_phantoms(program)
    _add_creation(program)
    _add_deletion(program, readers)
    _add_memory(program, save_bytes)
    program.model.minimize(
        mathopt.fast_sum(
            graph.nodes[k].parts[o].seconds * each for (_, k, o), each in program.run.items()
        )
    )
    hint = None if known is None else _hint(program, readers, known)
    return _solved(program, ends - time.monotonic(), seed, hint)


def _cells(graph: HGraph, latest: Sequence[int]) -> int:
    """About how many terms the program has."""
    return sum(
        (last - k + 1) * sum(5 + len(part.substeps) for part in graph.nodes[k].parts)
        for k, last in enumerate(latest)
    )


def _hint(
    program: _Program, readers: Mapping[int, dict[int, list[int]]], known: Sequence[int]
) -> dict[mathopt.Variable, float]:
    """Each node runs in its own stage; what is read later stays."""
    graph = program.graph
    option = [
        known[node.forward if node.forward >= 0 else k] if k != graph.loss else 0
        for k, node in enumerate(graph.nodes)
    ]
    values = {x: float(t == k and o == option[k]) for (t, k, o), x in program.run.items()}
    for (t, d), x in program.present.items():
        last = max((k for k, options in readers[d].items() if option[k] in options), default=-1)
        values[x] = float(t <= last or d in graph.results)
    for (_, b, o), x in program.saved.items():
        values[x] = float(o == option[b])
    return values


def _latest_stages(graph: HGraph, readers: Mapping[int, dict[int, list[int]]]) -> list[int]:
    """The last stage in which a run of each node can be of use."""
    latest = list(range(len(graph.nodes)))
    for k in reversed(range(graph.loss)):
        if not graph.nodes[k].repeatable:
            continue
        written = [d for d, writer in graph.writer.items() if writer == k]
        using = {r for d in written for r in readers[d]}
        using.update(b for b, node in enumerate(graph.nodes) if node.forward == k)
        latest[k] = max([k, *(latest[r] for r in using)])
    return latest


def _add_variables(
    program: _Program, readers: Mapping[int, dict[int, list[int]]], latest: Sequence[int]
) -> None:
    graph, model = program.graph, program.model
    for k, stage in enumerate(latest):
        for t in range(k, stage + 1):
            for o in program.options(k):
                program.run[t, k, o] = model.add_binary_variable(name=f"run[{t},{k},{o}]")
    for d, w in graph.writer.items():
        last = max((latest[r] for r in readers[d]), default=w)
        last = len(graph.nodes) if d in graph.results else last
        for t in range(w + 1, last + 1):
            program.present[t, d] = model.add_binary_variable(name=f"present[{t},{d}]")
        for t in range(w, latest[w] + 1):
            program.created[t, d] = model.add_variable(lb=0.0, ub=1.0, name=f"created[{t},{d}]")
        if d in graph.results:  # (j)
            program.add(program.present[len(graph.nodes), d] == 1.0)
    for b, sizes in graph.phantom_bytes.items():
        for t in range(graph.nodes[b].forward + 1, b + 1):
            for o, size_bytes in enumerate(sizes):
                if size_bytes:
                    name = f"saved[{t},{b},{o}]"
                    program.saved[t, b, o] = model.add_binary_variable(name=name)


def _add_runs(program: _Program) -> None:
    """(a)"""
    for t, k in dict.fromkeys((t, k) for t, k, _ in program.run):
        computed = program.computed(t, k)
        program.add(computed == 1.0) if t == k else program.add(computed <= 1.0)


def _add_reads(program: _Program, readers: Mapping[int, dict[int, list[int]]]) -> None:
    """(b)"""
    for d, reading in readers.items():
        for k, options in reading.items():
            for t in range(k, len(program.graph.nodes)):
                if (t, k, 0) in program.run:
                    there = program.computed(t, program.graph.writer[d]) + program.at_start(t, d)
                    using = mathopt.fast_sum(program.run[t, k, o] for o in options)
                    program.add(using <= there)


def _add_presence(program: _Program) -> None:
    """(c)"""
    for (t, d), present in program.present.items():
        before = program.computed(t - 1, program.graph.writer[d]) + program.at_start(t - 1, d)
        program.add(present <= before)


def _add_phantoms(program: _Program) -> None:
    """(d)"""
    graph = program.graph
    for b, sizes in graph.phantom_bytes.items():
        f = graph.nodes[b].forward
        with_phantom = [o for o, size_bytes in enumerate(sizes) if size_bytes]
        for t in range(f, b + 1):
            running = {o: program.run.get((t, f, o), 0.0) for o in with_phantom}
            there = {o: program.saved.get((t, b, o), 0.0) for o in with_phantom}
            for o in with_phantom:
                after = program.run[b, b, o] if t == b else program.saved[t + 1, b, o]
                program.add(after - there[o] - running[o] <= 0.0)
            if t > f and with_phantom:
                program.add(mathopt.fast_sum([*there.values(), *running.values()]) <= 1.0)


def _add_creation(program: _Program) -> None:
    """(e)"""
    for (t, d), created in program.created.items():
        computed = program.computed(t, program.graph.writer[d])
        before = program.at_start(t, d)
        program.add(created <= computed)
        program.add(created >= computed - before)
        if (t, d) in program.present:
            program.add(created + before <= 1.0)


def _add_deletion(program: _Program, readers: Mapping[int, dict[int, list[int]]]) -> None:
    """(f)"""
    for d, reading in readers.items():
        around = sorted({program.graph.writer[d], *reading})
        for t in range(program.graph.writer[d], len(program.graph.nodes)):
            inside = [k for k in around if (t, k, 0) in program.run]
            for place, k in enumerate(inside):
                deleted = program.model.add_variable(lb=0.0, ub=1.0, name=f"deleted[{t},{d},{k}]")
                program.deleted[t, d, k] = deleted
                program.add(deleted <= program.computed(t, k))
                if (t + 1, d) in program.present:
                    program.add(deleted <= 1.0 - program.present[t + 1, d])
                for j in inside[place + 1 :]:
                    using = mathopt.fast_sum(program.run[t, j, o] for o in reading[j])
                    program.add(deleted <= 1.0 - using)


def _add_memory(program: _Program, save_bytes: int | None) -> None:
    """(g), (h), (i)"""
    graph, unit = program.graph, program.unit
    size = {d: unit * size_bytes for d, size_bytes in graph.size_bytes.items()}
    for t in range(len(graph.nodes)):
        held = mathopt.fast_sum(
            [size[d] * each for (s, d), each in program.present.items() if s == t]
            + [
                unit * graph.phantom_bytes[b][o] * each
                for (s, b, o), each in program.saved.items()
                if s == t
            ]
        )
        if t == graph.loss + 1 and save_bytes is not None:
            gradients = [
                size[d] * program.present[t, d]
                for d in graph.gradients
                if (t, d) in program.present
            ]
            program.add(held - mathopt.fast_sum(gradients) <= unit * save_bytes)
        for k in range(t + 1):
            if (t, k, 0) in program.run:
                held = _add_run_memory(program, size, t, k, held)


def _add_run_memory(
    program: _Program, size: Mapping[int, float], t: int, k: int, held: mathopt.LinearTypes
) -> mathopt.LinearTypes:
    """Rows of one run; returns the memory behind it."""
    graph, unit = program.graph, program.unit
    written = {d for d, writer in graph.writer.items() if writer == k}
    created = [size[d] * program.created[t, d] for d in written]
    phantoms = [
        unit * sizes[o] * program.run[t, k, o]
        for b, sizes in graph.phantom_bytes.items()
        if graph.nodes[b].forward == k
        for o in program.options(k)
        if sizes[o]
    ]
    used = program.model.add_variable(lb=0.0, name=f"used[{t},{k}]")
    program.add(used == held + mathopt.fast_sum([*created, *phantoms]))
    for o, part in enumerate(graph.nodes[k].parts):
        for step in part.substeps:
            freed = [
                size[d] * program.deleted[t, d, k]
                for d in step.freed
                if (t, d, k) in program.deleted
            ]
            unborn = [size[d] * program.created[t, d] for d in step.unborn if d in written]
            own = unit * step.own_bytes * program.run[t, k, o]
            program.add(used + own - mathopt.fast_sum([*freed, *unborn]) <= BUDGET_UNITS)
    gone: list[mathopt.LinearTypes] = [
        size[d] * each for (s, d, j), each in program.deleted.items() if (s, j) == (t, k)
    ]
    if t == k and k in graph.phantom_bytes:
        f = graph.nodes[k].forward
        for o, size_bytes in enumerate(graph.phantom_bytes[k]):
            if size_bytes:
                there = program.saved[t, k, o] + program.run.get((t, f, o), 0.0)
                gone.append(unit * size_bytes * there)
    return used - mathopt.fast_sum(gone)


def _solved(
    program: _Program, seconds: float, seed: int, hint: Mapping[mathopt.Variable, float] | None
) -> Runs | None:
    answer = solve_model(program.model, seconds, seed, GAP, hint)
    if answer.values is None:
        return None
    runs = sorted(cell for cell, each in program.run.items() if answer.values[each] > 0.5)
    return tuple((k, o) for _, k, o in runs)
