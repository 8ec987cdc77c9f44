"""Emission: an `Execution` as a JAX function, by interpreting the traced equations.

Each unit is evaluated from materialised values. Its results are constrained to their layouts,
and its operands where it expects another layout than the stored one.

**Barriers.** Whatever is computed a second time behind the forward pass starts from values
that went through one `optimization_barrier`, together with a value that only the backward
pass yields (the trigger). XLA can then neither merge the second computation with the first
nor move it forward. There is one barrier for each group:

(a) the units that the schedule recomputes at one point, on the kept values they start from;
(b) a backward unit, on all that it reads of arguments and of the forward pass. XLA then keeps
    just the values that the plan keeps; it cannot keep something derived from them instead
    (an absorbed equation, another layout, a gathered parameter) because it happens to occur
    in both passes;
(c) an update that overwrites a donated argument, on the argument, tied to what its other late
    readers yield. XLA's copy insertion knows only the order that data dependencies imply,
    and would copy the argument at the start of the step.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from kiwi.hlo.graph import Phase
from kiwi.hlo.program import Literal
from kiwi.hlo.units import Unit
from kiwi.mesh import ReshardingTable, TensorSharding
from kiwi.plan.execution import Execution, is_late
from kiwi.plan.scopes import RESHARD_SCOPE, scope_name


def emit(execution: Execution) -> Callable[..., list[Any]]:
    """A function of the flat arguments that returns the flat results.

    Its sharding constraints name the axes of an abstract mesh, so it can be traced without
    devices.
    """

    def planned_step(*arguments: Any) -> list[Any]:
        return _Interpreter(execution).run(arguments)

    return planned_step


class _Interpreter:
    """One evaluation. `self._env` maps a value index to its latest computation."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._units = execution.units.units
        self._program = execution.units.graph.program
        self._mesh = execution.mesh.abstract_mesh()
        self._env: dict[int, Any] = {}

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        self._env.update(zip(self._program.arguments, arguments, strict=True))
        self._env.update(self._program.constants)
        for group, index in _grouped(self._execution.schedule.steps):
            if group:
                self._recompute(group, self._units[index])
            self._compute(self._units[index])
        shardings = self._execution.result_shardings
        return [
            self._result(result, sharding)
            for result, sharding in zip(self._program.results, shardings, strict=True)
        ]

    def _result(self, result: int | Literal, sharding: TensorSharding | None) -> Any:
        if isinstance(result, Literal):
            return result.value
        array = self._env[result]
        if sharding is None or sharding == self._execution.layouts[result]:
            return array
        return self._reshard(result, array, self._execution.layouts[result], sharding)

    def _compute(self, unit: Unit) -> None:
        with jax.named_scope(scope_name(unit.index)):
            if not is_late(self._execution.units, unit.index):
                self._evaluate(unit, self._env)
                return
            starts = self._earlier_reads(unit)
            fenced = self._behind_barrier(starts, self._triggers(unit, exclude=starts))
            fenced.update(self._overwritten_arguments(unit))
            self._evaluate(unit, self._env | fenced)

    def _recompute(self, group: Sequence[int], reader: Unit) -> None:
        """Case (a)."""
        members = [self._units[u] for u in group]
        produced = {o for unit in members for o in unit.outputs}
        starts = {v for unit in members for v in unit.reads} - produced
        with jax.named_scope(scope_name(reader.index)):
            local = self._behind_barrier(starts, self._triggers(reader, exclude=starts | produced))
        for unit in members:
            with jax.named_scope(scope_name(unit.index, again=True)):
                self._evaluate(unit, self._env | local)
            local.update((o, self._env[o]) for o in unit.outputs)

    def _earlier_reads(self, unit: Unit) -> set[int]:
        """Case (b): what a backward unit reads of arguments and the forward pass."""
        if unit.phase is not Phase.BACKWARD:
            return set()
        return {v for v in unit.reads if not self._is_late_value(v)}

    def _overwritten_arguments(self, unit: Unit) -> dict[int, Any]:
        """Case (c)."""
        units = self._execution.units
        fenced = {}
        for output in unit.outputs:
            argument = units.aliased_results.get(output)
            if argument not in unit.reads:
                continue
            others = (r for r in units.readers[argument] if r < unit.index)
            after = {o for r in others if self._ran_late(r) for o in units.units[r].outputs}
            fenced.update(self._behind_barrier({argument}, after - set(unit.reads)))
        return fenced

    def _ran_late(self, unit: int) -> bool:
        return is_late(self._execution.units, unit) or unit in self._execution.recomputed

    def _is_late_value(self, value: int) -> bool:
        producer = self._execution.units.producer.get(value)
        return producer is not None and is_late(self._execution.units, producer)

    def _triggers(self, reader: Unit, exclude: set[int]) -> set[int]:
        """The latest late value that `reader` needs anyway; before the first, the latest."""
        producer = self._execution.units.producer
        candidates = [v for v in reader.reads if v in producer and v not in exclude]
        candidates.sort(key=lambda v: (self._is_late_value(v), producer[v]))
        return set(candidates[-1:])

    def _behind_barrier(self, values: Collection[int], triggers: Collection[int]) -> dict[int, Any]:
        """`values` behind one barrier with `triggers`.

        The triggers are read behind the barrier from here on: XLA drops the elements of a
        barrier that nothing reads, and with them the tie. Behind it each value is constrained
        to its layout, otherwise the partitioner moves the readers' resharding in front of it.
        """
        if not values:
            return {}
        members = [*sorted(values), *sorted(triggers)]
        arrays = jax.lax.optimization_barrier(tuple(self._env[v] for v in members))
        layouts = self._execution.layouts
        fenced = {
            v: self._constrain(v, array, layouts[v])
            for v, array in zip(members, arrays, strict=True)
        }
        self._env.update((t, fenced.pop(t)) for t in sorted(triggers))
        return fenced

    def _evaluate(self, unit: Unit, env: dict[int, Any]) -> None:
        """Evaluates a unit's equations on `env`; its results go to `self._env`."""
        local = self._operands(unit, env)
        for index in unit.equations:
            equation = self._program.equations[index]
            outputs = equation.apply(local.__getitem__)
            local.update(zip(equation.outputs, outputs, strict=True))
        for output in unit.outputs:
            layout = self._execution.layouts[output]
            self._env[output] = self._constrain(output, local[output], layout)

    def _operands(self, unit: Unit, env: dict[int, Any]) -> dict[int, Any]:
        local = {}
        for (value, _), wanted in zip(
            unit.rule.reads, self._execution.reads[unit.index], strict=True
        ):
            if value in local and wanted == self._execution.layouts[value]:
                continue
            local[value] = env[value]
            local[value] = self._reshard(value, env[value], self._execution.layouts[value], wanted)
        for value in unit.reads:
            local.setdefault(value, env[value])
        return local

    def _reshard(
        self, value: int, array: Any, source: TensorSharding, target: TensorSharding
    ) -> Any:
        """Step by step along the priced chain; left alone, XLA may gather the whole tensor."""
        if source == target:
            return array
        info = self._program.values[value]
        table = ReshardingTable(self._execution.mesh, info.shape, info.itemsize)
        with jax.named_scope(RESHARD_SCOPE):
            for waypoint in (*table.waypoints(source, target), target):
                array = self._constrain(value, array, waypoint)
        return array

    def _constrain(self, value: int, array: Any, sharding: TensorSharding) -> Any:
        info = self._program.values[value]
        if info.is_extended or not info.shape or self._execution.mesh.size == 1:
            return array
        spec = self._execution.mesh.partition_spec(sharding)
        return jax.lax.with_sharding_constraint(array, jax.sharding.NamedSharding(self._mesh, spec))


def _grouped(steps: Sequence[int]) -> list[tuple[list[int], int]]:
    """Splits a schedule into (recomputed units, first computation behind them)."""
    seen: set[int] = set()
    group: list[int] = []
    found = []
    for step in steps:
        if step in seen:
            group.append(step)
        else:
            seen.add(step)
            found.append((group, step))
            group = []
    return found
