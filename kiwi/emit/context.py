"""The common state of all loop bodies of one evaluation: the execution, its barriers and its
dataflow, and the places in host memory of offloaded values (`Execution.fetched`).

docs/how_it_works/memory.md, "Copies to the host", explains how copies are paced, and why.

- In a scan, each iteration yields its element of the value as a stacked result in host memory.
- Outside of scans, XLA:GPU copies whole arrays. A result computed some steps later passes a barrier
  together with the copy, so that the copy has ended by then (`Context.steps_of_copies`).
- Outside of scans, values of equal shape, dtype and layout are slices of one buffer for XLA:TPU. A
  zero that the compiler does not know to be zero is added to a slice's index. It makes a fetch wait
  for the trigger of its step, and a copy to the host wait for the token of the copy before.
  Arguments and results are copied in the same way, in two halves.
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
"""If only one value is copied to the host, the copy may take this many steps."""


@dataclass(frozen=True)
class HostPlace:
    """The place of a value in host memory.

    - `buffer`: the number of the buffer. `index`: the element of the buffer that holds the value.
    - `count`: the number of values in the buffer, 1 on GPUs.
    """

    buffer: int
    index: int
    count: int


@dataclass(frozen=True, eq=False)
class Context:
    """The common state of the interpreters of one evaluation.

    - `root`: the body of the whole step, with its loops inside.
    - `barriers`, `dataflow`: the barriers and the dataflow of the execution's schedule.
    - `jax_mesh`: the mesh, with or without devices, that sharding constraints name.
    """

    execution: Execution
    root: LoopBody
    barriers: Barriers
    dataflow: Dataflow
    jax_mesh: Any

    @classmethod
    def of(cls, execution: Execution, arguments: Sequence[Any]) -> "Context":
        """Returns the context of one evaluation with these flat arguments."""
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
        """Returns the function that applies `function` to each device's shards; `function` itself
        if there is only one device."""
        if self.execution.mesh.size == 1:
            return function
        return jax.shard_map(
            function, mesh=self.jax_mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    @functools.cached_property
    def host_places(self) -> Mapping[int, HostPlace]:
        """The place of each offloaded value outside of loops, in the order of the schedule."""
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
        """The reductions that units repeat for themselves, by unit (`kiwi.emit.reduced_again`)."""
        return reduced_again(self.execution)

    @functools.cached_property
    def steps_of_copies(self) -> int:
        """The number of steps from the begin of a copy to the host to its end: the average distance
        between two copies, so that about one copy is under way at a time."""
        steps, units = self.execution.schedule.steps, self.execution.units.units
        begun = sorted(
            steps.index(unit) for unit in self.execution.fetched if units[unit].loop is None
        )
        between = (begun[-1] - begun[0]) // (len(begun) - 1) if len(begun) > 1 else _FEWEST_STEPS
        return max(1, between)

    @functools.cached_property
    def stored_layouts(self) -> dict[int, TensorSharding | None]:
        """The layout in which the caller gets each result in host memory, by value index."""
        program = self.execution.units.graph.program
        pairs = zip(program.results, self.execution.result_shardings, strict=True)
        return {
            result: layout
            for result, layout in pairs
            if isinstance(result, int) and result in program.host_values
        }

    def stacked_values(self, body: LoopBody) -> tuple[int, ...]:
        """Returns the values that a loop stacks, ascending: values of its body that steps outside
        of it read, and stacked results of a scan. For a branch of a conditional, only the first
        kind exists."""
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
        """Returns a value and the step that computed it. For an element of a stacked value, returns
        the stacked value and its step."""
        units, steps = self.execution.units, self.execution.schedule.steps
        while source >= 0 and units.border(units.units[steps[source]]) == SLICE:
            reads = units.units[steps[source]].reads
            if len(reads) != 1:
                break  # The stacked value is computed in front of the loop.
            (value,) = reads
            source = self.dataflow.source[source][value]
        return value, source


def _mesh_of(arguments: Sequence[Any], mesh: DeviceMesh) -> Any:
    """Returns the mesh in the arguments' types if it agrees with the plan's mesh, otherwise the
    plan's mesh without devices.

    An abstract mesh that knows the kind of its devices differs from one that does not, and some
    operators of jax refuse operands over different meshes.
    """
    wanted = mesh.abstract_mesh()
    for argument in arguments:
        named_mesh = jax.typeof(argument).sharding.mesh
        alike = (
            named_mesh.axis_names == wanted.axis_names
            and named_mesh.axis_sizes == wanted.axis_sizes
        )
        if alike and named_mesh.axis_types == wanted.axis_types:
            return named_mesh
    return wanted
