"""A program as it is written: each equation in a name scope of its own, in the layouts that XLA
gives it.

To the interpreter it is a plan without decisions for one device, in which every equation is a unit.
Nothing is resharded, constrained or recomputed.
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
    """All values outside of loops, by index, from those of arguments and constants.

    Equation 12 has the name scope of unit 12 (`kiwi.xla.read.name_scopes`).
    """
    units = regroup(graph, range(len(graph.program.equations)))
    mesh, steps = DeviceMesh.create((1,), "cpu"), tuple(_order(graph.program))
    layouts = {v.index: TensorSharding(((),) * len(v.shape)) for v in graph.program.values}
    reads = tuple(tuple(layouts[v] for v, _ in unit.rule.reads) for unit in units.units)
    results = (None,) * len(graph.program.results)
    # Nothing is planned: no rule has to state anything of the kernels.
    kernels = KernelGraph.plain(units, mesh.hardware, CPU.facts(mesh.hardware))
    execution = Execution(kernels, mesh, Schedule(steps), (), results, layouts, reads)
    barriers = Barriers((Barrier(),) * len(steps), {})
    body, flow = loop_bodies(units, steps), dataflow(units, steps)
    interpreter = _AsWritten(Context(execution, body, barriers, flow, mesh.abstract_mesh()), body)
    interpreter.env.update(inputs)
    interpreter.run()
    return interpreter.env


def _order(program: Program) -> Iterator[int]:
    """The equations in order, with those of each loop together at the place of its last one.
    Between them are constants and readers of the loop's results."""
    around = program.loops_around
    last = {loop: e.index for e in program.equations for loop in around(e.loop)}

    def place(equation: int) -> list[float]:
        own = program.equations[equation]
        taken = own.jaxpr_eqn.params["loop"] if own.name in EXITS else None
        behind = -1.0 if taken is None else last[taken] + 0.5
        return [*(last[loop] for loop in around(own.loop)), max(equation, behind)]

    yield from sorted(range(len(program.equations)), key=place)


def _constrained(array: Any, constraint: Any) -> Any:
    """An array under a traced constraint. Its mesh may be of devices that compile nothing here."""
    given = constraint.params["sharding"]
    anywhere = NamedSharding(given.mesh.abstract_mesh, given.spec)
    return constraint.primitive.bind(array, **{**constraint.params, "sharding": anywhere})


class _AsWritten(Interpreter):
    def _evaluate(self, step: ScheduledUnit) -> None:
        super()._evaluate(step)
        unit = self._graph.units[step.unit]
        if self._graph.border(unit) == SLICE:
            (element,) = unit.outputs
            self.env[element] = self._element_of(element, self._lookup(element))

    def _computed(self, unit: Unit, barrier: Barrier, *, is_again: bool = False) -> dict[int, Any]:
        found = super()._computed(unit, barrier, is_again=is_again)
        for output in unit.outputs:
            constraint = self._program.constraints.get(output)
            if constraint is not None:
                found[output] = _constrained(found[output], constraint)
        return found

    def _stands_apart(self, equation: Equation) -> bool:
        """Also a `shard_map` that calls a kernel, which XLA:CPU could not lower."""
        return equation.is_unlowered  # Batches are XLA's to partition here.

    def _unlowered(self, unit: Unit, equation: Equation, local: dict[int, Any]) -> list[Any]:
        """A stand-in for a kernel that cannot be lowered, laid out as the kernel's sharding rule
        says."""
        return stand_in(equation, local.__getitem__)

    def _moved(
        self, array: Any, sharding: TensorSharding, memory_kind: str, *, is_stacked: bool = False
    ) -> Any:
        """XLA:CPU, which is asked for layouts, has one memory."""
        return lax.optimization_barrier(array)
