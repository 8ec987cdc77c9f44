"""The common state of all loop bodies of one evaluation: the execution, its barriers and its
dataflow; and where in host memory a plan puts the values that it offloads (`Execution.fetched`).

How copies are paced, and why, is explained in docs/how_it_works/memory.md, "Copies to the host". In
scans each iteration hands its element on as a stacked result in host memory. Outside of scans
XLA:GPU copies whole arrays. A value that is read some steps later passes a barrier with the copy,
which has ended then (`Context.steps_of_copies`). For XLA:TPU equal values are slices of one buffer.
Zeros that the compiler cannot know to be zeros are added to their indices, so that a fetch waits
for the trigger of its step, and a copy to the host for the token of the copy before. Arguments and
results are copied in the same way, in two halves.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import jax

from kiwi.emit.barriers import Barriers, barriers
from kiwi.emit.execution import Execution
from kiwi.emit.reduced_again import ReducedAgain, reduced_again
from kiwi.hlo.host_memory import buffer_key
from kiwi.hlo.loops import EXITS, SLICE, STACK
from kiwi.memory.loop_bodies import Dataflow, LoopBody, dataflow, loop_bodies
from kiwi.mesh import DeviceMesh, TensorSharding

_FEWEST_STEPS = 2
"""The number of steps that the only copy to the host may take."""


@dataclass(frozen=True)
class HostPlace:
    """The element of a buffer in host memory that holds a value. `count` values share a buffer. On
    GPUs one value is the buffer."""

    buffer: int
    index: int
    count: int


@dataclass(frozen=True, eq=False)
class Context:
    """The common state of the interpreters of one evaluation.

    - `root`: the whole step, with its loops inside.
    - `jax_mesh`: the mesh that sharding constraints name.
    """

    execution: Execution
    root: LoopBody
    barriers: Barriers
    dataflow: Dataflow
    jax_mesh: Any

    @classmethod
    def of(cls, execution: Execution, arguments: Sequence[Any]) -> "Context":
        """The context of one evaluation with these flat arguments."""
        units, steps = execution.units, execution.schedule.steps
        return cls(
            execution,
            loop_bodies(units, steps, execution.fetched),
            barriers(execution),
            dataflow(units, steps, execution.kept_copies, execution.fetched),
            _mesh_of(arguments, execution.mesh),
        )

    def on_each_device(
        self, function: Callable[..., Any], in_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """The function on the parts of one device; on whole arrays if there is one device only."""
        if self.execution.mesh.size == 1:
            return function
        return jax.shard_map(
            function, mesh=self.jax_mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    @functools.cached_property
    def host_places(self) -> Mapping[int, HostPlace]:
        """The place of each offloaded value that is in no loop, in the order of the schedule."""
        execution, units = self.execution, self.execution.units
        members: dict[object, list[int]] = {}
        for unit in dict.fromkeys(execution.schedule.steps):
            if unit in execution.fetched and units.units[unit].loop is None:
                (value,) = units.units[unit].outputs
                info = units.graph.program.values[value]
                key: object = value
                if execution.facts.hoists_copies:
                    key = buffer_key(info.shape, info.dtype, execution.layouts[value])
                members.setdefault(key, []).append(value)
        return {
            value: HostPlace(number, index, len(values))
            for number, values in enumerate(members.values())
            for index, value in enumerate(values)
        }

    @functools.cached_property
    def reduced_again(self) -> Mapping[int, tuple[ReducedAgain, ...]]:
        """See `kiwi.emit.reduced_again`."""
        return reduced_again(self.execution)

    @functools.cached_property
    def steps_of_copies(self) -> int:
        """How many steps before its end a copy to the host begins: as many as lie between two
        copies, so that one is under way at a time."""
        steps, units = self.execution.schedule.steps, self.execution.units.units
        begun = sorted(steps.index(u) for u in self.execution.fetched if units[u].loop is None)
        between = (begun[-1] - begun[0]) // (len(begun) - 1) if len(begun) > 1 else _FEWEST_STEPS
        return max(1, between)

    @functools.cached_property
    def stored_layouts(self) -> dict[int, TensorSharding | None]:
        """For each result in host memory the layout that the caller gets."""
        program = self.execution.units.graph.program
        pairs = zip(program.results, self.execution.result_shardings, strict=True)
        return {r: layout for r, layout in pairs if isinstance(r, int) and r in program.host_values}

    def stacked_values(self, body: LoopBody) -> tuple[int, ...]:
        """The values that a loop stacks: those read outside of it, and stacked results of the scan.
        A branch stacks the former."""
        units, steps = self.execution.units, self.execution.schedule.steps
        inside = {step.position: units.units[step.unit] for step in body.steps()}
        read = {
            value
            for position, reads in enumerate(self.dataflow.source)
            if position not in inside and units.border(units.units[steps[position]]) not in EXITS
            for value, source in starmap(self._stacked_operand, reads.items())
            if source in inside and units.border(inside[source]) != SLICE
        }
        results = {
            unit.outputs[0]
            for unit in inside.values()
            if unit.loop == body.loop and units.border(unit) == STACK
        }
        return tuple(sorted(read | results))

    def _stacked_operand(self, value: int, source: int) -> tuple[int, int]:
        """A value and the step that computed it; for an element of a stacked value, the latter."""
        units, steps = self.execution.units, self.execution.schedule.steps
        while source >= 0 and units.border(units.units[steps[source]]) == SLICE:
            reads = units.units[steps[source]].reads
            if len(reads) != 1:
                break  # the stacked value is computed in front of the loop
            (value,) = reads
            source = self.dataflow.source[source][value]
        return value, source


def _mesh_of(arguments: Sequence[Any], mesh: DeviceMesh) -> Any:
    """The mesh that the arguments' types name, else one without devices.

    An abstract mesh may know the kind of its devices and then differs from one that does not;
    some operators of jax refuse operands over different meshes.
    """
    wanted = mesh.abstract_mesh()
    for argument in arguments:
        found = jax.typeof(argument).sharding.mesh
        alike = found.axis_names == wanted.axis_names and found.axis_sizes == wanted.axis_sizes
        if alike and found.axis_types == wanted.axis_types:
            return found
    return wanted
