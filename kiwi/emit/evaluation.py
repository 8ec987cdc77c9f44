"""Frames of emission: the evaluation of a step's or of an iteration's units.

A frame evaluates one `Block` (`kiwi.emit.blocks`). Its `env` maps a value to its latest
computation, with a leading dimension for each loop that the value belongs to and the frame is not
in: an element of it is taken by the numbers of the iterations that the frame stands for.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from kiwi.emit.barriers import Fence, Fences, fences
from kiwi.emit.blocks import Block, Flow, Step, blocks, flow
from kiwi.emit.execution import Execution
from kiwi.hlo.fusion import is_map
from kiwi.hlo.host_memory import FETCH, HOST_MEMORY, STORE
from kiwi.hlo.loops import CARRY, RESULT, SLICE, STACK, Carry, Loop
from kiwi.hlo.program import Literal
from kiwi.hlo.unit import Unit
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.problem.edges import resharding_table
from kiwi.xla.name_scopes import RESHARD_SCOPE, scope_name

LARGE_BYTES = 2**20
"""Constants from this size on are computed where they are used."""


@dataclass(frozen=True, eq=False)
class Context:
    """What all frames share: the execution, its blocks, fences and flow, and the mesh for jax."""

    execution: Execution
    root: Block
    fences: Fences
    flow: Flow
    jax_mesh: Any

    @classmethod
    def of(cls, execution: Execution, arguments: Sequence[Any]) -> "Context":
        """Of one evaluation of these flat arguments."""
        units, steps = execution.units, execution.schedule.steps
        flows = flow(units, steps, execution.kept_copies)
        found = blocks(units, steps), fences(execution), flows
        return cls(execution, *found, _mesh_of(arguments, execution.mesh))

    @functools.cached_property
    def stored_layouts(self) -> dict[int, TensorSharding | None]:
        """Of the results in host memory, the layouts that the caller gets."""
        program = self.execution.units.graph.program
        pairs = zip(program.results, self.execution.result_shardings, strict=True)
        return {r: layout for r, layout in pairs if isinstance(r, int) and r in program.host_values}

    def stacked(self, block: Block) -> tuple[int, ...]:
        """The values of a loop's iterations that are read elsewhere, or are stacked results."""
        units = self.execution.units
        inside = {step.position: units.units[step.unit] for step in block.steps()}
        read = {
            value
            for position, reads in enumerate(self.flow.source)
            if position not in inside and not self._takes_final(position)
            for value, source in starmap(self._origin, reads.items())
            if source in inside and units.border(inside[source]) != SLICE
        }
        results = {
            unit.outputs[0]
            for unit in inside.values()
            if unit.loop == block.loop and units.border(unit) == STACK
        }
        return tuple(sorted(read | results))

    def _origin(self, value: int, source: int) -> tuple[int, int]:
        """What is read, and the step that computed it; an element is read from what is stacked."""
        units, steps = self.execution.units, self.execution.schedule.steps
        while source >= 0 and units.border(units.units[steps[source]]) == SLICE:
            reads = units.units[steps[source]].reads
            if len(reads) != 1:
                break  # it is taken from what is computed in front of the loop
            (value,) = reads
            source = self.flow.source[source][value]
        return value, source

    def _takes_final(self, position: int) -> bool:
        units = self.execution.units
        return units.border(units.units[self.execution.schedule.steps[position]]) == RESULT


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


class _Array(NamedTuple):
    """A value as it lies in the frame of `depth` loops."""

    array: Any
    depth: int


class _Final(NamedTuple):
    """What a loop left of a carry, and its layout."""

    array: Any
    layout: TensorSharding


class _Fenced(NamedTuple):
    """What lies behind a barrier: values and copies of a fence, and scalars."""

    values: dict[int, _Array]
    copies: dict["_Copied", Any]
    scalars: Sequence[Any]


_Copied = tuple[int, TensorSharding]
"""A value, and the layout of a copy of it."""


