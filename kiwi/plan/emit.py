"""Emission: an `Execution` as a JAX function, by interpreting the traced equations.

Each unit is evaluated from materialised values. Its results are constrained to their layouts,
and its operands where it expects another layout than the stored one.

**Barriers.** Each step of the schedule reads what is older than its neighbours through a barrier
(`kiwi.plan.fences`). That keeps XLA to the plan's order; it can neither merge a second computation
with the first, nor keep something derived from the kept values instead of them (an absorbed
equation, another layout, a gathered parameter), nor copy a donated argument that an update
overwrites because it does not see that the argument's other readers are done.

**Names.** Each unit is evaluated in a name scope of its own (`kiwi.plan.scopes`), which every
instruction of the compiled program carries in its metadata.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp

from kiwi.hlo.fusion import is_map
from kiwi.hlo.program import Literal
from kiwi.hlo.units import Unit
from kiwi.mesh import TensorSharding
from kiwi.plan.execution import Execution
from kiwi.plan.fences import Fence, fences
from kiwi.plan.scopes import RESHARD_SCOPE, scope_name
from kiwi.strategy.edges import resharding_table

LARGE_FILL_BYTES = 2**20
"""Constants from this size on are computed where they are used."""


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
        steps = self._execution.schedule.steps
        seen: set[int] = set()
        for index, fence in zip(steps, fences(self._execution), strict=True):
            with jax.named_scope(scope_name(index, again=index in seen)):
                self._step(self._units[index], fence)
            seen.add(index)
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

    def _step(self, unit: Unit, fence: Fence) -> None:
        """Computes a unit from values behind its fence."""
        fills = self._large_fills(unit) if fence.values else {}
        fenced, scalars = self._behind_barrier(fence, list(fills.values()))
        self._evaluate(unit, self._env | fenced, dict(zip(fills, scalars, strict=True)))

    def _behind_barrier(
        self, fence: Fence, scalars: Sequence[Any]
    ) -> tuple[dict[int, Any], Sequence[Any]]:
        """The fence's values, and scalars, behind one barrier with its triggers.

        Behind it each value is constrained to its layout, otherwise the partitioner moves the
        readers' resharding in front of it.
        """
        if not fence.values:
            return {}, scalars
        members = [*fence.values, *fence.triggers]
        arrays = jax.lax.optimization_barrier((*(self._env[v] for v in members), *scalars))
        layouts = self._execution.layouts
        fenced = {
            v: self._constrain(v, array, layouts[v])
            for v, array in zip(members, arrays[: len(members)], strict=True)
        }
        self._env.update((t, fenced.pop(t)) for t in fence.triggers)
        return fenced, arrays[len(members) :]

    def _large_fills(self, unit: Unit) -> dict[int, Any]:
        """Equation → scalar, for large constants that the unit's last operator starts from.

        XLA schedules what depends on nothing at the start of the step and holds it from then
        on: the zeros that a scatter adds to, as large as the gradient of an embedding.
        """
        if is_map(self._execution.units.graph, unit.root):
            return {}
        found = {}
        for index in unit.equations[:-1]:
            equation = self._program.equations[index]
            value = self._program.values[equation.outputs[0]]
            if equation.filled_with is not None and value.size_bytes >= LARGE_FILL_BYTES:
                found[index] = jnp.asarray(equation.filled_with, value.dtype)
        return found

    def _evaluate(self, unit: Unit, env: dict[int, Any], fills: dict[int, Any]) -> None:
        """Evaluates a unit's equations on `env`; its results go to `self._env`.

        `fills` gives the scalar of those equations that only repeat one.
        """
        local = self._operands(unit, env)
        for index in unit.equations:
            equation = self._program.equations[index]
            if index in fills:
                shape = self._program.values[equation.outputs[0]].shape
                outputs = [jax.lax.broadcast(fills[index], shape)]
            else:
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
        table = resharding_table(self._execution.mesh, info)
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
