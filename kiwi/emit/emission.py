"""Emission: an `Execution` becomes a JAX function that interprets the traced equations.

Sharding constraints pin the results of each unit to their layouts, and its operands where the unit
expects another layout than the stored one.

**Barriers** (`kiwi.emit.barriers`). Without them XLA would merge a recomputation with the first
computation, keep a value that it derives from a kept one (an absorbed equation, another layout, a
gathered parameter), or copy a donated argument that an update overwrites while the argument has
other readers.

**Loops.** The body of an opened scan runs in a `jax.lax.scan`. The scan carries a buffer for each
value that is read outside of the loop; the body reads values of other loops, and stacked operands,
at the number of its iteration. A `while` runs in a `jax.lax.while_loop`. A conditional runs in a
`jax.lax.switch`, which yields its results and the values of a branch that are read elsewhere.

**Names.** Each unit has a name scope (`kiwi.xla.read.name_scopes`), which the metadata of every
instruction of the compiled program contains.
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
