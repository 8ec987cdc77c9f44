"""The planner "xla": the program as it is, with the shardings that XLA chooses.

XLA fills in open shardings by Shardy's propagation, on a program that it has simplified before. So
the shardings come from XLA itself: the program is compiled for virtual CPU devices, with each
equation in a name scope of its own, and XLA's text after Shardy shows the sharding of each value.
To return the values as results of the program would be simpler, but further readers of a value
change its propagated sharding.
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
    """Fixes all values to the shardings that XLA propagates, and chooses only the strategies with
    which operators yield them."""

    opens_loops: ClassVar[bool] = True

    def fix(self, fixed: Fixed, step: StepToPlan, budget_bytes: int, settings: Settings) -> Fixed:
        """Returns the restrictions with the propagated sharding of every value."""
        return replace(fixed, values=propagated(step.units.graph, settings.mesh, fixed))


def propagated(graph: HloGraph, mesh: DeviceMesh, fixed: Fixed) -> dict[int, TensorSharding]:
    """Returns, by value index, the shardings that XLA propagates from the ones in `fixed`, and the
    shardings of the results of each `shard_map`.

    A result that replaces an argument is constrained to the argument's sharding, as by a caller who
    feeds the state back. Values that would be sharded unevenly are left out.

    **Raises:** `CompileCheckError` if XLA refuses the program.
    """
    program = graph.program
    arguments = {
        argument: mesh.partition_spec(sharding) for argument, sharding in fixed.arguments.items()
    }
    results: dict[int, PartitionSpec] = {}
    for position, value in enumerate(program.results):
        wanted = fixed.results.get(position)
        if wanted is None and position in fixed.carried:
            wanted = fixed.arguments.get(fixed.carried[position])
        if wanted is not None and isinstance(value, int) and value not in program.arguments:
            results.setdefault(value, mesh.partition_spec(wanted))
    known = _KNOWN.setdefault(graph, {})
    # The propagated shardings do not depend on the hardware or the budget.
    key = mesh.shape, mesh.axis_names, tuple(arguments.items()), tuple(results.items())
    if key not in known:
        known[key] = propagated_shardings(graph, mesh, arguments, results)
    shardings = dict(known[key])
    for equation in program.equations:
        layouts = manual_layouts(program, equation, mesh) or {}
        shardings.update(
            (output, layouts[output]) for output in equation.outputs if output in layouts
        )
    return {
        value: sharding
        for value, sharding in shardings.items()
        if sharding.divides(program.values[value].shape, mesh.shape)
    }


_KNOWN: WeakKeyDictionary[HloGraph, dict[Any, dict[int, TensorSharding]]] = WeakKeyDictionary()
"""The propagated shardings of each program in use, by mesh and given shardings."""


def propagated_shardings(
    graph: HloGraph,
    mesh: DeviceMesh,
    arguments: Mapping[int, PartitionSpec],
    results: Mapping[int, PartitionSpec],
) -> dict[int, TensorSharding]:
    """Returns the shardings that XLA propagates to a program's values, by value index.

    Three kinds of values are left out: values whose sharding cannot be expressed in axes of the
    mesh; values that XLA simplifies away; and the results of equations with several results, unless
    the equation is a kernel. XLA's text does not distinguish several results.

    - `arguments`: the shardings of arguments and constants, by value index. A missing sharding is
      open.
    - `results`: the wanted shardings of results, by value index. A missing sharding is open.

    **Raises:** `CompileCheckError` if XLA refuses the program.
    """
    program = graph.program
    inputs = [*program.arguments, *program.constants]
    outputs = sorted(program.result_values)

    def function(*arrays: Any) -> list[Any]:
        env = evaluate_as_written(graph, dict(zip(inputs, arrays, strict=True)))
        return [env[output] for output in outputs]

    step = Step(
        function,
        [program.values[value].shape_dtype for value in inputs],
        mesh,
        [arguments.get(value) for value in inputs],
        [results.get(output) for output in outputs],
        donated=(),
    )
    shardings: dict[int, TensorSharding] = {}
    for instruction in instructions(propagated_text_on_cpu(step)):
        sharding = tensor_sharding(instruction.sharding, len(instruction.shape), mesh)
        if sharding is not None:
            # The last instruction of a scope yields the equation's result.
            shardings.update(dict.fromkeys(_values_of(program, inputs, instruction), sharding))
    return shardings | dict(_of_carries(program, shardings))


def _of_carries(
    program: Program, found: Mapping[int, TensorSharding]
) -> Iterator[tuple[int, TensorSharding]]:
    """Yields loop carries and their shardings. XLA gives the start value, the end value and the
    final value of a carry the same sharding, and has an instruction only for the end value."""
    carries = (carry for loop in program.loops for carry in loop.carries)
    pairs = [(carry.current, carry.next) for carry in carries]
    following = dict(pairs)
    results = [
        (equation.outputs[0], equation.reads[0])
        for equation in program.equations
        if equation.name == RESULT
    ]
    pairs += [(value, following.get(carry_value, carry_value)) for value, carry_value in results]
    for value, handed_on in pairs:
        if isinstance(handed_on, int) and handed_on in found:
            yield value, found[handed_on]


def _values_of(
    program: Program, inputs: Sequence[int], instruction: ShardedInstruction
) -> tuple[int, ...]:
    """Returns the values of the equation in whose scope an instruction is, if they have the
    instruction's shape. Results of a kernel with equal shapes are assumed to have equal shardings.

    - `inputs`: the program's inputs, to which parameters belong.
    """
    if instruction.opcode == "parameter":
        return () if instruction.position is None else (inputs[instruction.position],)
    scope = scope_of(instruction.op_name)
    equation = None if scope is None else program.equations[scope.unit]
    if equation is None or (len(equation.outputs) > 1 and not equation.is_kernel):
        return ()
    return tuple(
        output for output in equation.outputs if program.values[output].shape == instruction.shape
    )
