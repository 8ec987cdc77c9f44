"""Dispatch: a plan behind one `jax.jit` of the caller's own arguments.

`jax.jit` finds the program of arguments that it knows in C++, so that a planned call costs what an
unplanned one does. The function is traced for the planned signature alone: for another one its
tracing raises `OtherSignature`, and `jax.jit` itself refuses arguments that are committed to other
places than the plan's. Then the caller looks for the right plan, or moves the arguments.
"""

from collections.abc import Sequence
from typing import Any

import jax

from kiwi.calls.signature import Arguments, Call
from kiwi.plans.record import PlanRecord, place_leaves
from kiwi.xla.compilers import of_platform


class OtherSignature(Exception):
    """The arguments are not those that were planned for."""


REFUSED = (OtherSignature, ValueError, TypeError)
"""Raised by `Dispatched.run` before anything has run."""


class Dispatched:
    """A plan on concrete devices, for calls of one signature.

    Keyword arguments are passed by position, behind the positional ones: `jax.jit` takes no
    shardings of others.
    """

    def __init__(
        self, plan: PlanRecord, call: Call, mesh: jax.sharding.Mesh, arguments: Arguments
    ) -> None:
        self._shardings = plan.leaf_shardings(mesh)
        in_shardings, named = arguments.put_together(self._shardings)
        self._names = tuple(named)
        first, options = len(in_shardings), call.options
        static = self._positions(first, options.static_argnums, options.static_argnames)
        donated = self._positions(first, options.donate_argnums, options.donate_argnames)
        in_shardings += named.values()
        compiler = of_platform(mesh.devices.flat[0].platform)
        step, out_tree = plan.step_for(compiler), plan.trees.out_tree

        def planned_step(*args: Any) -> Any:
            given = dict(zip(self._names, args[first:], strict=True))
            found = Arguments.of(call.function, options, args[:first], given)
            if found.key != arguments.key:
                raise OtherSignature
            return jax.tree.unflatten(out_tree, step.function(*found.leaves))

        self._jitted = jax.jit(
            planned_step,
            static_argnums=static,
            donate_argnums=donated,
            in_shardings=tuple(s for k, s in enumerate(in_shardings) if k not in static),
            out_shardings=jax.tree.unflatten(out_tree, step.result_shardings(mesh)),
            keep_unused=True,
            compiler_options=dict(compiler.run_options),
        )

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the plan. **Raises:** one of `REFUSED` if it is not for these arguments."""
        if not self._names and not kwargs:
            return self._jitted(*args)
        if len(kwargs) != len(self._names) or not kwargs.keys() >= set(self._names):
            raise OtherSignature
        return self._jitted(*args, *(kwargs[name] for name in self._names))

    def move_and_run(self, arguments: Arguments) -> Any:
        """Moves arguments of the planned signature to where the plan wants them, and runs it."""
        args, kwargs = arguments.put_together(place_leaves(arguments.leaves, self._shardings))
        return self.run(*args, **kwargs)

    def _positions(
        self, first: int, numbers: Sequence[int], names: Sequence[str]
    ) -> tuple[int, ...]:
        """Positions of arguments that are given by number or by name."""
        named = (first + k for k, name in enumerate(self._names) if name in names)
        return (*(n for n in numbers if n < first), *named)
