"""`Values`: the values that an interpreter of a plan holds, and how units read and compute them."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from kiwi.emit.barriers import Barrier
from kiwi.emit.context import Context
from kiwi.emit.execution import Copy
from kiwi.emit.kernels import on_each_device
from kiwi.emit.needed_barriers import large_constants
from kiwi.emit.ragged_products import is_ragged_product, ragged_product
from kiwi.hlo.loops import SLICE
from kiwi.hlo.program import Equation, Literal, Value
from kiwi.hlo.sharding_constraints import is_constraint
from kiwi.hlo.units import Unit
from kiwi.memory.loop_bodies import LoopBody, OperandRead
from kiwi.mesh import TensorSharding
from kiwi.xla.read.name_scopes import RESHARD_SCOPE, scope_name

_NONE: Mapping[int, Any] = MappingProxyType({})


class _Array(NamedTuple):
    """A value as an interpreter inside `depth` scans holds it: with one leading dimension for each
    further scan around the value."""

    array: Any
    depth: int


class Final(NamedTuple):
    """A loop's carry after the last iteration, and its layout."""

    array: Any
    layout: TensorSharding


class _PastBarrier(NamedTuple):
    """The values of a `Barrier`, and further scalars, behind its `optimization_barrier`."""

    values: dict[int, _Array]
    scalars: Sequence[Any]


