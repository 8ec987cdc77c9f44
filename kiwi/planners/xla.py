"""The planner "xla": a program as it is, with the shardings that XLA gives its values by itself.

XLA lays out what the caller leaves open by Shardy's propagation from what is given, on a program
that it has simplified before. So XLA itself is asked: the program is compiled for virtual CPU
devices, each equation in a name scope of its own, and XLA's text of it after Shardy says how its
values lie. Asking for the values as results of the program would be simpler, but what else reads a
value changes what Shardy propagates to it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from kiwi.hlo.program import Program
from kiwi.hlo.sharding_constraints import constrained
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.options import Settings
from kiwi.planners.problem_planner import ProblemPlanner
from kiwi.problem.build import Fixed
from kiwi.problem.step import StepToPlan
from kiwi.xla.op_shardings import ShardedInstruction, entry_instructions, tensor_sharding
from kiwi.xla.propagation import propagated_text_on_cpu
from kiwi.xla.step import Step


@dataclass(frozen=True)
class Xla(ProblemPlanner):
    """Decides nothing but what XLA leaves open: how operators yield the propagated shardings."""

    def fix(self, fixed: Fixed, step: StepToPlan, budget_bytes: int, settings: Settings) -> Fixed:
        """Fixes every value's sharding."""
        return replace(fixed, values=propagated(step.program, settings.mesh, fixed))


_SCOPE = re.compile(r"kiwi_equation_(\d+)")


def propagated(program: Program, mesh: DeviceMesh, fixed: Fixed) -> dict[int, TensorSharding]:
    """By value index what XLA propagates from the shardings of `fixed`.

    Results that replace arguments are wanted in those arguments' shardings, as a caller asks for
    who feeds the state back. Values that are cut unevenly are left out.

    **Raises:** `CompileCheckError` if XLA refuses the program.
    """
    arguments = {v: mesh.partition_spec(s) for v, s in fixed.arguments.items()}
    results: dict[int, PartitionSpec] = {}
    for position, value in enumerate(program.results):
        wanted = fixed.results.get(position)
        if wanted is None and position in fixed.carried:
            wanted = fixed.arguments.get(fixed.carried[position])
        if wanted is not None and isinstance(value, int) and value not in program.arguments:
            results.setdefault(value, mesh.partition_spec(wanted))
    found = propagated_shardings(program, mesh, arguments, results)
    return {v: s for v, s in found.items() if s.divides(program.values[v].shape, mesh.shape)}


def propagated_shardings(
    program: Program,
    mesh: DeviceMesh,
    arguments: Mapping[int, PartitionSpec],
    results: Mapping[int, PartitionSpec],
) -> dict[int, TensorSharding]:
    """By value index how the values of a program lie.

    `arguments` gives the shardings of arguments and constants by value index, those left out are
    open; `results` those that are wanted of results, by value index as well. Left out are values
    whose sharding cannot be said in axes of the mesh, those that XLA simplifies away, and results
    of equations of several, which its text does not tell apart.
    """
    inputs = [*program.arguments, *program.constants]
    outputs = sorted(program.result_values)
    step = Step(
        _scoped(program, inputs, outputs),
        [program.values[v].shape_dtype for v in inputs],
        mesh,
        [arguments.get(v) for v in inputs],
        [results.get(v) for v in outputs],
        donated=(),
    )
    found: dict[int, TensorSharding] = {}
    for instruction in entry_instructions(propagated_text_on_cpu(step)):
        value = _value_of(program, inputs, instruction)
        rank = len(instruction.shape)
        lies = None if value is None else tensor_sharding(instruction.sharding, rank, mesh)
        if value is not None and lies is not None:
            found[value] = lies  # the last instruction of a scope yields the equation's result
    return found


def _scoped(
    program: Program, inputs: Sequence[int], outputs: Sequence[int]
) -> Callable[..., list[Any]]:
    """From a program's inputs to some of its values, each equation in its scope."""

    def function(*arrays: Any) -> list[Any]:
        env = dict(zip(inputs, arrays, strict=True))
        for equation in program.equations:
            with jax.named_scope(f"kiwi_equation_{equation.index}"):
                env.update(zip(equation.outputs, equation.apply(env.__getitem__), strict=True))
                for value in program.constraints.keys() & equation.outputs:
                    env[value] = constrained(program.constraints[value], env[value])
        return [env[v] for v in outputs]

    return function


def _value_of(
    program: Program, inputs: Sequence[int], instruction: ShardedInstruction
) -> int | None:
    """The value that an instruction yields, or a step on the way to it."""
    if instruction.opcode == "parameter":
        return None if instruction.position is None else inputs[instruction.position]
    found = _SCOPE.search(instruction.op_name)
    if found is None:
        return None
    outputs = program.equations[int(found[1])].outputs
    is_it = len(outputs) == 1 and program.values[outputs[0]].shape == instruction.shape
    return outputs[0] if is_it else None
