"""The planner "xla": the program as it is, with the shardings that XLA chooses.

XLA fills in open shardings by Shardy's propagation, on a program that it has simplified before. So
XLA itself is asked: the program is compiled for virtual CPU devices, each equation in a name scope
of its own, and XLA's text after Shardy shows the sharding of each value. Returning the values as
results of the program would be simpler, but further readers of a value change what Shardy
propagates to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from jax.sharding import PartitionSpec

from kiwi.emit.as_written import evaluate_as_written
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.loops import RESULT
from kiwi.hlo.program import Program
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.options import Settings
from kiwi.planners.problem_planner import ProblemPlanner
from kiwi.problem.build import Fixed
from kiwi.problem.manual_computations import manual_layouts
from kiwi.problem.step import StepToPlan
from kiwi.xla.cpu.propagation import propagated_text_on_cpu
from kiwi.xla.read.name_scopes import scope_of
from kiwi.xla.read.op_shardings import ShardedInstruction, instructions, tensor_sharding
from kiwi.xla.step import Step


@dataclass(frozen=True)
class Xla(ProblemPlanner):
    """Decides only what XLA leaves open: how operators yield the propagated shardings."""

    opens_loops: ClassVar[bool] = True

    def fix(self, fixed: Fixed, step: StepToPlan, budget_bytes: int, settings: Settings) -> Fixed:
        """Fixes every value's sharding."""
        return replace(fixed, values=propagated(step.units.graph, settings.mesh, fixed))


def propagated(graph: HloGraph, mesh: DeviceMesh, fixed: Fixed) -> dict[int, TensorSharding]:
    """By value index, the shardings that XLA propagates from those of `fixed`, and the sharding of
    each `shard_map`'s results.

    Results that replace arguments are asked to have those arguments' shardings, as a caller who
    feeds the state back would. Values that are cut unevenly are left out.

    **Raises:** `CompileCheckError` if XLA refuses the program.
    """
    program = graph.program
    arguments = {v: mesh.partition_spec(s) for v, s in fixed.arguments.items()}
    results: dict[int, PartitionSpec] = {}
    for position, value in enumerate(program.results):
        wanted = fixed.results.get(position)
        if wanted is None and position in fixed.carried:
            wanted = fixed.arguments.get(fixed.carried[position])
        if wanted is not None and isinstance(value, int) and value not in program.arguments:
            results.setdefault(value, mesh.partition_spec(wanted))
    known = _KNOWN.setdefault(graph, {})
    # XLA propagates the same on all hardware, for all budgets.
    key = mesh.shape, mesh.axis_names, tuple(arguments.items()), tuple(results.items())
    if key not in known:
        known[key] = propagated_shardings(graph, mesh, arguments, results)
    found = dict(known[key])
    for equation in program.equations:
        layouts = manual_layouts(program, equation, mesh) or {}
        found.update((v, layouts[v]) for v in equation.outputs if v in layouts)
    return {v: s for v, s in found.items() if s.divides(program.values[v].shape, mesh.shape)}


_KNOWN: WeakKeyDictionary[HloGraph, dict[Any, dict[int, TensorSharding]]] = WeakKeyDictionary()
"""What was propagated in the programs that are in use, by mesh and given shardings."""


def propagated_shardings(
    graph: HloGraph,
    mesh: DeviceMesh,
    arguments: Mapping[int, PartitionSpec],
    results: Mapping[int, PartitionSpec],
) -> dict[int, TensorSharding]:
    """By value index, the shardings of a program's values.

    - `arguments`: the shardings of arguments and constants, by value index. A missing one is open.
    - `results`: the wanted shardings of results, by value index.

    Three kinds of values are left out: those whose sharding cannot be expressed in axes of the
    mesh, those that XLA simplifies away, and those of equations with several results (other than
    kernels), which XLA's text does not distinguish.
    """
    program = graph.program
    inputs = [*program.arguments, *program.constants]
    outputs = sorted(program.result_values)

    def function(*arrays: Any) -> list[Any]:
        env = evaluate_as_written(graph, dict(zip(inputs, arrays, strict=True)))
        return [env[v] for v in outputs]

    step = Step(
        function,
        [program.values[v].shape_dtype for v in inputs],
        mesh,
        [arguments.get(v) for v in inputs],
        [results.get(v) for v in outputs],
        donated=(),
    )
    found: dict[int, TensorSharding] = {}
    for instruction in instructions(propagated_text_on_cpu(step)):
        lies = tensor_sharding(instruction.sharding, len(instruction.shape), mesh)
        if lies is not None:
            # The last instruction of a scope yields the equation's result.
            found.update(dict.fromkeys(_values_of(program, inputs, instruction), lies))
    return found | dict(_of_carries(program, found))


def _of_carries(
    program: Program, found: Mapping[int, TensorSharding]
) -> Iterator[tuple[int, TensorSharding]]:
    """The shardings of loop carries. XLA gives the start value, the end value and the final value
    of a carry one sharding, and has an instruction only for the end value."""
    carries = (carry for loop in program.loops for carry in loop.carries)
    pairs = [(carry.current, carry.next) for carry in carries]
    following = dict(pairs)
    results = [(e.outputs[0], e.reads[0]) for e in program.equations if e.name == RESULT]
    pairs += [(value, following.get(left, left)) for value, left in results]
    for value, handed_on in pairs:
        if isinstance(handed_on, int) and handed_on in found:
            yield value, found[handed_on]


def _values_of(
    program: Program, inputs: Sequence[int], instruction: ShardedInstruction
) -> tuple[int, ...]:
    """The value that an instruction yields, or that it is a step towards. Results of a kernel with
    equal shapes are assumed to have equal shardings."""
    if instruction.opcode == "parameter":
        return () if instruction.position is None else (inputs[instruction.position],)
    scope = scope_of(instruction.op_name)
    equation = None if scope is None else program.equations[scope.unit]
    if equation is None or (len(equation.outputs) > 1 and not equation.is_kernel):
        return ()
    return tuple(v for v in equation.outputs if program.values[v].shape == instruction.shape)