class Values:
    """The values that one interpreter holds, described in `kiwi.emit.interpreter.Interpreter`."""

    def __init__(
        self,
        context: Context,
        body: LoopBody,
        parent: "Values | None" = None,
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
        self.finals: dict[tuple[int, int], Final] = {}
        self.elements: dict[int, Any] = {}
        self.on_host: dict[object, Any] = {}
        self.token: Any = None
        self.leaving: dict[int, int] = {}
        self.copies: dict[Copy, Any] = {}
        self.behind: dict[int, _Array] = {}
        self.read_with: dict[int, dict[int, _Array]] = {}
        self.begun: dict[int, _Array] = {}
        self.rows: dict[int, _Array] = {}

    def _scope_of(self, value: int) -> Any:
        """Returns a context manager: the name scope of a value's producer, to which the memory of
        the compiled program is attributed."""
        return jax.named_scope(scope_name(self._graph.producer[value]))

    def _depth_of(self, value: int) -> int:
        """Returns the number of scans around a value."""
        return len(self._program.scans_around(self._program.loop_of(value)))

    def _lookup(self, value: int) -> _Array:
        """Returns the latest computation of a value by this interpreter or by one around it."""
        interpreter: Values | None = self
        while interpreter is not None:
            if value in interpreter.env:
                return _Array(interpreter.env[value], len(interpreter._indices))
            interpreter = interpreter._parent
        # The value is a slice of a stacked operand, which only a finished loop had in its `env`.
        unit = self._graph.units[self._graph.producer[value]]
        assert self._graph.border(unit) == SLICE
        operand = self._border_operand(unit, self._computed(unit, Barrier()))
        return _Array(operand, self._depth_of(value) - 1)

    def holds(self, value: int) -> bool:
        """Whether this interpreter, or one around it, has computed a value."""
        interpreter: Values | None = self
        while interpreter is not None and value not in interpreter.env:
            interpreter = interpreter._parent
        return interpreter is not None

    def _element_of(self, value: int, found: _Array) -> Any:
        """Returns the element of a stacked value for this interpreter's iterations; the value
        itself if it is not stacked."""
        array = found.array
        for index in self._indices[found.depth : self._depth_of(value)]:
            array = lax.dynamic_index_in_dim(array, index, 0, keepdims=False)
        if self._depth_of(value) > found.depth:
            array = self._constrain(value, array, self._layouts[value])
        return array

    def _computed(self, unit: Unit, barrier: Barrier, *, is_again: bool = False) -> dict[int, Any]:
        """Computes a unit from operands behind its barrier; returns the arrays of its operands and
        of all values that it computes, by value index.

        - `is_again`: whether the computation is a recomputation.
        """
        expanded = self._expanded(unit) if barrier else {}
        passed = self._behind_barrier(barrier, list(expanded.values()))
        if not barrier.is_of_group:
            self.begun.update(
                (value, array) for value, array in passed.values.items() if value not in unit.reads
            )
        local = self._operands(unit, passed, is_again=is_again)
        return self._evaluated(unit, local, dict(zip(expanded, passed.scalars, strict=True)))

    def _evaluated(
        self, unit: Unit, local: dict[int, Any], scalar_of: Mapping[int, Any] = _NONE
    ) -> dict[int, Any]:
        """Applies the equations of a unit; returns `local` with the values that they compute.

        - `local`: the unit's operands, by value index. It is updated.
        - `scalar_of`: by equation, the scalar that a large constant expands.
        """
        for index in unit.equations:
            equation = self._program.equations[index]
            if equation.is_border:
                continue
            if self._stands_apart(equation):
                outputs = self._unlowered(unit, equation, local)
            elif is_constraint(equation.jaxpr_eqn):
                # The plan constrains the result itself: to the same layout if it can follow it.
                outputs = equation.operands(local.__getitem__)
            elif self._execution.facts.ragged_densely and is_ragged_product(equation):
                outputs = [self._ragged_product(unit, equation, local)]
            elif index in scalar_of:
                outputs = equation.apply_to(scalar_of[index], local.__getitem__)
            else:
                outputs = equation.apply(local.__getitem__)
            local.update(zip(equation.outputs, outputs, strict=True))
        return local

    def _stands_apart(self, equation: Equation) -> bool:
        """Whether an equation is not applied as it was traced, but as a kernel on each device. A
        `shard_map` is applied as traced: it states itself what each device computes."""
        is_unlowered = equation.is_unlowered and equation.name != "shard_map"
        reads_rows = equation.name in self._execution.facts.row_major_primitives
        return is_unlowered or equation.batches is not None or reads_rows

    def _unlowered(self, unit: Unit, equation: Equation, local: dict[int, Any]) -> list[Any]:
        """Returns the results of an equation for which `_stands_apart` holds, computed as a kernel
        on each device."""
        return on_each_device(self._context, unit, equation, local)

    def _ragged_product(self, unit: Unit, equation: Equation, local: Mapping[int, Any]) -> Any:
        """Returns the result of a ragged matmul, with its repeated operands in the layouts that the
        unit reads."""
        copies = (self._execution.copy_of(unit, k) for k in range(len(unit.rule.reads)))
        wanted = {value: layout for value, _, layout in copies}

        def laid_out(number: int, repeated: Any, groups: int) -> Any:
            value = equation.inputs[number]
            if not isinstance(value, int) or value not in wanted or self._execution.mesh.size == 1:
                return repeated
            dims = wanted[value].dims
            sharding = TensorSharding((*dims[:groups], (), *dims[groups:]))
            spec = self._execution.mesh.partition_spec(sharding)
            named_sharding = jax.sharding.NamedSharding(self._context.jax_mesh, spec)
            return lax.with_sharding_constraint(repeated, named_sharding)

        return ragged_product(equation, equation.operands(local.__getitem__), laid_out)

    def _border_operand(self, unit: Unit, local: dict[int, Any]) -> Any:
        """Returns the operand of a unit at the border of a loop."""
        (operand,) = self._program.equations[unit.root].inputs
        if not isinstance(operand, Literal):
            return local[operand]
        dtype = self._program.values[unit.outputs[0]].dtype
        return jnp.asarray(operand.value, dtype)

    def _behind_barrier(self, barrier: Barrier, scalars: Sequence[Any]) -> _PastBarrier:
        """Passes values, copies, triggers and scalars through one `optimization_barrier`.

        Triggers and copies behind the barrier are recorded. Values and scalars are returned. Each
        result is constrained to its layout. Otherwise XLA's partitioner would reshard the operands
        before the barrier for readers behind it.
        """
        members = [*barrier.values, *barrier.triggers]
        if not barrier:
            return _PastBarrier({}, scalars)
        held = [self._lookup(value) for value in members]
        copies = [self.copies[key] for key in barrier.copies]
        arrays = lax.optimization_barrier((*(known.array for known in held), *copies, *scalars))
        passed = {
            value: _Array(self._constrain_stacked(value, array, known.depth), known.depth)
            for value, array, known in zip(members, arrays, held, strict=False)
        }
        self.env.update((trigger, passed.pop(trigger).array) for trigger in barrier.triggers)
        if barrier.is_of_group:
            self.behind = dict(passed)
        for key, array in zip(barrier.copies, arrays[len(members) :], strict=False):
            self.copies[key] = self._constrain(key[0], array, key[2])
        return _PastBarrier(passed, arrays[len(members) + len(copies) :])

    def _expanded(self, unit: Unit) -> dict[int, Any]:
        """Returns the scalar of each large constant that the unit's root reads, by equation."""
        scalar_of = {}
        for index in large_constants(self._graph, unit):
            equation = self._program.equations[index]
            dtype = self._program.values[equation.outputs[0]].dtype
            scalar_of[index] = jnp.asarray(equation.expanded, dtype)
        return scalar_of

    def _operands(self, unit: Unit, passed: _PastBarrier, *, is_again: bool) -> dict[int, Any]:
        """Returns a unit's operands, by value index, in the layouts that its strategy expects."""
        begun = {value: self.begun.pop(value) for value in unit.reads if value in self.begun}
        groups = (self.read_with[value] for value in unit.reads if value in self.read_with)
        reduced = {} if is_again else self._reduced_again(unit, passed)
        values = ChainMap(reduced, passed.values, begun, self.behind, *groups)
        arrays = {
            read: self._element_of(read, values.get(read) or self._lookup(read))
            for read in unit.reads
        }
        local = {}
        for number in range(len(unit.rule.reads)):
            copy = value, _, wanted = self._execution.copy_of(unit, number)
            if value in local and wanted == self._layouts[value]:
                continue
            if OperandRead(unit.index, number, is_again) not in self._execution.kept_copies:
                moved = self._execution.moved_value(unit, value)
                self.copies[copy] = self._resharded_operand(moved, arrays[value], wanted)
            local[value] = self._widened(value, self.copies[copy])
        return arrays | local

    def _reduced_again(self, unit: Unit, passed: _PastBarrier) -> dict[int, _Array]:
        """Returns the rows behind a barrier and their reductions that a unit repeats for itself, by
        value index."""
        reductions: dict[int, _Array] = {}
        for reduced in self._context.reduced_again.get(unit.index, ()):
            reductions[reduced.rows] = passed.values.get(reduced.rows) or self._rows_apart(
                reduced.rows
            )
            for reduction in (self._graph.units[k] for k in reduced.units):
                (output,) = reduction.outputs
                read = {
                    value: self._element_of(value, reductions.get(value) or self._lookup(value))
                    for value in reduction.reads
                }
                array = self._constrain(
                    output, self._evaluated(reduction, read)[output], self._layouts[output]
                )
                reductions[output] = _Array(array, self._depth_of(output))
        return reductions

    def _rows_apart(self, rows: int) -> _Array:
        """Returns rows behind a barrier of their own, the same array for all units that reduce
        them."""
        if rows not in self.rows:
            self.rows[rows] = self._behind_barrier(Barrier((rows,)), ()).values[rows]
        return self.rows[rows]

    def _resharded_operand(self, moved: Value, array: Any, wanted: TensorSharding) -> Any:
        """Returns an operand in the layout that a unit expects. A resharded operand has the dtype
        of `moved`, which may be narrower."""
        stored = self._layouts[moved.index]
        if wanted != stored and moved != self._program.values[moved.index]:
            array = lax.convert_element_type(array, moved.dtype)
        return self._reshard(moved.index, array, stored, wanted, moved)

    def _widened(self, value: int, array: Any) -> Any:
        """Returns a copy in the dtype of the value, if it was narrowed before the move. XLA drops
        both conversions if the value was rounded anyway."""
        dtype = self._program.values[value].dtype
        return array if array.dtype == dtype else lax.convert_element_type(array, dtype)

    def _reshard(
        self,
        value: int,
        array: Any,
        source: TensorSharding,
        target: TensorSharding,
        moved: Value | None = None,
    ) -> Any:
        """Returns an array resharded from one layout to another, move by move along the priced
        chain. Without the waypoints, XLA may gather the whole tensor.

        A stacked value in host memory that a loop slices in another layout is fetched first.

        - `moved`: the value as it was priced; by default the value itself.
        """
        if source == target:
            return array
        table = self._execution.resharding_table(moved or self._program.values[value])
        with jax.named_scope(RESHARD_SCOPE):
            if self._program.is_on_host(value):
                array = self._moved(array, source, "device")
            for waypoint in (*table.waypoints(source, target), target):
                array = self._constrain(value, array, waypoint)
        return array

    def _moved(self, array: Any, sharding: TensorSharding, memory_kind: str) -> Any:
        """Returns an array copied to a memory kind, in a layout."""
        spec = self._execution.mesh.partition_spec(sharding)
        wanted = jax.sharding.NamedSharding(self._context.jax_mesh, spec, memory_kind=memory_kind)
        return jax.device_put(array, wanted)

    def _constrain_stacked(self, value: int, array: Any, depth: int) -> Any:
        """Returns a value constrained to its layout, as an interpreter inside `depth` scans holds
        it."""
        return self._constrain(value, array, self._layouts[value], self._depth_of(value) - depth)

    def _constrain(self, value: int, array: Any, sharding: TensorSharding, stacked: int = 0) -> Any:
        """Returns a value constrained to a sharding. `stacked`: the number of leading dimensions
        for iterations, which are not sharded."""
        info = self._program.values[value]
        if info.is_extended or self._execution.mesh.size == 1 or not (info.shape or stacked):
            return array
        if jax.typeof(array).memory_space is jax.memory.Space.Host:
            return array  # The constraint would be an operator on the device.
        spec = self._execution.mesh.partition_spec(sharding)
        spec = jax.sharding.PartitionSpec(*[None] * stacked, *spec)
        return jax.lax.with_sharding_constraint(
            array, jax.sharding.NamedSharding(self._context.jax_mesh, spec)
        )
