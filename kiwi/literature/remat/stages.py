"""The integer program over stages of Checkmate, rk-checkmate and H-ILP.

**Sets.** Nodes k stand in topological order. Stages t >= k: stage t ends with the first run of node
t. Options o of a node are ways to run it; reads(k, o) are the values that an option reads. Values d
have a writer w(d). Substeps i of (k, o) have own bytes m, freed and unborn values (`Substep`). A
backward node may have a forward node, whose option it shares. It then needs the *phantom* of that
option: the values that the option saves for it. Options, substeps and phantoms are H-ILP's (Zhao's
thesis, section 3.4, numbers in brackets). Checkmate (Jain et al., MLSys 2020) and rk-checkmate
(section 2.4) have one option and one substep for each operator, with its temporary memory.

**Data.** time(k, o), bytes s(d), phantom bytes p(b, o), budget B, and optionally a save budget.
Memory is scaled to B, time to the sum over all nodes.

**Variables.** `run[t, k, o]` in {0, 1}: node k runs in stage t with option o. `present[t, d]` in
{0, 1}: value d is in memory when stage t begins. `saved[t, b, o]` in {0, 1}: the phantom of (b, o)
is in memory when stage t begins. `created[t, d]` and `deleted[t, d, k]` are in [0, 1]. `used` is
the memory while k runs in stage t: with all that k reads and writes, without its own bytes.

**Minimise** the sum of time(k, o) run[t, k, o].

**Constraints**

- (a) Node t runs in stage t (3.9), with one option (3.15). Nodes that are not repeatable run once
  (3.10).
- (b) An option runs only if the values that it reads are in memory or computed in the stage (3.13,
  3.14).
- (c) A value is present only if it was present or computed in the stage before (3.12).
- (d) A phantom is in memory only if it was before, or if its forward node ran with its option
  (3.17). There is one option at a time (3.16). A backward option needs its phantom (3.19).
- (e) A value is created if it is computed and not present (3.22, 3.23). In Checkmate a present
  value is not computed.
- (f) A value is deleted after k if k runs, the value is not present in the next stage, and no later
  reader runs (3.25, 3.26). Stated one by one, these rows are tighter, and `deleted` need not be
  integer.
- (g) `used` follows from what is present, created and deleted (3.27 to 3.32).
- (h) used + m run - freed and deleted - unborn and created <= B, for each substep (3.34).
- (i) At the end of the loss's stage, the present values without gradients are within the save
  budget.
- (j) Results are present at the end (3.8).

Differs from the texts: phantoms may be dropped between stages (3.18 is left out), each value has
one writer, and stages in which a run of a node could not be of use are left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ortools.math_opt.python import mathopt

BUDGET_UNITS = 1e4
"""The budget in the model's unit of memory. The tolerances of solvers are then far below a byte."""

Runs = tuple[tuple[int, int], ...]
"""Pairs (node, option) in the order they run."""
Terms = list[mathopt.LinearTypes]


@dataclass(frozen=True)
class Substep:
    """The memory at one step of a part.

    - `own_bytes`: the memory of values that only the part knows, less the whole phantom.
    - `freed`: values from outside the part that it does not read from this step on.
    - `unborn`: values for other nodes that the part writes later.
    """

    own_bytes: int
    freed: frozenset[int] = frozenset()
    unborn: frozenset[int] = frozenset()

    @property
    def is_bounding(self) -> bool:
        """Whether the budget bounds `used` itself, whether or not the node runs in the stage."""
        return self.own_bytes >= 0 and not self.freed and not self.unborn

    def implies(self, other: "Substep") -> bool:
        """Returns whether a limit on this step's memory is at least as tight as a limit on
        `other`'s."""
        return (
            self.own_bytes >= other.own_bytes
            and self.freed <= other.freed
            and self.unborn <= other.unborn
        )


@dataclass(frozen=True)
class Part:
    """One way to run a node.

    - `steps`: its operators in turn.
    - `reads`: values from outside that it needs.
    - `peak_bytes`: the peak of its own values, the phantom included.
    """

    steps: tuple[int, ...]
    seconds: float
    reads: frozenset[int]
    substeps: tuple[Substep, ...]
    peak_bytes: int = 0


