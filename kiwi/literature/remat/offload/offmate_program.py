"""OffMate's integer program (Zhao's thesis, section 4.5; numbers in brackets are its equations).

**Sets.** Blocks i with options o (`blocks`). Windows t: the forward part and the backward part of
each block, one window before them and two behind. Groups w of weights with their states: windows
uses(w) read them and window g(w) updates them. `one` is the whole of a weight. It is 1, or the
reciprocal of the batch size (section 4.5.3), by which everything but the weights is then divided.

**Variables.** `option[i, o]` in {0, 1} (4.1) and `seconds[t]` (4.2). The shares of each group are
in [0, one]: the weights at home on the host, the weights away in the longest gap between two uses,
the states at home on the host, and the share updated on the host (X_w). In each window there are
shares on the device (Sto), fetched (Prf), copied out before or after the update (Ofl), and updated
on the host (Opt) (4.3, 4.4). Activations have the same variables. If a group has one value or one
update, its shares are integer, because whole values are moved.

**Minimise** the sum of `seconds[t]`.

**Constraints**

- (a) Each block has one option. Weights are on the device where they are read (4.5). States that
  the device updates are there in g(w) (4.6).
- (b) A share that is not on the device is on the host (4.7, 4.8). A share that was not there is
  fetched (4.9, 4.10). Copies count when their window is over.
- (c) A share that the host updates is at home there, and is no longer on the device. Its gradient
  is copied out in the window behind g(w), and the update follows later (4.11 to 4.13).
- (d) A share that was updated on the device is copied home before the step ends.
- (e) The activations of option o are on the device until they are copied out, and again when they
  are read.
- (f) Weights, states, gradients on their way, and activations are within the device's memory (4.14
  to 4.17). Shares at home or away are within the host's memory (4.18).
- (g) A window is as long as its computation (4.19, 4.20), its fetches (4.21), its copies out (4.22)
  and its updates on the host (4.23).

Differs from the text: a step ends where it began, and does not run into the next one. Nothing is
copied in the window that computes it, so that the device never waits within a window (L_t is left
out). Activations may be copied in any window between, not only in the next one. Submitting work
takes no time (H = 0).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortools.math_opt.python import mathopt

from kiwi.literature.remat.chain import Borders
from kiwi.literature.remat.offload.blocks import BlockOption, Group, backward_window, forward_window
from kiwi.literature.remat.offload.host import Host

BUDGET_UNITS = 1e4
"""The value of the memory budget in the model's unit of memory, and of the time of all operators in
its unit of time."""

Values = Mapping[mathopt.Variable, float]


@dataclass(frozen=True)
class GroupChoice:
    """Shares of a group.

    - `home`: of the weights, at home on the host.
    - `away`: of the weights, away from the device in the gap.
    - `states_home`: of the states, at home on the host.
    - `updated`: of weights and states, updated on the host.
    """

    home: float
    away: float
    states_home: float
    updated: float


@dataclass(frozen=True)
class OffMateChoice:
    """A solution: an option for each block, shares for each group, and the batch size."""

    options: tuple[int, ...]
    groups: tuple[GroupChoice, ...]
    batch: float


@dataclass(frozen=True, eq=False)
class _Place:
    """A value that is moved as one: its bytes, and its shares by window.

    - `there`: on the device.
    - `coming`, `going`: fetched to the device, and copied out.
    """

    size_bytes: float
    there: list[mathopt.Variable]
    coming: dict[int, mathopt.Variable]
    going: dict[int, mathopt.Variable]


@dataclass(frozen=True, eq=False)
class _Shares:
    """The variables of a group.

    `in_gap` holds the weights' shares on the device in the windows of the gap.
    """

    home: mathopt.Variable
    away: mathopt.Variable
    states_home: mathopt.Variable
    updated: mathopt.Variable
    in_gap: list[mathopt.Variable]


class OffMateProgram:
    """The program under construction, with one method for each family of constraints.

    `most_batch` is the largest batch size, in units of the graph's own batch. At 1 the batch is
    fixed.
    """

    def __init__(
        self,
        borders: Borders,
        host: Host,
        options: tuple[tuple[BlockOption, ...], ...],
        groups: tuple[Group, ...],
        budget_bytes: float,
        most_batch: float = 1.0,
    ) -> None:
        self._graph, self._borders, self._host = borders.graph, borders, host
        self._options, self._groups, self._whole = options, groups, most_batch == 1.0
        self._unit = BUDGET_UNITS / max(1.0, budget_bytes)
        self.seconds_unit = (self._graph.once_seconds or 1.0) / BUDGET_UNITS
        # Two windows follow the last block: one for copies, one for updates on the host.
        self._count = backward_window(0, len(options)) + 3
        self.model = mathopt.Model(name="offmate")
        self._one = self.model.add_variable(lb=1.0 / most_batch, ub=1.0)
        self._option = [
            [self.model.add_binary_variable() for _ in alternatives] for alternatives in options
        ]
        self._seconds = [self.model.add_variable(lb=0.0) for _ in range(self._count)]
        self._places: list[_Place] = []
        self._on_host: list[Any] = []
        self._held: list[list[Any]] = [[] for _ in range(self._count)]
        self._busy: list[list[Any]] = [[] for _ in range(self._count)]
        self._updating: list[list[Any]] = [[] for _ in range(self._count)]
        self._shares = [self._add_group(group) for group in groups]
        self._add_activations()
        self._add_memory(budget_bytes)
        self._add_seconds()
        self.model.minimize(mathopt.fast_sum(self._seconds))

    def choice(self, values: Values) -> OffMateChoice:
        """Returns the choice of a solution."""
        batch = 1.0 / values[self._one]
        options = (max(range(len(x)), key=lambda o: values[x[o]]) for x in self._option)
        groups = (
            GroupChoice(
                batch * values[shares.home],
                1.0 - min((batch * values[x] for x in shares.in_gap), default=1.0),
                batch * values[shares.states_home],
                batch * values[shares.updated],
            )
            for shares in self._shares
        )
        return OffMateChoice(tuple(options), tuple(groups), batch)

    def seconds_of(self, values: Values) -> float:
        """Returns the time of all windows for the graph's own batch, in seconds."""
        return self.seconds_unit * sum(values[window_seconds] for window_seconds in self._seconds)

    def _share(self, *, whole: bool = False) -> mathopt.Variable:
        """Returns a variable in [0, one], integer if `whole` and the batch is fixed."""
        share = self.model.add_variable(lb=0.0, ub=1.0, is_integer=whole and self._whole)
        if not self._whole:
            self._add(share <= self._one)
        return share

    def _add(self, row: Any) -> None:
        self.model.add_linear_constraint(row)

    def _add_group(self, group: Group) -> _Shares:
        """Adds the constraints (a) and (c) of one group, and its terms in (f) and (g)."""
        single, alone = len(group.weights) <= 1, len(group.updates) == 1
        shares = _Shares(
            self._share(whole=single),
            self._share(whole=single),
            self._share(whole=len(group.states) <= 1),
            self._share(whole=alone),
            [],
        )
        self._add(shares.updated <= shares.home)
        if group.states:
            self._add(shares.updated <= shares.states_home)
        if group.weights:
            self._add_weights(group, shares)
        if group.states:
            self._add_states(group, shares)
        self._add_host_updates(group, shares.updated)
        return shares

    def _add_weights(self, group: Group, shares: _Shares) -> None:
        one, gap, g = self._one, group.gap, group.updated
        place = self._place(self._graph.bytes_of(group.weights), g)
        sent_before = {t: self._share() for t in range(gap.start)} if gap else {}
        hosted: Any = shares.home
        self._add(place.there[0] <= one - shares.home)
        for t in range(g + 1):
            there = place.there[t]
            self._add(there + hosted >= one)
            if t in group.uses:
                self._add(there >= one)
            elif t in gap:
                self._add(there >= one - shares.away)
                shares.in_gap.append(there)
            else:
                self._add(there >= one - shares.home if t < group.uses[0] else there >= one)
            if t in place.coming:
                self._add(place.coming[t] <= hosted)
            if t in sent_before:
                hosted = hosted + sent_before[t]
        self._add_return(place, g, shares.home, shares.updated)
        self._on_host.append(place.size_bytes * shares.home)
        for t, share in sent_before.items():
            self._on_host.append(place.size_bytes * share)
            place.going[t] = share

    def _add_states(self, group: Group, shares: _Shares) -> None:
        one, g = self._one, group.updated
        place = self._place(self._graph.bytes_of(group.states), g)
        for t in range(g + 1):
            self._add(place.there[t] + shares.states_home >= one)
        self._add(place.there[0] <= one - shares.states_home)
        self._add(place.there[g] >= one - shares.updated)
        self._add_return(place, g, shares.states_home, shares.updated)
        self._on_host.append(place.size_bytes * shares.states_home)

    def _place(self, size_bytes: float, updated: int) -> _Place:
        """Returns the variables of a value, with the constraints (b).

        The value may be fetched before the window `updated`, and copied out after it.
        """
        place = _Place(
            size_bytes,
            [self._share() for _ in range(self._count)],
            {t: self._share() for t in range(updated)},
            {t: self._share() for t in range(updated + 1, self._count)},
        )
        for t in range(self._count - 1):
            coming = place.coming.get(t, 0.0)
            self._add(place.there[t + 1] <= place.there[t] + coming)
        self._places.append(place)
        return place

    def _add_return(self, place: _Place, g: int, home: Any, updated: Any) -> None:
        """Adds the constraints (d)."""
        gone: Any = 0.0
        for t in range(g + 1, self._count):
            self._add(place.there[t] + gone >= self._one - updated)
            self._add(place.there[t] >= self._one - home)
            gone = gone + place.going[t]
        self._add(gone >= home - updated)

    def _add_host_updates(self, group: Group, updated: mathopt.Variable) -> None:
        """Adds the constraints (c)."""
        g, gradient_bytes = group.updated, float(group.gradient_bytes)
        device = self._graph.seconds_of(update.operator for update in group.updates)
        on_host = sum(update.host_seconds for update in group.updates)
        self._busy[g].append(device * (self._one - updated))
        if on_host == float("inf"):
            self._add(updated <= 0.0)
            return
        self._held[g + 1].append(gradient_bytes * updated)
        self._places.append(_Place(gradient_bytes, [], {}, {g + 1: updated}))
        self._on_host.append(gradient_bytes * updated)
        parts = {t: self._share() for t in range(g + 2, self._count)}
        self._add(mathopt.fast_sum(parts.values()) == updated)
        for t, part in parts.items():
            self._updating[t].append(on_host * part)

    def _add_activations(self) -> None:
        """Adds the constraints (a) of blocks, and (e)."""
        count = len(self._options)
        for i, (options, chosen) in enumerate(zip(self._options, self._option, strict=True)):
            self._add(mathopt.fast_sum(chosen) == 1.0)
            begin, end = forward_window(i), backward_window(i, count)
            for option, x in zip(options, chosen, strict=True):
                self._busy[begin].append(option.forward_seconds * x)
                self._busy[end].append(option.backward_seconds * x)
                self._held[begin].append(option.forward_peak_bytes * x)
                self._held[end].append(option.backward_peak_bytes * x)
                for t in range(begin + 1, end):
                    self._held[t].append(option.stored_bytes * x)
                if option.sent:
                    self._add_sent(option, x, begin, end)

    def _add_sent(
        self, option: BlockOption, chosen: mathopt.Variable, begin: int, end: int
    ) -> None:
        between = range(begin + 1, end)
        place = _Place(
            option.sent_bytes,
            [self.model.add_variable(lb=0.0, ub=1.0) for _ in between],
            {t: self.model.add_variable(lb=0.0, ub=1.0) for t in between},
            {t: self.model.add_variable(lb=0.0, ub=1.0) for t in between},
        )
        gone: Any = 0.0
        before: Any = chosen
        for t, there in zip(between, place.there, strict=True):
            self._add(there + gone >= chosen)
            self._add(there <= before)
            self._add(place.coming[t] <= gone)
            self._held[t] += [option.sent_bytes * there, option.sent_bytes * place.coming[t]]
            gone, before = gone + place.going[t], there + place.coming[t]
        self._add(before >= chosen)
        self._add(gone <= chosen)
        self._on_host.append(option.sent_bytes * chosen)
        self._places.append(_Place(place.size_bytes, [], place.coming, place.going))

    def _add_memory(self, budget_bytes: float) -> None:
        """Adds the constraints (f)."""
        managed = {value for group in self._groups for value in (*group.weights, *group.states)}
        resident = self._graph.resident_bytes - self._graph.bytes_of(managed)
        resident += self._graph.bytes_of(self._borders.shared)
        for t in range(self._count):
            held = [*self._held[t]]
            for place in self._places:
                held += [place.size_bytes * place.there[t]] if place.there else []
                if place.there and t in place.coming:
                    held.append(place.size_bytes * place.coming[t])
            scaled = self._unit * mathopt.fast_sum(held) + self._unit * resident
            self._add(scaled <= self._unit * budget_bytes * self._one)
        limit_bytes = self._host.memory_bytes
        if limit_bytes is not None:
            away = self._unit * mathopt.fast_sum(self._on_host)
            self._add(away <= self._unit * limit_bytes * self._one)

    def _add_seconds(self) -> None:
        """Adds the constraints (g)."""
        unit, host = 1.0 / self.seconds_unit, self._host
        self._busy[0].append(self._graph.seconds_of(self._borders.groups.common))
        for t, seconds in enumerate(self._seconds):
            coming = [
                place.size_bytes * place.coming[t] for place in self._places if t in place.coming
            ]
            going = [
                place.size_bytes * place.going[t] for place in self._places if t in place.going
            ]
            for rate, terms in (
                (unit, self._busy[t]),
                (unit, self._updating[t]),
                (unit * host.inward_seconds(1), coming),
                (unit * host.outward_seconds(1), going),
            ):
                if terms:
                    self._add(rate * mathopt.fast_sum(terms) <= seconds)
