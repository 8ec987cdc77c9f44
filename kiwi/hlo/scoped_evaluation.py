"""A program as a JAX function, each equation in a name scope of its own.

An opened loop is a `jax.lax.scan` again, as JAX lowers one: what its body reads of a stacked value
is sliced by the number of the iteration, and what other loops read of its body is stacked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from kiwi.hlo.loops import CARRY, RESULT, SLICE, STACK, Loop
from kiwi.hlo.program import Equation, Literal, Program
from kiwi.hlo.sharding_constraints import constrained


def equation_scope(equation: int) -> str:
    """The name scope of an equation."""
    return f"kiwi_equation_{equation}"


def evaluate_scoped(program: Program, inputs: Mapping[int, Any]) -> dict[int, Any]:
    """All values outside of loops, by index, from those of arguments and constants."""
    frame = _Frame(program, None, None, ())
    frame.env.update(inputs)
    frame.run(program.equations)
    return frame.env


class _Frame:
    """One evaluation: of the program, or of one iteration of a loop.

    `env` has a leading dimension for each loop that a value belongs to and the frame is not in;
    `indices` are the numbers of the iterations, outermost first.
    """

    def __init__(
        self,
        program: Program,
        loop: int | None,
        parent: "_Frame | None",
        indices: tuple[Any, ...],
    ) -> None:
        self._program, self._loop, self._parent = program, loop, parent
        self._indices = indices
        self.env: dict[int, Any] = {}

    def run(self, equations: Sequence[Equation]) -> None:
        """Evaluates equations of this loop; those of an inner loop where its last one stands.

        In front of that stand only constants, which nothing of the loop computes, and what takes
        the results of the loop.
        """
        depth, inner = len(self._indices), dict[int, list[Equation]]()
        for equation in equations:
            chain = self._program.loops_around(equation.loop)
            if len(chain) > depth:
                inner.setdefault(chain[depth], []).append(equation)
        last = {body[-1].index: loop for loop, body in inner.items()}
        for equation in equations:
            if equation.loop == self._loop:
                self._evaluate(equation)
            if equation.index in last:
                loop = last[equation.index]
                self._run_loop(self._program.loops[loop], inner[loop])

    def read(self, value: int) -> Any:
        """The value, or the element of it that belongs to this frame's iterations."""
        frame: _Frame | None = self
        while frame is not None and value not in frame.env:
            frame = frame._parent
        whole = self._depth_of(value)
        if frame is not None:
            array, depth = frame.env[value], len(frame._indices)
        else:  # An element of something stacked, first taken by a loop that is over.
            array, depth = self.operand(self._producer(value)), whole - 1
        for index in self._indices[depth:whole]:
            array = lax.dynamic_index_in_dim(array, index, 0, keepdims=False)
        return array

    def _evaluate(self, equation: Equation) -> None:
        with jax.named_scope(equation_scope(equation.index)):
            if equation.name == SLICE:
                stacked, index = self.operand(equation), self._indices[-1]
                found = [lax.dynamic_index_in_dim(stacked, index, 0, keepdims=False)]
            elif equation.is_border:
                return  # The loop provides it.
            else:
                found = equation.apply(self.read)
            for value, array in zip(equation.outputs, found, strict=True):
                constraint = self._program.constraints.get(value)
                self.env[value] = array if constraint is None else constrained(constraint, array)

    def _run_loop(self, loop: Loop, equations: Sequence[Equation]) -> None:
        carries = loop.carries
        all_stacks = [e for e in equations if e.name == STACK and e.loop == loop.index]
        values = self._program.values
        stacks = [e for e in all_stacks if not values[e.outputs[0]].is_extended]
        listed = [e for e in all_stacks if e not in stacks]
        members = self._read_elsewhere(loop.index)

        def body(state: Any, index: Any) -> Any:
            frame = _Frame(self._program, loop.index, self, (*self._indices, index))
            frame.env.update(zip((c.current for c in carries), state[0], strict=True))
            frame.run(equations)
            following = [frame.following(c.current, c.next) for c in carries]
            stacked = [frame.stacked(e, buffer) for e, buffer in zip(stacks, state[1], strict=True)]
            elements = [frame.env[v] for v in members]
            return (following, stacked), [*elements, *(frame.operand(e) for e in listed)]

        state = [self.operand(self._producer(c.current)) for c in carries], self._buffers(stacks)
        numbers = jnp.arange(loop.length)
        (finals, buffers), elements = lax.scan(body, state, numbers, reverse=loop.reverse)
        self.env.update(zip([*members, *(e.outputs[0] for e in listed)], elements, strict=True))
        self.env.update((e.outputs[0], b) for e, b in zip(stacks, buffers, strict=True))
        final_of = dict(zip((c.next for c in carries), finals, strict=True))
        for equation in self._program.equations:
            if equation.name == RESULT and equation.jaxpr_eqn.params["loop"] == loop.index:
                self.env[equation.outputs[0]] = final_of[equation.inputs[0]]

    def following(self, current: int, following: int | Literal) -> Any:
        """What the next iteration starts from."""
        if isinstance(following, Literal):
            return jnp.asarray(following.value, self._program.values[current].dtype)
        return self.read(following)

    def stacked(self, equation: Equation, buffer: Any) -> Any:
        """A stacked result after this iteration."""
        with jax.named_scope(equation_scope(equation.index)):
            element = self.operand(equation)
            return lax.dynamic_update_index_in_dim(buffer, element, self._indices[-1], 0)

    def _buffers(self, stacks: Sequence[Equation]) -> list[Any]:
        values = [self._program.values[e.outputs[0]] for e in stacks]
        return [jnp.zeros(v.shape, v.dtype) for v in values]

    def _read_elsewhere(self, loop: int) -> list[int]:
        """The values of a loop's iterations that equations outside of it read."""
        program, found = self._program, []

        def is_inside(other: int | None) -> bool:
            return loop in program.loops_around(other)

        for value, readers in zip(program.values, program.readers, strict=True):
            if not is_inside(program.loop_of(value.index)):
                continue
            if self._producer(value.index).name == SLICE:
                continue
            equations = [program.equations[r] for r in readers]
            places = [e.loop for e in equations if e.name not in (RESULT, CARRY)]
            places += [e.jaxpr_eqn.params["loop"] for e in equations if e.name == RESULT]
            places += program.next_values.get(value.index, ())
            if not all(map(is_inside, places)):
                found.append(value.index)
        return found

    def operand(self, equation: Equation) -> Any:
        """The operand of an equation at a loop's border."""
        (operand,) = equation.inputs
        if isinstance(operand, Literal):
            dtype = self._program.values[equation.outputs[0]].dtype
            return jnp.asarray(operand.value, dtype)
        return self.read(operand)

    def _producer(self, value: int) -> Equation:
        producer = self._program.values[value].producer
        assert producer is not None
        return self._program.equations[producer]

    def _depth_of(self, value: int) -> int:
        return len(self._program.loops_around(self._program.loop_of(value)))
