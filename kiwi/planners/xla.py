"""The planner "xla": a program as it is, with the shardings that XLA gives its values by itself.

XLA lays out what the caller leaves open by Shardy's propagation from what is given, on a program
that it has simplified before. So XLA itself is asked: the program is compiled for virtual CPU
devices, each equation in a name scope of its own, and XLA's text of it after Shardy says how its
values lie. Asking for the values as results of the program would be simpler, but what else reads a
value changes what Shardy propagates to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
    """Decides nothing but what XLA leaves open: how operators yield the propagated shardings."""

    opens_loops: ClassVar[bool] = True

    def fix(self, fixed: Fixed, step: StepToPlan, budget_bytes: int, settings: Settings) -> Fixed:
        """Fixes every value's sharding."""
        return replace(fixed, values=propagated(step.units.graph, settings.mesh, fixed))


def propagated(graph: HloGraph, mesh: DeviceMesh, fixed: Fixed) -> dict[int, TensorSharding]:
    """By value index what XLA propagates from the shardings of `fixed`, and what each `shard_map`
    says of its results.

    Results that replace arguments are wanted in those arguments' shardings, as a caller asks for
    who feeds the state back. Values that are cut unevenly are left out.

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
    found = propagated_shardings(graph, mesh, arguments, results)
    for equation in program.equations:
        layouts = manual_layouts(program, equation, mesh) or {}
        found.update((v, layouts[v]) for v in equation.outputs if v in layouts)
    return {v: s for v, s in found.items() if s.divides(program.values[v].shape, mesh.shape)}


def propagated_shardings(
    graph: HloGraph,
    mesh: DeviceMesh,
    arguments: Mapping[int, PartitionSpec],
    results: Mapping[int, PartitionSpec],
) -> dict[int, TensorSharding]:
    """By value index how the values of a program lie.

    `arguments` gives the shardings of arguments and constants by value index, those left out are
    open; `results` those that are wanted of results, by value index as well. Left out are values
    whose sharding cannot be said in axes of the mesh, those that XLA simplifies away, and results
    of equations of several, which its text does not tell apart, other than kernels.
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
    """What an iteration starts from and what a loop leaves lie as what an iteration hands on: XLA
    gives one sharding to all three, and has no instruction for the former."""
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
    """The value that an instruction yields, or a step on the way to it. Of the several results of a
    kernel, those of one shape are taken to lie alike."""
    if instruction.opcode == "parameter":
        return () if instruction.position is None else (inputs[instruction.position],)
    scope = scope_of(instruction.op_name)
    equation = None if scope is None else program.equations[scope.unit]
    if equation is None or (len(equation.outputs) > 1 and not equation.is_kernel):
        return ()
    return tuple(v for v in equation.outputs if program.values[v].shape == instruction.shape)
