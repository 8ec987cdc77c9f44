"""The interpreter of a plan: it evaluates the units of the step, or of one iteration of a loop.

One `Interpreter` evaluates one `LoopBody`. Its `env` maps a value to the latest computation of it.
A value that belongs to loops which the interpreter is not inside of has a leading dimension for
each of these loops; an interpreter inside takes the element of its own iterations.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from kiwi.emit.barriers import Barrier
from kiwi.emit.context import Context
from kiwi.emit.kernels import on_each_device
from kiwi.emit.needed_barriers import large_constants
from kiwi.hlo.host_memory import FETCH, HOST_MEMORY, STORE
from kiwi.hlo.loops import CARRY, RESULT, SLICE, STACK, Carry
from kiwi.hlo.program import Literal
from kiwi.hlo.units import Unit
from kiwi.memory.loop_bodies import LoopBody, ScheduledUnit
from kiwi.mesh import TensorSharding
from kiwi.xla.read.name_scopes import RESHARD_SCOPE, scope_name


class _Array(NamedTuple):
    """A value as an interpreter inside `depth` loops holds it."""

    array: Any
    depth: int


class _Final(NamedTuple):
    """A carry after the last iteration, and its layout."""

    array: Any
    layout: TensorSharding


class _PastBarrier(NamedTuple):
    """The results of an `optimization_barrier`: values and copies of a `Barrier`, and scalars."""

    values: dict[int, _Array]
    copies: dict["_Copied", Any]
    scalars: Sequence[Any]


_Copied = tuple[int, TensorSharding]
"""A value, and the layout of a copy of it."""


class Interpreter:
    """Evaluates the step, or one iteration of a loop.

    - `parent`: the interpreter of the body that runs the loop.
    - `indices`: for each loop around the body the number of its iteration, outermost first.
    - `env`: see above. `finals[loop, value]`: a loop's carry after the last iteration.
    - `elements`: for each stacked result of a scan the element that this iteration adds.
    - `copies[value, layout]`: the latest resharded copy that a first computation of a unit read.
    - `behind`: what the units of a recomputed group read behind the group's barrier.
    """

    def __init__(
        self,
        context: Context,
        body: LoopBody,
        parent: "Interpreter | None" = None,
        indices: tuple[Any, ...] = (),
    ) -> None:
        self._context = context
        self._execution = context.execution
        self._layouts = context.execution.layouts
        self._graph = context.execution.units
        self._program = self._graph.graph.program
        self._body = body
        self._parent = parent
        self._indices = indices
        self.env: dict[int, Any] = {}
        self.finals: dict[tuple[int, int], _Final] = {}
        self.elements: dict[int, Any] = {}
        self.copies: dict[_Copied, Any] = {}
        self.behind: dict[int, _Array] = {}

    def run(self) -> None:
        """Evaluates the units and loops of the body in order."""
        for item in self._body.items:
            if isinstance(item, LoopBody):
                self._run_loop(item)
                continue
            if not item.is_again:
                self.behind = {}
            with jax.named_scope(scope_name(item.unit, again=item.is_again)):
                self._evaluate(item)

    def result(self, result: int | Literal, sharding: TensorSharding | None) -> Any:
        """A result of the function, in the layout that the caller gets."""
        if isinstance(result, Literal):
            return result.value
        array = self.env[result]
        is_stored = result in self._program.host_values
        if is_stored or sharding is None or sharding == self._layouts[result]:
            return array
        return self._reshard(result, array, self._layouts[result], sharding)

    def _evaluate(self, step: ScheduledUnit) -> None:
        unit = self._graph.units[step.unit]
        border = self._graph.border(unit)
        if border in (CARRY, SLICE):
            return  # The interpreter of the loop has put it into `env`.
        if border == RESULT:
            self._take_final(unit)
            return
        barrier = self._context.barriers.steps[step.position]
        if self._program.equations[unit.root].name == FETCH:
            self._fetch(unit, barrier)
            return
        local = self._computed(unit, barrier, is_again=step.is_again)
        if self._program.equations[unit.root].name == STORE:
            self._store(unit, local)
            return
        if border == STACK:
            self.elements[unit.outputs[0]] = self._border_operand(unit, local)
            return
        for output in unit.outputs:
            self.env[output] = self._constrain(output, local[output], self._layouts[output])
            self.behind.pop(output, None)

    # Host memory.

    def _fetch(self, unit: Unit, barrier: Barrier) -> None:
        """Copies an argument to the device in its own layout, then reshards it."""
        passed = self._behind_barrier(barrier, []).values
        (argument,), (output,) = unit.reads, unit.outputs
        source, target = self._layouts[argument], self._layouts[output]
        array = self._element_of(argument, passed.get(argument) or self._lookup(argument))
        array = self._constrain(output, self._moved(array, source, "device"), source)
        self.env[output] = self._reshard(output, array, source, target)

    def _store(self, unit: Unit, local: dict[int, Any]) -> None:
        """Reshards a result to the layout that the caller gets, then copies it to the host."""
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

    def _run_loop(self, body: LoopBody) -> None:
        """Runs a loop as a `lax.scan`."""
        assert body.loop is not None
        loop = self._program.loops[body.loop]
        started = self._started(body)
        carries = [carry for carry in loop.carries if carry.current in started]
        stacked = self._context.stacked_values(body)
        buffered = [v for v in stacked if not self._program.values[v].is_extended]
        listed = [v for v in stacked if self._program.values[v].is_extended]

        def iterate(state: Any, index: Any) -> Any:
            interpreter = type(self)(self._context, body, self, (*self._indices, index))
            interpreter.env.update(zip((c.current for c in carries), state[0], strict=True))
            interpreter.run()
            # The element that this iteration adds to each stacked value.
            elements = interpreter.env | interpreter.elements
            buffers = [
                self._with_element(value, buffer, elements[value], index)
                for value, buffer in zip(buffered, state[1], strict=True)
            ]
            following = [interpreter.handed_on(carry) for carry in carries]
            return (following, buffers), [elements[value] for value in listed]

        initial = [started[carry.current] for carry in carries]
        (finals, buffers), lists = lax.scan(
            iterate,
            (initial, self._buffers(body, buffered)),
            jnp.arange(loop.length),
            reverse=loop.reverse,
            unroll=loop.unroll,
        )
        for value, buffer in zip(buffered, buffers, strict=True):
            # Else the partitioner would give the loop's own buffer a layout that a reader wants.
            self.env[value] = self._constrain_stacked(value, buffer, len(self._indices))
        self.env.update(zip(listed, lists, strict=True))
        for carry, array in zip(carries, finals, strict=True):
            if isinstance(carry.next, int):
                layout = self._layouts[carry.current]
                found = self._constrain(carry.current, array, layout)
                self.finals[loop.index, carry.next] = _Final(found, layout)

    def _started(self, body: LoopBody) -> dict[int, Any]:
        """The initial carries of a loop; also puts the operands that it slices into `env`."""
        found = {}
        for item in body.items:
            if isinstance(item, LoopBody):
                continue
            unit = self._graph.units[item.unit]
            border = self._graph.border(unit)
            if border not in (CARRY, SLICE) or item.is_again:
                continue
            with jax.named_scope(scope_name(unit.index)):
                operand = self._border_operand(unit, self._computed(unit, Barrier()))
            if border == CARRY:
                value = unit.outputs[0]
                found[value] = self._constrain(value, operand, self._layouts[value])
            else:
                self.env[unit.outputs[0]] = operand
        return found

    def _buffers(self, body: LoopBody, values: Sequence[int]) -> list[Any]:
        """Zeros to stack values in, tied to the step before the loop (see `_expanded`)."""
        assert body.loop is not None
        infos = [self._program.values[v] for v in values]
        zeros = [jnp.zeros((), info.dtype) for info in infos]
        triggers = self._context.barriers.loops.get(body.loop, ())
        tied = self._behind_barrier(Barrier(triggers=triggers), zeros).scalars
        found = []
        for value, info, zero in zip(values, infos, tied, strict=True):
            # The shape of a stacked result has the iterations already.
            is_result = self._depth_of(value) == len(self._indices)
            around = self._program.loops_around(self._program.loop_of(value))
            lengths = [self._program.loops[k].length for k in around[len(self._indices) :]]
            shape = info.shape if is_result else (*lengths, *info.shape)
            with self._scope_of(value):
                buffer = lax.broadcast(zero, shape)
                found.append(self._constrain_stacked(value, buffer, len(self._indices)))
        return found

    def _with_element(self, value: int, buffer: Any, element: Any, index: Any) -> Any:
        """The buffer of stacked values after one iteration."""
        with self._scope_of(value):
            updated = lax.dynamic_update_index_in_dim(buffer, element, index, 0)
            return self._constrain_stacked(value, updated, len(self._indices))

    def _scope_of(self, value: int) -> Any:
        """The name scope of the producer, to which the compiled program's memory is attributed."""
        return jax.named_scope(scope_name(self._graph.producer[value]))

    def _depth_of(self, value: int) -> int:
        return len(self._program.loops_around(self._program.loop_of(value)))

    def handed_on(self, carry: Carry) -> Any:
        """A carry for the next iteration, in the layout that the iteration reads."""
        wanted = self._layouts[carry.current]
        info = self._program.values[carry.current]
        if not isinstance(carry.next, int):
            return self._constrain(carry.current, jnp.asarray(carry.next.value, info.dtype), wanted)
        array = self._element_of(carry.next, self._lookup(carry.next))
        return self._reshard(carry.current, array, self._layouts[carry.next], wanted)

    def _take_final(self, unit: Unit) -> None:
        """Puts a carry after the last iteration into `env` of the body around the loop."""
        equation = self._program.equations[unit.root]
        (value,), (output,) = equation.reads, unit.outputs
        final = self.finals[equation.jaxpr_eqn.params["loop"], value]
        self.env[output] = self._reshard(output, final.array, final.layout, self._layouts[output])

    # Values.

    def _lookup(self, value: int) -> _Array:
        """The latest computation of a value, by this interpreter or by one around it."""
        interpreter: Interpreter | None = self
        while interpreter is not None:
            if value in interpreter.env:
                return _Array(interpreter.env[value], len(interpreter._indices))
            interpreter = interpreter._parent
        # A slice of a stacked operand that only a finished loop has put into its `env`.
        unit = self._graph.units[self._graph.producer[value]]
        assert self._graph.border(unit) == SLICE
        operand = self._border_operand(unit, self._computed(unit, Barrier()))
        return _Array(operand, self._depth_of(value) - 1)

    def _element_of(self, value: int, found: _Array) -> Any:
        """The element that belongs to this interpreter's iterations."""
        array = found.array
        for index in self._indices[found.depth : self._depth_of(value)]:
            array = lax.dynamic_index_in_dim(array, index, 0, keepdims=False)
        if self._depth_of(value) > found.depth:
            array = self._constrain(value, array, self._layouts[value])
        return array

    def _computed(self, unit: Unit, barrier: Barrier, *, is_again: bool = False) -> dict[int, Any]:
        """The values that a unit computes from operands behind its barrier."""
        expanded = self._expanded(unit) if barrier else {}
        passed = self._behind_barrier(barrier, list(expanded.values()))
        local = self._operands(unit, passed, is_again=is_again)
        scalar_of = dict(zip(expanded, passed.scalars, strict=True))
        for index in unit.equations:
            equation = self._program.equations[index]
            if equation.is_border:
                continue
            if equation.is_unlowered and equation.name != "shard_map":
                outputs = on_each_device(self._context, unit, equation, local)
            elif index in scalar_of:
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

    def _behind_barrier(self, barrier: Barrier, scalars: Sequence[Any]) -> _PastBarrier:
        """Passes values, copies, triggers and scalars through one `optimization_barrier`.

        Each result is constrained to its layout: without that the partitioner reshards the
        operands in front of the barrier for readers behind it.
        """
        members = [*barrier.values, *barrier.triggers]
        if not barrier:
            return _PastBarrier({}, {}, scalars)
        found = [self._lookup(v) for v in members]
        copies = [self.copies[key] for key in barrier.copies]
        arrays = lax.optimization_barrier((*(f.array for f in found), *copies, *scalars))
        passed = {
            value: _Array(self._constrain_stacked(value, array, known.depth), known.depth)
            for value, array, known in zip(members, arrays, found, strict=False)
        }
        self.env.update((t, passed.pop(t).array) for t in barrier.triggers)
        if barrier.is_of_group:
            self.behind = dict(passed)
        behind = zip(barrier.copies, arrays[len(members) :], strict=False)
        return _PastBarrier(
            passed,
            {key: self._constrain(key[0], array, key[1]) for key, array in behind},
            arrays[len(members) + len(copies) :],
        )

    def _expanded(self, unit: Unit) -> dict[int, Any]:
        """Equation → scalar, for large constants that the unit's last operator reads."""
        found = {}
        for index in large_constants(self._graph, unit):
            equation = self._program.equations[index]
            dtype = self._program.values[equation.outputs[0]].dtype
            found[index] = jnp.asarray(equation.expanded, dtype)
        return found

    def _operands(self, unit: Unit, passed: _PastBarrier, *, is_again: bool) -> dict[int, Any]:
        """A unit's operands in the layouts that its strategy expects."""
        values = self.behind | passed.values
        arrays = {v: self._element_of(v, values.get(v) or self._lookup(v)) for v in unit.reads}
        local = {}
        for (value, _), wanted in zip(
            unit.rule.reads, self._execution.reads[unit.index], strict=True
        ):
            if value in local and wanted == self._layouts[value]:
                continue
            if (value, wanted) in passed.copies:
                array = passed.copies[value, wanted]
            else:
                array = self._reshard(value, arrays[value], self._layouts[value], wanted)
            local[value] = array
            if not is_again:
                self.copies[value, wanted] = array
        return arrays | local

    def _reshard(
        self, value: int, array: Any, source: TensorSharding, target: TensorSharding
    ) -> Any:
        """Reshards move by move along the priced chain; XLA may gather the tensor otherwise."""
        if source == target:
            return array
        table = self._execution.resharding_table(value)
        with jax.named_scope(RESHARD_SCOPE):
            for waypoint in (*table.waypoints(source, target), target):
                array = self._constrain(value, array, waypoint)
        return array

    def _constrain_stacked(self, value: int, array: Any, depth: int) -> Any:
        """Constrains a value that an interpreter inside `depth` loops holds."""
        return self._constrain(value, array, self._layouts[value], self._depth_of(value) - depth)

    def _constrain(self, value: int, array: Any, sharding: TensorSharding, stacked: int = 0) -> Any:
        """Constrains a value to a sharding, behind `stacked` leading dimensions for iterations."""
        info = self._program.values[value]
        if info.is_extended or self._execution.mesh.size == 1 or not (info.shape or stacked):
            return array
        if value in self._program.host_values:
            return array  # The constraint would be an operator on the device.
        spec = self._execution.mesh.partition_spec(sharding)
        spec = jax.sharding.PartitionSpec(*[None] * stacked, *spec)
        return jax.lax.with_sharding_constraint(
            array, jax.sharding.NamedSharding(self._context.jax_mesh, spec)
        )
