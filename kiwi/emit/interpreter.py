"""Emission: an `Execution` becomes a JAX function that interprets the traced equations.

Sharding constraints pin the results of each unit to their layouts. They also pin an operand if the
unit expects another layout than the stored one.

**Barriers.** See `kiwi.emit.needed_barriers` and `kiwi.emit.barriers`.

**Loops.** The body of an opened scan runs in a `jax.lax.scan`. The scan carries a buffer for each
value that is read outside of the loop. The body reads values of other loops, and stacked operands,
at the index of its iteration. A `while` runs in a `jax.lax.while_loop`. A conditional runs in a
`jax.lax.switch`, which yields its results and the values of its branches that are read elsewhere.

**Names.** Each unit has a name scope (`kiwi.xla.read.name_scopes`). The metadata of every
instruction of the compiled program contains it.

One `Interpreter` evaluates one `LoopBody`: the step, or one iteration of a loop. Its `env` maps a
value to the array of its latest computation. If the interpreter is outside of scans that a value
belongs to, the array has a leading dimension for each of these scans. An interpreter inside these
scans takes the element of its own iterations.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from kiwi.emit.barriers import Barrier
from kiwi.emit.context import Context
from kiwi.emit.execution import Execution
from kiwi.emit.host_buffers import (
    element,
    empty_buffer,
    fetched,
    is_paced,
    row_major,
    stored,
    written,
)
from kiwi.emit.values import Final, Values
from kiwi.hlo import jax_internals
from kiwi.hlo.explicit_axes import over_auto_axes
from kiwi.hlo.host_memory import FETCH, HOST_MEMORY, STORE
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.loops import CARRY, ENTRIES, EXITS, JOIN, SLICE, STACK, Carry, Loop, LoopKind
from kiwi.hlo.program import Literal
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.matrix_operands import MATMUL
from kiwi.memory.loop_bodies import LoopBody, ScheduledUnit
from kiwi.mesh import TensorSharding
from kiwi.xla.read.name_scopes import scope_name


class Interpreter(Values):
    """Evaluates the step, or one iteration of a loop.

    - `parent`: the interpreter of the body that runs the loop; None for the step.
    - `indices`: the iteration's index in each scan around the body, outermost first.
    - `env`: the array of each value's latest computation.
    - `finals[loop, value]`: a loop's carry after the last iteration. Each carry is found by its
      value at the start of an iteration and by its value at the end.
    - `elements`: the element of this iteration for each stacked result of a scan.
    - `on_host`: the arrays that the plan has copied to the host: stacks of scans by
      ("stacked", value), and buffers by number (`kiwi.emit.context`).
    - `token`: the token of the latest copy to an element of a buffer; None before the first copy.
    - `leaving`: by buffer, the position of the step at which the copy of the whole buffer must have
      ended.
    - `copies`: the latest array of each resharded copy.
    - `behind`: the operands of the last recomputed group, behind the group's barrier.
    - `read_with`: the same, by result of the group. Readers of the result read these operands
      behind the barrier as well, so that XLA fuses the recomputation with its reader.
    - `begun`: values that a barrier has passed for a later step, so that their copies begin there.
    - `rows`: values behind a barrier for units that reduce their rows again.
    """

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
        """Returns a result of the function, in the layout for the caller.

        - `result`: a value index, or a literal. `sharding`: the layout; None for the stored one.
        """
        if isinstance(result, Literal):
            return result.value
        array = self.env[result]
        is_stored = result in self._program.host_values
        if is_stored or sharding is None or sharding == self._layouts[result]:
            return array
        return self._reshard(result, array, self._layouts[result], sharding)

    def _evaluate(self, step: ScheduledUnit) -> None:
        """Evaluates a step of the schedule and puts its results into `env`."""
        unit = self._graph.units[step.unit]
        border, barrier = self._graph.border(unit), self._context.barriers.steps[step.position]
        if step.is_fetched:
            self._fetch_back(unit, barrier)
            return
        if border in ENTRIES:
            return  # The interpreter that runs the loop has put the value into `env`.
        if border in EXITS:
            self._take_final(unit)
            return
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
            array = self._constrain(output, local[output], self._layouts[output])
            self.env[output] = in_written_order(self._context, unit, output, array)
            if step.is_again:
                for group in (self.behind, *self.read_with.values()):
                    group.pop(output, None)
                self.read_with[output] = self.behind
        self._end_copies(unit, step.position)
        for output in unit.outputs:
            if output in self._context.host_places and not step.is_again:
                self._offload(output, step.position)

    # Host memory.

    def _fetch(self, unit: Unit, barrier: Barrier) -> None:
        """Copies an argument to the device in its own layout, then reshards it."""
        (argument,), (output,) = unit.reads, unit.outputs
        source, target = self._layouts[argument], self._layouts[output]
        shape = self._program.values[output].shape
        array = self._element_of(argument, self._lookup(argument))
        if barrier and is_paced(self._context, source, shape):
            zero = self._behind(barrier, jnp.int32(0))
            on_host = self._moved(array, source, HOST_MEMORY)
            array = fetched(self._context, source, on_host, zero)
        else:
            if not self._execution.facts.hoists_copies:
                array = self._behind(barrier, array)
            array = self._moved(array, source, "device")
        array = self._constrain(output, array, source)
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
        if not is_paced(self._context, target, array.shape):
            self.env[output] = self._moved(array, target, HOST_MEMORY)
            return
        argument = self._graph.aliased_results.get(output)
        if argument is None or self._layouts[argument] != target:
            buffer = jnp.zeros(array.shape, array.dtype)
        else:
            buffer = self._lookup(argument).array
        buffer = self._moved(buffer, target, HOST_MEMORY)
        array, token = self._behind_token(array, output, target)
        self.env[output], self.token = stored(self._context, target, buffer, array, token)

    def _behind_token(self, array: Any, value: int, layout: TensorSharding) -> tuple[Any, Any]:
        """Returns an array behind a barrier that waits for the latest copy to the host, and that
        copy's token. If there was no copy, returns the array itself and a token of zeros."""
        if self.token is None:
            return array, jnp.zeros(self._execution.mesh.size, array.dtype)
        array, token = lax.optimization_barrier((array, self.token))
        return self._constrain(value, array, layout), token

    def _behind(self, barrier: Barrier, array: Any) -> Any:
        """Returns an array behind the barrier of a step."""
        return self._behind_barrier(barrier, [array]).scalars[0]

    def _end_copies(self, unit: Unit, position: int) -> None:
        """Ends the copies to the host that are due at a position.

        The unit's result passes a barrier together with these copies, so that readers of the result
        wait for the copies. Only results of library calls and of offloaded units are used for it.
        """
        due = [buffer for buffer, end in self.leaving.items() if end <= position]
        is_offloaded = unit.index in self._execution.fetched
        if not due or not (is_offloaded or is_of_library(self._graph.graph, unit)):
            return
        (output, *_) = unit.outputs
        copies = (self.on_host[buffer] for buffer in due)
        array, *ended = lax.optimization_barrier((self.env[output], *copies))
        self.env[output] = self._constrain(output, array, self._layouts[output])
        for buffer, copy in zip(due, ended, strict=True):
            self.on_host[buffer] = copy
            del self.leaving[buffer]

    def _offload(self, value: int, position: int) -> None:
        """Copies a value to the host, as a whole array or to its place in a buffer
        (`kiwi.emit.context`)."""
        place, layout = self._context.host_places[value], self._layouts[value]
        if not self._execution.facts.hoists_copies:
            self.on_host[place.buffer] = self._moved(self.env[value], layout, HOST_MEMORY)
            self.leaving[place.buffer] = position + self._context.steps_of_copies
            return
        self.env[value], token = self._behind_token(self.env[value], value, layout)
        array = self.env[value]
        buffer = self.on_host.get(place.buffer)
        if buffer is None:
            buffer = empty_buffer(self._context, layout, place.count, array)
        buffer, self.token = written(self._context, layout, buffer, array, place.index, token)
        self.on_host[place.buffer] = buffer

    def _fetch_back(self, unit: Unit, barrier: Barrier) -> None:
        """Copies a unit's result back from the host. In a loop, only the element of the iteration
        is copied."""
        (value,) = unit.outputs
        place = self._context.host_places.get(value)
        name = ("stacked", value) if place is None else place.buffer
        interpreter: Values | None = self
        while interpreter is not None and name not in interpreter.on_host:
            interpreter = interpreter._parent
        assert interpreter is not None
        buffer = interpreter.on_host[name]
        layout = self._layouts[value]
        if place is None:
            index = self._indices[len(interpreter._indices)] + self._behind(barrier, jnp.int32(0))
            array = lax.dynamic_index_in_dim(buffer, index, 0, keepdims=False)
            array = self._moved(array, layout, "device")
        elif self._execution.facts.hoists_copies:
            index = place.index + self._behind(barrier, jnp.int32(0))
            shape = self._program.values[value].shape
            array = element(self._context, layout, shape, buffer, index)
        else:
            array = self._moved(self._behind(barrier, buffer), layout, "device")
        self.env[value] = self._constrain(value, array, layout)

    # Loops.

    def _run_loop(self, body: LoopBody) -> None:
        """Runs a loop and records its carries after the last iteration in `finals`."""
        assert body.loop is not None
        loop = self._program.loops[body.loop]
        started = self._started(body)
        carries = [carry for carry in loop.carries if carry.current in started]
        if loop.kind is LoopKind.SCAN:
            finals = self._scan(loop, body, carries, started)
        elif loop.kind is LoopKind.WHILE:
            finals = self._while(loop, body, carries, started)
        else:
            carries, finals = self._switch(loop, body)
        for carry, array in zip(carries, finals, strict=True):
            layout = self._layouts[carry.current]
            final = Final(self._constrain(carry.current, array, layout), layout)
            self.finals[loop.index, carry.current] = final
            if isinstance(carry.next, int):
                self.finals[loop.index, carry.next] = final

    def _while(
        self, loop: Loop, body: LoopBody, carries: Sequence[Carry], started: dict[int, Any]
    ) -> Sequence[Any]:
        """Runs a `lax.while_loop`; returns its final carries. `started`: the initial carries."""
        assert loop.test is not None
        test = [carry.current for carry in carries].index(loop.test)

        def iterate(state: Any) -> Any:
            interpreter = self._inside(body, self._indices)
            interpreter.env.update(zip((carry.current for carry in carries), state, strict=True))
            interpreter.run()
            return [interpreter.handed_on(carry) for carry in carries]

        initial = [started[carry.current] for carry in carries]
        return lax.while_loop(lambda state: state[test], iterate, initial)

    def _switch(self, loop: Loop, body: LoopBody) -> tuple[Sequence[Carry], Sequence[Any]]:
        """Runs a `lax.switch`; returns the carries of the first branch, which name the results, and
        the results.

        Values of a branch that are read outside of it go into `env`. If another branch runs, they
        are zeros.
        """
        assert loop.test is not None
        bodies = {item.loop: item for item in body.items if isinstance(item, LoopBody)}
        branches = [branch for branch in self._program.loops if branch.parent == loop.index]
        bodies = {
            branch.index: bodies.get(branch.index) or LoopBody(branch.index, ())
            for branch in branches
        }
        read = {k: self._context.stacked_values(inside) for k, inside in bodies.items()}

        def yielded(branch: Loop) -> Any:
            interpreter = self._inside(bodies[branch.index], self._indices)
            interpreter.run()
            stacked = [
                [
                    interpreter.env[value] if k == branch.index else self._zeros(value)
                    for value in values
                ]
                for k, values in read.items()
            ]
            return [interpreter.handed_on(carry) for carry in branch.carries], stacked

        test = self._lookup(loop.test).array
        results, stacked_arrays = lax.switch(test, [lambda k=k: yielded(k) for k in branches])
        for values, arrays in zip(read.values(), stacked_arrays, strict=True):
            for value, array in zip(values, arrays, strict=True):
                self.env[value] = self._constrain_stacked(value, array, len(self._indices))
        return branches[0].carries, results

    def _inside(self, body: LoopBody, indices: tuple[Any, ...]) -> "Interpreter":
        """Returns an interpreter of one iteration of a loop that this one runs."""
        return type(self)(self._context, body, self, indices)

    def _scan(
        self, loop: Loop, body: LoopBody, carries: Sequence[Carry], started: dict[int, Any]
    ) -> Sequence[Any]:
        """Runs a `lax.scan`; returns its final carries, and puts its stacked values into `env` or
        `on_host`. `started`: the initial carries."""
        stacked = self._context.stacked_values(body)
        producer, fetched = self._graph.producer, self._execution.fetched
        on_host = [value for value in stacked if producer[value] in fetched]
        listed = [value for value in stacked if self._program.values[value].is_extended]
        buffered = [value for value in stacked if value not in (*on_host, *listed)]

        def iterate(state: Any, index: Any) -> Any:
            interpreter = self._inside(body, (*self._indices, index))
            interpreter.env.update(zip((carry.current for carry in carries), state[0], strict=True))
            interpreter.run()
            # The element that this iteration adds to each stacked value.
            elements = interpreter.env | interpreter.elements
            buffers = [
                self._with_element(value, buffer, elements[value], index)
                for value, buffer in zip(buffered, state[1], strict=True)
            ]
            following = [interpreter.handed_on(carry) for carry in carries]
            moved = [
                self._moved(elements[value], self._layouts[value], HOST_MEMORY) for value in on_host
            ]
            return (following, buffers), ([elements[value] for value in listed], moved)

        initial = [started[carry.current] for carry in carries]
        (finals, buffers), (lists, moved) = lax.scan(
            iterate,
            (initial, self._buffers(body, buffered)),
            jnp.arange(loop.length),
            reverse=loop.reverse,
            unroll=loop.unroll,
        )
        for value, buffer in zip(buffered, buffers, strict=True):
            # Without the constraint, XLA's partitioner would give the loop's own buffer the layout
            # that a reader wants.
            self.env[value] = self._constrain_stacked(value, buffer, len(self._indices))
        self.env.update(zip(listed, lists, strict=True))
        names = (("stacked", value) for value in on_host)
        self.on_host.update(zip(names, moved, strict=True))
        return finals

    def _started(self, body: LoopBody) -> dict[int, Any]:
        """Returns the initial carries of a loop, by value. Also puts the operands that the loop
        slices, and the index of the branch, into `env`."""
        initial = {}
        for item in body.items:
            if isinstance(item, LoopBody):
                continue
            unit = self._graph.units[item.unit]
            border = self._graph.border(unit)
            if border not in ENTRIES or item.is_again:
                continue
            with jax.named_scope(scope_name(unit.index)):
                operand = self._border_operand(unit, self._computed(unit, Barrier()))
            if border == CARRY:
                value = unit.outputs[0]
                initial[value] = self._constrain(value, operand, self._layouts[value])
            else:
                self.env[unit.outputs[0]] = operand
        for unit in self._sliced_elsewhere(body):
            with jax.named_scope(scope_name(unit.index)):
                operand = self._border_operand(unit, self._computed(unit, Barrier()))
            self.env[unit.outputs[0]] = operand
        return initial

    def _sliced_elsewhere(self, body: LoopBody) -> Iterator[Unit]:
        """Yields the units that slice operands of finished loops and that the steps of another loop
        read. Their operands are laid out before that loop, once for all its iterations."""
        units = self._graph.units
        first_computed = {step.unit for step in body.steps() if not step.is_again}
        read = {value for step in body.steps() for value in units[step.unit].reads}
        for value in sorted(read):
            producer = self._graph.producer.get(value)
            if producer is None or producer in first_computed or self.holds(value):
                continue
            is_inside = self._depth_of(value) == len(self._indices) + 1
            if is_inside and self._graph.border(units[producer]) == SLICE:
                yield units[producer]

    def _buffers(self, body: LoopBody, values: Sequence[int]) -> list[Any]:
        """Returns a buffer of zeros for each stacked value, behind the loop's triggers
        (`Barriers.loops`)."""
        assert body.loop is not None
        infos = [self._program.values[value] for value in values]
        zeros = [jnp.zeros((), info.dtype) for info in infos]
        triggers = self._context.barriers.loops.get(body.loop, ())
        tied = self._behind_barrier(Barrier(triggers=triggers), zeros).scalars
        buffers = []
        for value, zero in zip(values, tied, strict=True):
            with self._scope_of(value):
                buffer = lax.broadcast(zero, self._stacked_shape(value))
                buffers.append(self._constrain_stacked(value, buffer, len(self._indices)))
        return buffers

    def _zeros(self, value: int) -> Any:
        """Returns zeros in the shape in which this interpreter holds a value."""
        return lax.full(self._stacked_shape(value), 0, self._program.values[value].dtype)

    def _stacked_shape(self, value: int) -> tuple[int, ...]:
        """Returns the shape in which this interpreter holds a value of scans inside its body: one
        dimension of iterations for each scan, then the value's own dimensions."""
        around = self._program.scans_around(self._program.loop_of(value))[len(self._indices) :]
        lengths = (self._program.loops[k].length for k in around)
        return (*lengths, *self._program.values[value].shape)

    def _with_element(self, value: int, buffer: Any, element: Any, index: Any) -> Any:
        """Returns the buffer of a stacked value with the element of one iteration written to it."""
        with self._scope_of(value):
            updated = lax.dynamic_update_index_in_dim(buffer, element, index, 0)
            return self._constrain_stacked(value, updated, len(self._indices))

    def handed_on(self, carry: Carry) -> Any:
        """Returns a carry for the next iteration, in the layout that the iteration reads."""
        wanted = self._layouts[carry.current]
        info = self._program.values[carry.current]
        if not isinstance(carry.next, int):
            return self._constrain(carry.current, jnp.asarray(carry.next.value, info.dtype), wanted)
        array = self._element_of(carry.next, self._lookup(carry.next))
        return self._reshard(carry.current, array, self._layouts[carry.next], wanted)

    def _take_final(self, unit: Unit) -> None:
        """Puts a final carry of a loop, or a result of a conditional, into `env`, in the layout of
        the unit's result."""
        equation, (output,) = self._program.equations[unit.root], unit.outputs
        value = output if equation.name == JOIN else equation.reads[0]
        final = self.finals[equation.jaxpr_eqn.params["loop"], value]
        self.env[output] = self._reshard(output, final.array, final.layout, self._layouts[output])