@dataclass(frozen=True)
class Node:
    """A node with one `Part` for each option.

    - `forward`: the forward node of a backward node, else -1.
    - `repeatable`: whether the node may run more than once.
    """

    parts: tuple[Part, ...]
    forward: int = -1
    repeatable: bool = False


@dataclass(frozen=True)
class StageGraph:
    """Nodes in topological order, and the values between them.

    - `size_bytes`: the size of each value.
    - `writer`: the node that writes each value.
    - `results`: values that must be in memory at the end.
    - `phantom_bytes[b]`: for each backward node b, the size of the phantom of each option that has
      one.
    - `loss`: the node behind which the save budget holds.
    - `gradients`: values that do not count for the save budget.
    """

    nodes: tuple[Node, ...]
    size_bytes: Mapping[int, int]
    writer: Mapping[int, int]
    results: frozenset[int]
    phantom_bytes: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    loss: int = -1
    gradients: frozenset[int] = frozenset()

    def steps_of(self, runs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """Returns the operators of `runs` in turn."""
        return tuple(step for k, o in runs for step in self.nodes[k].parts[o].steps)

    @cached_property
    def once_seconds(self) -> float:
        """The least time to run every node once; 1 if that time is 0."""
        return sum(min(part.seconds for part in node.parts) for node in self.nodes) or 1.0

    @cached_property
    def readers(self) -> Mapping[int, Mapping[int, Sequence[int]]]:
        """For each value, the nodes that read it, in order, each with the options that do."""
        readers: dict[int, dict[int, list[int]]] = {d: {} for d in self.writer}
        for k, node in enumerate(self.nodes):
            for o, part in enumerate(node.parts):
                for d in part.reads & readers.keys():
                    readers[d].setdefault(k, []).append(o)
        return readers

    @cached_property
    def latest(self) -> Sequence[int]:
        """For each node, the last stage in which a run of the node can be of use."""
        last = len(self.nodes) - 1
        users: list[set[int]] = [set() for _ in self.nodes]
        for d, w in self.writer.items():
            users[w].update(self.readers[d], (last,) if d in self.results else ())
        for b, node in enumerate(self.nodes):
            if node.forward >= 0:
                users[node.forward].add(b)
        latest = list(range(len(self.nodes)))
        for k in reversed(latest[:]):
            if self.nodes[k].repeatable:
                latest[k] = max([k, *(latest[r] for r in users[k])])
        return latest


class StageProgram:
    """The program under construction, with one method for each family of constraints.

    - `budget_bytes`: the budget B.
    - `save_bytes`: the save budget, or None.
    - `once`: a present value is not computed, as in Checkmate.
    - `integer`: False for the linear relaxation.
    """

    def __init__(
        self,
        graph: StageGraph,
        budget_bytes: float,
        save_bytes: float | None = None,
        *,
        once: bool = False,
        integer: bool = True,
    ) -> None:
        self.graph, self._once, self._integer = graph, once, integer
        self.model = mathopt.Model(name="stages")
        self._unit = BUDGET_UNITS / max(1.0, budget_bytes)
        self._size = {d: self._unit * size_bytes for d, size_bytes in graph.size_bytes.items()}
        self._add_variables()
        self._add_runs()
        self._add_reads()
        self._add_presence()
        self._add_phantoms()
        self._created = self._add_creation()
        self._deleted = self._add_deletion()
        self._add_memory(save_bytes)
        self.model.minimize(
            mathopt.fast_sum(
                graph.nodes[k].parts[o].seconds / graph.once_seconds * variable
                for (_, k, o), variable in self.run.items()
            )
        )

    def runs(self, values: Mapping[mathopt.Variable, float]) -> Runs:
        """Returns the runs of a solution, by stages and in the order of nodes within each stage."""
        return tuple(
            (k, o) for (_, k, o), variable in sorted(self.run.items()) if values[variable] > 0.5
        )

    def hint(self, known: Sequence[int]) -> dict[mathopt.Variable, float]:
        """Returns the variables' values if nodes run only in their own stages and read values stay.

        `known[f]` is the option of forward node f and of its backward node.
        """
        pairs = [k if node.forward < 0 else node.forward for k, node in enumerate(self.graph.nodes)]
        option = [0 if k == self.graph.loss else known[k] for k in pairs]
        values = {x: float(t == k and o == option[k]) for (t, k, o), x in self.run.items()}
        for (t, d), x in self.present.items():
            reading = self.graph.readers[d].items()
            last = max((k for k, options in reading if option[k] in options), default=-1)
            values[x] = float(t <= last or d in self.graph.results)
        for (_, b, o), x in self.saved.items():
            values[x] = float(o == option[b])
        return values

    def _add_variables(self) -> None:
        """Makes the variables that decide, with (j)."""
        graph, end = self.graph, len(self.graph.nodes)
        self.run = {
            (t, k, o): self._decision(float(t == k and len(graph.nodes[k].parts) == 1))
            for t in range(end)
            for k, last in enumerate(graph.latest)
            if k <= t <= last
            for o in range(len(graph.nodes[k].parts))
        }
        last = {
            d: max((graph.latest[r] for r in graph.readers[d]), default=-1) for d in graph.writer
        }
        last |= dict.fromkeys(graph.results, end)
        self.present = {
            (t, d): self._decision(float(t == end))
            for t in range(end + 1)
            for d, w in graph.writer.items()
            if w < t <= last[d]
        }
        self.saved = {
            (t, b, o): self._decision()
            for b, sizes in graph.phantom_bytes.items()
            for t in range(graph.nodes[b].forward + 1, b + 1)
            for o in sizes
        }

    def _decision(self, least: float = 0.0) -> mathopt.Variable:
        return self.model.add_variable(lb=least, ub=1.0, is_integer=self._integer)

    def _share(self) -> mathopt.Variable:
        return self.model.add_variable(lb=0.0, ub=1.0)

    def _add(self, row: Any) -> None:
        self.model.add_linear_constraint(row)

    def _computed(self, stage: int, node: int, options: Iterable[int] | None = None) -> Any:
        """Returns the sum of `run` over all options of a node, or over the given ones."""
        among = range(len(self.graph.nodes[node].parts)) if options is None else options
        terms = [self.run[cell] for o in among if (cell := (stage, node, o)) in self.run]
        return terms[0] if len(terms) == 1 else mathopt.fast_sum(terms)

    def _at_start(self, stage: int, value: int) -> Any:
        """Returns `present`, or zero if the value cannot be in memory when the stage begins."""
        return self.present.get((stage, value), 0.0)

    def _there(self, stage: int, value: int) -> Any:
        return self._computed(stage, self.graph.writer[value]) + self._at_start(stage, value)

    def _add_runs(self) -> None:
        """Adds the constraints (a)."""
        for t, k, o in self.run:
            if o == 1:
                computed = self._computed(t, k)
                self._add(computed == 1.0 if t == k else computed <= 1.0)

    def _add_reads(self) -> None:
        """Adds the constraints (b)."""
        for d, reading in self.graph.readers.items():
            for k, options in reading.items():
                for t in range(k, self.graph.latest[k] + 1):
                    self._add(self._computed(t, k, options) <= self._there(t, d))

    def _add_presence(self) -> None:
        """Adds the constraints (c)."""
        for (t, d), present in self.present.items():
            self._add(present <= self._there(t - 1, d))

    def _add_phantoms(self) -> None:
        """Adds the constraints (d)."""
        for b, sizes in self.graph.phantom_bytes.items():
            f = self.graph.nodes[b].forward
            for t in range(f, b + 1):
                phantoms = [self._phantom(t, b, o) for o in sizes]
                for o, before in zip(sizes, phantoms, strict=True):
                    after = self.run[b, b, o] if t == b else self.saved[t + 1, b, o]
                    self._add(after <= before)
                if t > f and sizes:
                    self._add(mathopt.fast_sum(phantoms) <= 1.0)

    def _phantom(self, t: int, b: int, o: int) -> Any:
        """Returns whether the phantom of (b, o) is in memory when stage t ends, unless dropped."""
        run = self.run.get((t, self.graph.nodes[b].forward, o), 0.0)
        return self.saved.get((t, b, o), 0.0) + run

    def _add_creation(self) -> dict[tuple[int, int], Any]:
        """Adds the constraints (e); returns `created` for each stage and value."""
        creation = {}
        for d, w in self.graph.writer.items():
            for t in range(w, self.graph.latest[w] + 1):
                computed, before = self._computed(t, w), self._at_start(t, d)
                created = creation[t, d] = computed if self._once or t == w else self._share()
                if created is not computed:
                    self._add(created <= computed)
                    self._add(created >= computed - before)
                if (t, d) in self.present:
                    self._add(created + before <= 1.0)
        return creation

    def _add_deletion(self) -> dict[tuple[int, int], dict[int, mathopt.Variable]]:
        """Adds the constraints (f); returns `deleted` by (stage, node) and then by value."""
        deletion: dict[tuple[int, int], dict[int, mathopt.Variable]] = {}
        for d, reading in self.graph.readers.items():
            w = self.graph.writer[d]
            around = sorted({w, *reading})
            for t in range(w, len(self.graph.nodes)):
                inside = [k for k in around if k <= t <= self.graph.latest[k]]
                for place, k in enumerate(inside):
                    deleted = deletion.setdefault((t, k), {})[d] = self._share()
                    self._add(deleted <= self._computed(t, k))
                    if (t + 1, d) in self.present:
                        self._add(deleted <= 1.0 - self.present[t + 1, d])
                    for j in inside[place + 1 :]:
                        self._add(deleted <= 1.0 - self._computed(t, j, reading[j]))
        return deletion

    def _add_memory(self, save_bytes: float | None) -> None:
        """Adds the constraints (g), (h) and (i)."""
        graph, unit = self.graph, self._unit
        for t, terms in enumerate(self._held_at_start()):
            held: Any = mathopt.fast_sum(terms)
            if t == graph.loss + 1 and save_bytes is not None:
                left_out = (self._size[d] * self._at_start(t, d) for d in sorted(graph.gradients))
                self._add(held - mathopt.fast_sum(left_out) <= unit * save_bytes)
            for k, last in enumerate(graph.latest):
                if k <= t <= last:
                    held = self._add_run_memory(t, k, held)

    def _held_at_start(self) -> list[Terms]:
        """Returns, for each stage, the memory that is held when it begins, as terms."""
        held: list[Terms] = [[] for _ in range(len(self.graph.nodes) + 1)]
        for (t, d), present in self.present.items():
            held[t].append(self._size[d] * present)
        for (t, b, o), saved in self.saved.items():
            held[t].append(self._unit * self.graph.phantom_bytes[b][o] * saved)
        return held

    def _add_run_memory(self, t: int, k: int, held: Any) -> Any:
        """Adds the constraints (g) and (h) of one run; returns the memory behind it."""
        graph, unit, deleted = self.graph, self._unit, self._deleted.get((t, k), {})
        born = {d: self._size[d] * self._created[t, d] for d, w in graph.writer.items() if w == k}
        phantoms = [
            unit * size_bytes * self.run[t, k, o]
            for b, sizes in graph.phantom_bytes.items()
            if graph.nodes[b].forward == k
            for o, size_bytes in sizes.items()
        ]
        parts = graph.nodes[k].parts
        bounding = any(step.is_bounding for part in parts for step in part.substeps)
        used = self.model.add_variable(lb=0.0, ub=BUDGET_UNITS if bounding else math.inf)
        self._add(used == held + mathopt.fast_sum([*born.values(), *phantoms]))
        for o, part in enumerate(parts):
            for step in part.substeps:
                if bounding and step.own_bytes <= 0:
                    continue
                freed = [self._size[d] * deleted[d] for d in sorted(step.freed & deleted.keys())]
                unborn = [born[d] for d in sorted(step.unborn & born.keys())]
                own_memory = unit * step.own_bytes * self.run[t, k, o]
                self._add(used + own_memory - mathopt.fast_sum([*freed, *unborn]) <= BUDGET_UNITS)
        gone = [self._size[d] * variable for d, variable in deleted.items()]
        if t == k:
            sizes = graph.phantom_bytes.get(k, {})
            gone += [unit * sizes[o] * self._phantom(t, k, o) for o in sizes]
        return used - mathopt.fast_sum(gone)
