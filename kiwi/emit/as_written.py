"""The evaluation of a program as the user wrote it, with each equation in a name scope of its own.

For the interpreter the program is a plan for one device in which every equation is a unit. Kiwi
reshards nothing, recomputes nothing and adds no sharding constraint. Constraints that the user
wrote are applied. XLA chooses all other layouts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jax import lax
from jax.sharding import NamedSharding

from kiwi.emit.barriers import Barrier, Barriers
from kiwi.emit.context import Context
from kiwi.emit.execution import Execution
from kiwi.emit.interpreter import Interpreter
from kiwi.emit.kernels import stand_in
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.grouping import regroup
from kiwi.hlo.loops import EXITS, SLICE
from kiwi.hlo.program import Equation, Program
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.memory.loop_bodies import ScheduledUnit, dataflow, loop_bodies
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.solver.schedule import Schedule
from kiwi.targets.cpu import CPU


def evaluate_as_written(graph: HloGraph, inputs: Mapping[int, Any]) -> dict[int, Any]:
    """Evaluates a program; returns the arrays of all values outside of loops, by value index.

    Equation 12 has the name scope of unit 12 (`kiwi.xla.read.name_scopes`).

    - `inputs`: the arrays of arguments and constants, by value index.
    """
    units = regroup(graph, range(len(graph.program.equations)))
    mesh, steps = DeviceMesh.create((1,), "cpu"), tuple(_order(graph.program))
    layouts = {
        value.index: TensorSharding(((),) * len(value.shape)) for value in graph.program.values
    }
    reads = tuple(tuple(layouts[value] for value, _ in unit.rule.reads) for unit in units.units)
    results = (None,) * len(graph.program.results)
    # Nothing is planned, so no rule of the target has to state facts about kernels.
    kernels = KernelGraph.plain(units, mesh.hardware, CPU.facts(mesh.hardware))
    execution = Execution(kernels, mesh, Schedule(steps), (), results, layouts, reads)
    barriers = Barriers((Barrier(),) * len(steps), {})
    body, flow = loop_bodies(units, steps), dataflow(units, steps)
    interpreter = _AsWritten(Context(execution, body, barriers, flow, mesh.abstract_mesh()), body)
    interpreter.env.update(inputs)
    interpreter.run()
    return interpreter.env


def _order(program: Program) -> Iterator[int]:
    """Yields the indices of the equations in an order in which each loop is contiguous: all
    equations of a loop stand where its last one does. In the program, constants and readers of the
    loop's results may stand between them."""
    around = program.loops_around
    last = {loop: member.index for member in program.equations for loop in around(member.loop)}

    def place(equation: int) -> list[float]:
        placed = program.equations[equation]
        taken = placed.jaxpr_eqn.params["loop"] if placed.name in EXITS else None
        behind = -1.0 if taken is None else last[taken] + 0.5
        return [*(last[loop] for loop in around(placed.loop)), max(equation, behind)]

    yield from sorted(range(len(program.equations)), key=place)


def _constrained(array: Any, constraint: Any) -> Any:
    """Returns an array under a constraint of the program, over the constraint's abstract mesh: the
    devices of the mesh itself may not be the ones that the program is compiled for."""
    traced_sharding = constraint.params["sharding"]
    abstract_sharding = NamedSharding(traced_sharding.mesh.abstract_mesh, traced_sharding.spec)
    return constraint.primitive.bind(array, **{**constraint.params, "sharding": abstract_sharding})


class _AsWritten(Interpreter):
    """The interpreter of a program as it is written."""

    def _evaluate(self, step: ScheduledUnit) -> None:
        super()._evaluate(step)
        unit = self._graph.units[step.unit]
        if self._graph.border(unit) == SLICE:
            (element,) = unit.outputs
            self.env[element] = self._element_of(element, self._lookup(element))

    def _computed(self, unit: Unit, barrier: Barrier, *, is_again: bool = False) -> dict[int, Any]:
        arrays = super()._computed(unit, barrier, is_again=is_again)
        for output in unit.outputs:
            constraint = self._program.constraints.get(output)
            if constraint is not None:
                arrays[output] = _constrained(arrays[output], constraint)
        return arrays

    def _stands_apart(self, equation: Equation) -> bool:
        """Whether an equation cannot be lowered for XLA:CPU. A `shard_map` that calls a kernel is
        included. Equations with batch dimensions are not: here XLA partitions them."""
        return equation.is_unlowered

    def _unlowered(self, unit: Unit, equation: Equation, local: dict[int, Any]) -> list[Any]:
        """Returns the results of a stand-in for a kernel that cannot be lowered. XLA propagates
        shardings through the stand-in as the kernel's sharding rule says."""
        return stand_in(equation, local.__getitem__)

    def _moved(
        self, array: Any, sharding: TensorSharding, memory_kind: str, *, is_stacked: bool = False
    ) -> Any:
        """Returns the array behind a barrier, since XLA:CPU has no host memory to move it to."""
        return lax.optimization_barrier(array)
