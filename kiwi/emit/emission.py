"""Emission: an `Execution` becomes a JAX function that interprets the traced equations.

Each unit is evaluated from materialised values. Its results are constrained to their layouts,
and its operands where it expects another layout than the stored one.

**Barriers.** Each step of the schedule reads what is older than its neighbours through a barrier
(`kiwi.emit.barriers`). That keeps XLA to the plan's order; it can neither merge a second
computation with the first, nor keep something derived from the kept values instead of them (an
absorbed equation, another layout, a gathered parameter), nor copy a donated argument that an update
overwrites because it does not see that the argument's other readers are done.

**Loops.** The body of an opened loop is interpreted in a `jax.lax.scan` of its own. What others
read of its iterations is stacked in buffers that the scan carries along; what the body reads of
other loops, or of stacked operands, it takes by the number of its iteration.

**Names.** Each unit is evaluated in a name scope of its own (`kiwi.xla.name_scopes`), which every
instruction of the compiled program carries in its metadata.
"""

from collections.abc import Callable
from typing import Any

from kiwi.emit.context import Context
from kiwi.emit.execution import Execution
from kiwi.emit.interpreter import Interpreter


def emit(execution: Execution) -> Callable[..., list[Any]]:
    """A function of the flat arguments that returns the flat results.

    Its sharding constraints name the axes of the mesh that the arguments' types name, or of an
    abstract mesh, so it can be traced without devices.
    """
    program = execution.units.graph.program

    def planned_step(*arguments: Any) -> list[Any]:
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
