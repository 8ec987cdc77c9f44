"""POET: recomputation and paging by one integer program, for least time or least energy.

Patil et al., ICML 2022. The program is Checkmate's (`kiwi.literature.remat.stages`, whose names are
used here) with a second memory. The following is for values d that are read in stages after the
stage that computes them, and for stages t in between.

**Variables.** `hosted[t, d]` in {0, 1}: d is on the host when stage t begins. `sending[t, d]` and
`fetching[t, d]` in {0, 1}: a copy is under way during stage t. For each copy there are, in [0, 1],
the part that is copied in stage t and the part that has arrived when stage t ends. `seconds[t]`:
the time of stage t.

**Constraints**

- (k) A value that is sent is present and not on the host, and stays until the stage ends. A value
  that is fetched is on the host, and neither present nor computed.
- (l) A part is copied only while a copy is under way, and is lost when the copy stops.
- (m) A value is present in a stage only if it was present or computed in the stage before, or has
  arrived whole (in place of (c)). A value is on the host only if it was before, or has arrived.
  Results may end on the host (in place of (j)).
- (n) A stage is as long as its computation, its copies out, and its fetches.
- (o) The values on the host or on their way there are within the host's memory.
- (p) A value that is being fetched counts as memory (g).
- (q) All stages together are within a deadline, if one is given.

**Minimise** the time of all stages, or the energy of computation and copies.

Differs from the text, in which a copy takes one stage and computing waits for it. Here copies
overlap with computing, over several stages if need be, as `kiwi.literature.remat.offload.simulate`
prices them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ortools.math_opt.python import mathopt

from kiwi.literature.remat.checkmate import GAP, stage_graph
from kiwi.literature.remat.offload.host import Host, OffloadSchedule, Transfer
from kiwi.literature.remat.offload.simulate import OffloadFinding, without_unused_copies
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.stages import StageGraph, StageProgram, Terms
from kiwi.solver.mathopt_run import solve_model

Values = Mapping[mathopt.Variable, float]
Cell = tuple[int, int]
"""A pair of a stage and a value."""
WHOLE = 1 - 1e-6
"""The part from which on a copy counts as complete, because solvers have tolerances."""


@dataclass(frozen=True)
class Energy:
    """The energy of a step.

    - `compute_watts`: the power while the device computes.
    - `joules_per_byte`: the energy of copies.
    - `deadline_seconds`: the largest time of the whole step.
    """

    compute_watts: float
    joules_per_byte: float
    deadline_seconds: float = math.inf


def poet(task: Task, host: Host, energy: Energy | None = None) -> OffloadFinding:
    """Returns the best schedule by stages in the given order: of least energy if `energy` is given,
    else of least time."""
    program = PagingProgram(task, host, energy)
    answer = solve_model(program.model, task.remaining_seconds(), task.seed, GAP)
    schedule = None if answer.values is None else program.schedule(answer.values)
    bound = answer.bound * program.objective_unit
    return OffloadFinding(
        schedule,
        bound if math.isfinite(bound) else None,
        answer.infeasible,
        deterministic=not answer.timed_out,
    )


@dataclass(frozen=True, eq=False)
class _Copying:
    """The variables of copies in one direction, by stage and value.

    - `under_way`: whether a copy is under way.
    - `part`: the part that is copied in the stage.
    - `until`: the part that has arrived when the stage ends.
    """

    under_way: dict[Cell, mathopt.Variable]
    part: dict[Cell, mathopt.Variable]
    until: dict[Cell, mathopt.Variable]

    def transfers(
        self, values: Values, starts: list[int], stage_graph: StageGraph
    ) -> tuple[Transfer, ...]:
        """Returns the copies that were completed.

        `starts` holds the first step of each stage, and then the number of steps.
        """
        transfers = []
        for d in stage_graph.writer:
            begin: int | None = None
            for t in range(len(stage_graph.nodes)):
                cell = t, d
                if cell not in self.under_way or values[self.under_way[cell]] < 0.5:
                    begin = None
                    continue
                begin = t if begin is None else begin
                if values[self.until[cell]] > WHOLE:
                    transfers.append(Transfer(d, starts[begin], starts[t + 1] - 1))
                    begin = None
        return tuple(transfers)


class PagingProgram(StageProgram):
    """The program under construction."""

    def __init__(self, task: Task, host: Host, energy: Energy | None) -> None:
        self._host, self._energy, self._task = host, energy, task
        graph = stage_graph(task.graph)
        super().__init__(graph, task.budget_bytes - task.graph.resident_bytes, once=True)
        self._add_arrivals()
        self._add_host_memory()
        self._seconds = self._add_seconds()
        self._add_objective()

    @property
    def objective_unit(self) -> float:
        """The seconds or joules of one unit of the objective."""
        watts = 1.0 if self._energy is None else self._energy.compute_watts or 1.0
        return self.graph.once_seconds * watts

    def schedule(self, values: Values) -> OffloadSchedule:
        """Returns the stages in turn. A transfer lasts from the first step of a stage to the last
        of one."""
        steps: list[int] = []
        starts, run = [0], dict(sorted(self.run.items()))
        for t in range(len(self.graph.nodes)):
            runs = [(k, o) for (s, k, o), x in run.items() if s == t and values[x] > 0.5]
            steps += self.graph.steps_of(runs)
            starts.append(len(steps))
        outward = self._outward.transfers(values, starts, self.graph)
        inward = self._inward.transfers(values, starts, self.graph)
        schedule = OffloadSchedule(tuple(steps), outward, inward)
        return without_unused_copies(self._task.graph, self._host, schedule)

    def _add_variables(self) -> None:
        super()._add_variables()
        end = len(self.graph.nodes)
        cells = [(t, d) for t, d in self.present if t < end]
        self._hosted = {cell: self._decision() for cell in self.present}
        for d in self.graph.results:
            self.present[end, d].lower_bound = 0.0
            self._add(self.present[end, d] + self._hosted[end, d] >= 1.0)
        self._outward, self._inward = self._copying(cells), self._copying(cells)

    def _copying(self, cells: list[Cell]) -> _Copying:
        """Returns the variables of copies in one direction, with the constraints (l)."""
        copying = _Copying(
            {cell: self._decision() for cell in cells},
            {cell: self._share() for cell in cells},
            {cell: self._share() for cell in cells},
        )
        for (t, d), under_way in copying.under_way.items():
            part, until = copying.part[t, d], copying.until[t, d]
            self._add(part <= under_way)
            self._add(until <= under_way)
            self._add(until <= copying.until.get((t - 1, d), 0.0) + part)
        return copying

    def _add_presence(self) -> None:
        """Adds the constraints (m) for the device."""
        for (t, d), present in self.present.items():
            arrived = self._inward.until.get((t - 1, d), 0.0)
            self._add(present <= self._there(t - 1, d) + arrived)

    def _add_arrivals(self) -> None:
        """Adds the constraints (k), and (m) for the host."""
        for (t, d), hosted in self._hosted.items():
            arrived = self._outward.until.get((t - 1, d), 0.0)
            self._add(hosted <= self._hosted.get((t - 1, d), 0.0) + arrived)
        for (t, d), sending in self._outward.under_way.items():
            fetching = self._inward.under_way[t, d]
            self._add(sending <= self.present[t, d])
            self._add(sending + self._hosted[t, d] <= 1.0)
            self._add(fetching <= self._hosted[t, d])
            self._add(fetching + self._there(t, d) <= 1.0)
            if d in self._host.stays:
                sending.upper_bound = 0.0
        for (t, _), deleted in self._deleted.items():
            for d, variable in deleted.items():
                if (t, d) in self._outward.under_way:
                    self._add(variable <= 1.0 - self._outward.under_way[t, d])

    def _held_at_start(self) -> list[Terms]:
        """Returns the memory at the start of each stage, including the terms (p)."""
        held = super()._held_at_start()
        for (t, d), fetching in self._inward.under_way.items():
            held[t].append(self._size[d] * fetching)
        return held

    def _add_host_memory(self) -> None:
        """Adds the constraints (o)."""
        limit_bytes, sending = self._host.memory_bytes, self._outward.under_way
        if limit_bytes is None:
            return
        for t in range(len(self.graph.nodes)):
            cells = [cell for cell in sending if cell[0] == t]
            held = [self._size[cell[1]] * (self._hosted[cell] + sending[cell]) for cell in cells]
            self._add(mathopt.fast_sum(held) <= self._unit * limit_bytes)

    def _add_seconds(self) -> list[mathopt.Variable]:
        """Adds the constraints (n) and (q); returns the time of each stage, in units of the time of
        all nodes."""
        graph, host, once = self.graph, self._host, self.graph.once_seconds
        stage_seconds = []
        for t in range(len(graph.nodes)):
            seconds = self.model.add_variable(lb=0.0)
            runs = [(k, o, x) for (s, k, o), x in self.run.items() if s == t]
            computing = [graph.nodes[k].parts[o].seconds / once * x for k, o, x in runs]
            self._add(mathopt.fast_sum(computing) <= seconds)
            for price, copying in (
                (host.outward_seconds, self._outward),
                (host.inward_seconds, self._inward),
            ):
                terms = [
                    price(graph.size_bytes[d]) / once * x
                    for (s, d), x in copying.part.items()
                    if s == t
                ]
                self._add(mathopt.fast_sum(terms) <= seconds)
            stage_seconds.append(seconds)
        if self._energy is not None and math.isfinite(self._energy.deadline_seconds):
            self._add(mathopt.fast_sum(stage_seconds) <= self._energy.deadline_seconds / once)
        return stage_seconds

    def _add_objective(self) -> None:
        if self._energy is None:
            self.model.minimize(mathopt.fast_sum(self._seconds))
            return
        graph, energy, unit = self.graph, self._energy, self.objective_unit
        terms = [
            energy.compute_watts * graph.nodes[k].parts[o].seconds / unit * x
            for (_, k, o), x in self.run.items()
        ]
        for copying in (self._outward, self._inward):
            terms += [
                energy.joules_per_byte * graph.size_bytes[d] / unit * x
                for (_, d), x in copying.part.items()
            ]
        self.model.minimize(mathopt.fast_sum(terms))