class Frame:
    """One evaluation of a block: of the step, or of one iteration of a loop.

    - `parent`: the frame that runs the loop; `indices`: numbers of the iterations, outermost first.
    - `env`: see above. `finals[loop, value]`: what the last iteration of a loop handed on.
    - `elements`: what an iteration adds to stacked results.
    - `copies`: of the operands that first runs of units brought into another layout, the latest.
    """

    def __init__(
        self, context: Context, block: Block, parent: "Frame | None", indices: tuple[Any, ...]
    ) -> None:
        self._context = context
        self._execution = context.execution
        self._layouts = context.execution.layouts
        self._graph = context.execution.units
        self._program = self._graph.graph.program
        self._block = block
        self._parent = parent
        self._indices = indices
        self.env: dict[int, Any] = {}
        self.finals: dict[tuple[int, int], _Final] = {}
        self.elements: dict[int, Any] = {}
        self.copies: dict[_Copied, Any] = {}

    def run(self) -> None:
        """Evaluates the block's steps and loops in order."""
        for item in self._block.items:
            if isinstance(item, Block):
                self._run_loop(item)
                continue
            with jax.named_scope(scope_name(item.unit, again=item.is_again)):
                self._step(item)

    def result(self, result: int | Literal, sharding: TensorSharding | None) -> Any:
        """A result of the function, in the layout that the caller gets."""
        if isinstance(result, Literal):
            return result.value
        array = self.env[result]
        is_stored = result in self._program.host_values
        if is_stored or sharding is None or sharding == self._layouts[result]:
            return array
        return self._reshard(result, array, self._layouts[result], sharding)

    def _step(self, step: Step) -> None:
        unit = self._graph.units[step.unit]
        border = self._graph.border(unit)
        if border in (CARRY, SLICE):
            return  # The loop has provided it.
        if border == RESULT:
            self._take_final(unit)
            return
        fence = self._context.fences.steps[step.position]
        if self._program.equations[unit.root].name == FETCH:
            self._fetch(unit, fence)
            return
        local = self._computed(unit, fence, is_again=step.is_again)
        if self._program.equations[unit.root].name == STORE:
            self._store(unit, local)
            return
        if border == STACK:
            self.elements[unit.outputs[0]] = self._border_operand(unit, local)
            return
        for output in unit.outputs:
            self.env[output] = self._constrain(output, local[output], self._layouts[output])

    # Host memory.

    def _fetch(self, unit: Unit, fence: Fence) -> None:
        """Copies an argument to the device as it lies, and brings it into the layout wanted."""
        fenced = self._behind_barrier(fence, []).values
        (argument,), (output,) = unit.reads, unit.outputs
        source, target = self._layouts[argument], self._layouts[output]
        array = self._element_of(argument, fenced.get(argument) or self._lookup(argument))
        array = self._constrain(output, self._moved(array, source, "device"), source)
        self.env[output] = self._reshard(output, array, source, target)

    def _store(self, unit: Unit, local: dict[int, Any]) -> None:
        """Copies a result to the host in the layout that the caller gets."""
        (operand,), (output,) = self._program.equations[unit.root].inputs, unit.outputs
        layout = self._layouts[output]
        target = self._context.stored_layouts.get(output) or layout
        if isinstance(operand, Literal):
            array = jnp.asarray(operand.value, self._program.values[output].dtype)
        else:
            array = self._reshard(operand, local[operand], layout, target)
        self.env[output] = self._moved(array, target, HOST_MEMORY)

    def _moved(self, array: Any, sharding: TensorSharding, memory_kind: str) -> Any:
        spec = self._execution.mesh.partition_spec(sharding)
        wanted = jax.sharding.NamedSharding(self._context.jax_mesh, spec, memory_kind=memory_kind)
        return jax.device_put(array, wanted)

    # Loops.

    def _run_loop(self, block: Block) -> None:
        """Runs a loop's block as a scan."""
        assert block.loop is not None
        loop = self._program.loops[block.loop]
        started = self._started(block)
        carries = [carry for carry in loop.carries if carry.current in started]
        stacked = self._context.stacked(block)
        buffered = [v for v in stacked if not self._program.values[v].is_extended]
        listed = [v for v in stacked if self._program.values[v].is_extended]

        def body(state: Any, index: Any) -> Any:
            frame = Frame(self._context, block, self, (*self._indices, index))
            frame.env.update(zip((c.current for c in carries), state[0], strict=True))
            frame.run()
            buffers = [
                self._with_element(value, buffer, frame.element(value), index)
                for value, buffer in zip(buffered, state[1], strict=True)
            ]
            following = [frame.handed_on(carry) for carry in carries]
            return (following, buffers), [frame.element(value) for value in listed]

        initial = [started[carry.current] for carry in carries]
        (finals, buffers), lists = lax.scan(
            body,
            (initial, self._buffers(block, buffered)),
            jnp.arange(loop.length),
            reverse=loop.reverse,
            unroll=loop.unroll,
        )
        self.env.update(zip(buffered, buffers, strict=True))
        self.env.update(zip(listed, lists, strict=True))
        self._keep_finals(loop, carries, finals)

    def _started(self, block: Block) -> dict[int, Any]:
        """What the first iteration starts from; and puts what it takes elements of in place."""
        found = {}
        for item in block.items:
            if isinstance(item, Block):
                continue
            unit = self._graph.units[item.unit]
            border = self._graph.border(unit)
            if border not in (CARRY, SLICE) or item.is_again:
                continue
            with jax.named_scope(scope_name(unit.index)):
                operand = self._border_operand(unit, self._computed(unit, Fence()))
            if border == CARRY:
                value = unit.outputs[0]
                found[value] = self._constrain(value, operand, self._layouts[value])
            else:
                self.env[unit.outputs[0]] = operand
        return found

    def _buffers(self, block: Block, values: Sequence[int]) -> list[Any]:
        """Zeros for what the loop stacks, tied to what came before it (see `_expanded`)."""
        assert block.loop is not None
        infos = [self._program.values[v] for v in values]
        zeros = [jnp.zeros((), info.dtype) for info in infos]
        triggers = self._context.fences.loops.get(block.loop, ())
        tied = self._behind_barrier(Fence(triggers=triggers), zeros).scalars
        found = []
        for value, info, zero in zip(values, infos, tied, strict=True):
            # A stacked result has its iterations in its shape.
            is_result = self._depth_of(value) == len(self._indices)
            shape = info.shape if is_result else (*self._lengths_of(value), *info.shape)
            with self._scope_of(value):
                buffer = lax.broadcast(zero, shape)
                found.append(self._constrain_stacked(value, buffer, len(self._indices)))
        return found

    def _with_element(self, value: int, buffer: Any, element: Any, index: Any) -> Any:
        """A loop's buffer after one iteration."""
        with self._scope_of(value):
            updated = lax.dynamic_update_index_in_dim(buffer, element, index, 0)
            return self._constrain_stacked(value, updated, len(self._indices))

    def _scope_of(self, value: int) -> Any:
        """The scope of the unit that yields a value: what it takes is counted there."""
        return jax.named_scope(scope_name(self._graph.producer[value]))

    def _lengths_of(self, value: int) -> list[int]:
        """The lengths of the loops that a value belongs to and this frame is not in."""
        chain = self._program.loops_around(self._program.loop_of(value))
        return [self._program.loops[k].length for k in chain[len(self._indices) :]]

    def _depth_of(self, value: int) -> int:
        return len(self._program.loops_around(self._program.loop_of(value)))

    def element(self, value: int) -> Any:
        """What this iteration adds to what is stacked of a value."""
        return self.elements[value] if value in self.elements else self.env[value]

    def handed_on(self, carry: Carry) -> Any:
        """What this iteration hands on to the next one, as that starts from it."""
        wanted = self._layouts[carry.current]
        info = self._program.values[carry.current]
        if not isinstance(carry.next, int):
            return self._constrain(carry.current, jnp.asarray(carry.next.value, info.dtype), wanted)
        array = self._element_of(carry.next, self._lookup(carry.next))
        return self._reshard(carry.current, array, self._layouts[carry.next], wanted)

    def _keep_finals(self, loop: Loop, carries: Sequence[Carry], finals: Sequence[Any]) -> None:
        for carry, array in zip(carries, finals, strict=True):
            if isinstance(carry.next, int):
                final = _Final(array, self._layouts[carry.current])
                self.finals[loop.index, carry.next] = final

    def _take_final(self, unit: Unit) -> None:
        """What the last iteration handed on, after the loop."""
        equation = self._program.equations[unit.root]
        (value,), (output,) = equation.reads, unit.outputs
        final = self.finals[equation.jaxpr_eqn.params["loop"], value]
        self.env[output] = self._reshard(output, final.array, final.layout, self._layouts[output])

    # Values.

    def _lookup(self, value: int) -> _Array:
        """The latest computation of a value, in this frame or in one around it."""
        frame: Frame | None = self
        while frame is not None:
            if value in frame.env:
                return _Array(frame.env[value], len(frame._indices))
            frame = frame._parent
        # An element of something stacked, first taken by a loop that is over.
        unit = self._graph.units[self._graph.producer[value]]
        assert self._graph.border(unit) == SLICE
        operand = self._border_operand(unit, self._computed(unit, Fence()))
        return _Array(operand, self._depth_of(value) - 1)

    def _element_of(self, value: int, found: _Array) -> Any:
        """The element that belongs to this frame's iterations."""
        array = found.array
        for index in self._indices[found.depth : self._depth_of(value)]:
            array = lax.dynamic_index_in_dim(array, index, 0, keepdims=False)
        if self._depth_of(value) > found.depth:
            array = self._constrain(value, array, self._layouts[value])
        return array

    def _computed(self, unit: Unit, fence: Fence, *, is_again: bool = False) -> dict[int, Any]:
        """A unit's values, from what lies behind its fence; a border's own is left out."""
        expanded = self._expanded(unit) if fence.values else {}
        fenced = self._behind_barrier(fence, list(expanded.values()))
        local = self._operands(unit, fenced, is_again=is_again)
        scalar_of = dict(zip(expanded, fenced.scalars, strict=True))
        for index in unit.equations:
            equation = self._program.equations[index]
            if equation.is_border:
                continue
            if index in scalar_of:
                outputs = equation.apply_to(scalar_of[index], local.__getitem__)
            else:
                outputs = equation.apply(local.__getitem__)
            local.update(zip(equation.outputs, outputs, strict=True))
        return local

    def _border_operand(self, unit: Unit, local: dict[int, Any]) -> Any:
        (operand,) = self._program.equations[unit.root].inputs
        if not isinstance(operand, Literal):
            return local[operand]
        dtype = self._program.values[unit.outputs[0]].dtype
        return jnp.asarray(operand.value, dtype)

    def _behind_barrier(self, fence: Fence, scalars: Sequence[Any]) -> _Fenced:
        """The fence's values and copies, and scalars, behind one barrier with its triggers.

        Behind it each value is constrained to its layout, otherwise the partitioner moves the
        readers' resharding in front of it.
        """
        members = [*fence.values, *fence.triggers]
        if not members and not fence.copies:
            return _Fenced({}, {}, scalars)
        found = [self._lookup(v) for v in members]
        copies = [self.copies[key] for key in fence.copies]
        arrays = lax.optimization_barrier((*(f.array for f in found), *copies, *scalars))
        fenced = {
            value: _Array(self._constrain_stacked(value, array, known.depth), known.depth)
            for value, array, known in zip(members, arrays, found, strict=False)
        }
        self.env.update((t, fenced.pop(t).array) for t in fence.triggers)
        behind = zip(fence.copies, arrays[len(members) :], strict=False)
        return _Fenced(
            fenced,
            {key: self._constrain(key[0], array, key[1]) for key, array in behind},
            arrays[len(members) + len(copies) :],
        )

    def _expanded(self, unit: Unit) -> dict[int, Any]:
        """Equation → scalar, for large constants that the unit's last operator starts from.

        XLA schedules what depends on nothing at the start of the step and holds it from then
        on: the zeros that a scatter adds to, as large as the gradient of an embedding. Zeros
        that max pooling's gradient adds to XLA:GPU even makes twice, with those of a relu.
        """
        if is_map(self._graph.graph, unit.root):
            return {}
        found = {}
        for index in unit.equations:
            equation = self._program.equations[index]
            if equation.expanded is None:
                continue
            value = self._program.values[equation.outputs[0]]
            if value.size_bytes >= LARGE_BYTES:
                found[index] = jnp.asarray(equation.expanded, value.dtype)
        return found

    def _operands(self, unit: Unit, fenced: _Fenced, *, is_again: bool) -> dict[int, Any]:
        """What a unit reads, in the layouts that it expects."""
        values = fenced.values
        arrays = {v: self._element_of(v, values.get(v) or self._lookup(v)) for v in unit.reads}
        local = {}
        for (value, _), wanted in zip(
            unit.rule.reads, self._execution.reads[unit.index], strict=True
        ):
            if value in local and wanted == self._layouts[value]:
                continue
            if (value, wanted) in fenced.copies:
                array = fenced.copies[value, wanted]
            else:
                array = self._reshard(value, arrays[value], self._layouts[value], wanted)
            local[value] = array
            if not is_again:
                self.copies[value, wanted] = array
        return arrays | local

    def _reshard(
        self, value: int, array: Any, source: TensorSharding, target: TensorSharding
    ) -> Any:
        """Step by step along the priced chain; left alone, XLA may gather the whole tensor."""
        if source == target:
            return array
        info = self._program.values[value]
        table = resharding_table(self._execution.mesh, info)
        with jax.named_scope(RESHARD_SCOPE):
            for waypoint in (*table.waypoints(source, target), target):
                array = self._constrain(value, array, waypoint)
        return array

    def _constrain_stacked(self, value: int, array: Any, depth: int) -> Any:
        """Constrains a value as it lies in a frame of `depth` loops: elements as planned."""
        return self._constrain(value, array, self._layouts[value], self._depth_of(value) - depth)

    def _constrain(self, value: int, array: Any, sharding: TensorSharding, stacked: int = 0) -> Any:
        """Constrains a value with `stacked` leading dimensions for iterations."""
        info = self._program.values[value]
        if info.is_extended or self._execution.mesh.size == 1 or not (info.shape or stacked):
            return array
        if value in self._program.host_values:
            return array  # A constraint would compute with it.
        spec = self._execution.mesh.partition_spec(sharding)
        spec = jax.sharding.PartitionSpec(*[None] * stacked, *spec)
        return jax.lax.with_sharding_constraint(
            array, jax.sharding.NamedSharding(self._context.jax_mesh, spec)
        )