def in_written_order(context: Context, unit: Unit, output: int, array: Any) -> Any:
    """Returns a result of a unit. If the compiler may transpose the result of a matmul, its layout
    in memory is constrained to row-major.

    XLA:GPU assigns layouts before it fuses. If a gradient sums over batch and positions, XLA:GPU
    may make the batch the minor dimension of all states between the layers. Norms then reduce
    columns, and each matmul's operand and result are transposed. The constraint prevents that.
    Matmuls with batch dimensions are left alone: attention has to transpose some of them anyway,
    and XLA chooses which.
    """
    execution = context.execution
    if not execution.facts.transposes_products or not is_product(execution.units, unit):
        return array
    # XLA's partitioner has no rule for a constraint on layouts, and would gather its operand.
    spec = execution.mesh.partition_spec(execution.layouts[output])
    return context.on_each_device(row_major, spec, spec)(array)


def is_product(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit is a matmul without batch dimensions whose left operand has two or more free
    dimensions, such as batch and position, and whose right operand has one."""
    root = units.graph.program.equations[unit.root]
    if root.name != MATMUL:
        return False
    (summed, _), (batch, _) = root.jaxpr_eqn.params["dimension_numbers"]
    rows, columns = (
        len(operand.aval.shape) - len(summed) - len(batch) for operand in root.jaxpr_eqn.invars
    )
    return not batch and rows > 1 and columns == 1


def emit(execution: Execution) -> Callable[..., list[Any]]:
    """Returns a function of the flat arguments that returns the flat results.

    The function's sharding constraints name the axes of the mesh in the arguments' types, or of an
    abstract mesh, so that it can be traced without devices. It may be traced in any mesh context.
    Its arguments may have Explicit axes. The types of its results have none.
    """
    program = execution.units.graph.program

    @jax_internals.without_mesh()
    def planned_step(*arguments: Any) -> list[Any]:
        arguments = tuple(map(over_auto_axes, arguments))
        context = Context.of(execution, arguments)
        interpreter = Interpreter(context, context.root)
        interpreter.env.update(zip(program.arguments, arguments, strict=True))
        interpreter.env.update(program.constants)
        interpreter.run()
        return [
            interpreter.result(result, sharding)
            for result, sharding in zip(program.results, execution.result_shardings, strict=True)
        ]

    return planned_step
