"""From a JAX function to its `Program`: calls inlined, scans opened, equal equations merged."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jex

from kiwi.errors import InvalidFunctionError
from kiwi.hlo import jax_internals, loops
from kiwi.hlo.checkpoint_names import residencies_replaced
from kiwi.hlo.explicit_axes import without_meshes
from kiwi.hlo.garbage_collection import without_collection
from kiwi.hlo.hints import HINT_PRIMITIVE, PlacedHint
from kiwi.hlo.host_memory import moved_to
from kiwi.hlo.known_kernels.recognised import kernels_recognised
from kiwi.hlo.loops import Carry
from kiwi.hlo.opened_computations import kernel_computations_opened
from kiwi.hlo.opening import LoopOpener
from kiwi.hlo.program import Equation, Literal, Program, Value, join_scopes, kept_outputs
from kiwi.hlo.sharding_constraints import constraint_spec, is_constraint
from kiwi.hlo.simplifications import simplified_once
from kiwi.hlo.trips import DEFAULT_TRIPS, WhileTrips
from kiwi.messages import topics

INLINED_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
"""By call primitive that is inlined, the parameter that holds the called jaxpr."""

_MARKS = {"nonbatchable": 0, "select_if_vmap": 1}
"""By primitive of Equinox's loops that only `jax.vmap` regards, the number of the operand that is
its result. XLA drops the other operands. With a sharding rule, Kiwi would move these into layouts
that nothing reads."""

_TYPES_IN_SHARD_MAP = frozenset(
    {"pvary", "preduced", "reduced_vary_cast", "vary_unreduced_cast"}
    | {"reduced_vary_cast_p", "vary_unreduced_cast_p"}
)
"""Primitives that only state along which mesh axes values of a `shard_map` differ. In jax 0.10, the
names of two of them end in `_p`."""

_LINEAR_SOLVE = "custom_linear_solve"

_CHECKPOINT_CALLS = frozenset({"checkpoint", "remat", "remat2"})


@without_collection()
def trace(
    flat_function: Callable[..., Sequence[Any]],
    arguments: Sequence[Any],
    *,
    keep_checkpoints: bool = False,
    open_loops: bool = False,
    while_trips: WhileTrips = DEFAULT_TRIPS,
    as_traced: Collection[str] = (),
    fetches_elements: bool = False,
    follows_shardings: bool = True,
    context: AbstractContextManager[Any] | None = None,
    platforms: Collection[str] = (),
    residencies: Mapping[str, str] | None = None,
) -> Program:
    """Traces a function of flat arguments, and returns its `Program`.

    - `flat_function`: takes arrays, returns a flat sequence of arrays.
    - `arguments`: arrays or `jax.ShapeDtypeStruct`s.
    - `keep_checkpoints`: whether the recomputation of the user's own `jax.checkpoint` is kept as
      separate equations. If not, it is merged with the first computation, and the plan decides what
      is recomputed.
    - `open_loops`: whether the bodies of loops and branches become part of the program, see
      `kiwi.hlo.loops`.
    - `while_trips`: the trip counts of `while`s that do not follow from the program, see
      `kiwi.hlo.trips`.
    - `as_traced`: names of simplifications that are left out, see `kiwi.hlo.simplifications`.
    - `fetches_elements`: whether each iteration of a scan fetches its own element of a stack in
      host memory.
    - `follows_shardings`: whether the function's own shardings become constraints. If not, they are
      ignored, see `kiwi.hlo.explicit_axes` and `kiwi.hlo.opened_computations`.
    - `context`: a context manager that sets the mesh under which the function is traced. By default
      it is traced under the caller's mesh. The program contains no mesh.
    - `platforms`: jax's names of the platform for which the program is planned. The matching branch
      of a `jax.lax.platform_dependent` is inlined. Without names all branches stay.
    - `residencies`: residencies by name that replace the function's own policies of
      `jax.checkpoint`, see `kiwi.hlo.checkpoint_names`. None keeps its own policies.

    **Raises:** `InvalidFunctionError` if the function captures a tracer. `InvalidArgumentError` if
    a residency is unknown, or if no sharding rule fits a call of a registered kernel.
    """
    opened = nullcontext() if follows_shardings else kernel_computations_opened()
    replaced = nullcontext() if residencies is None else residencies_replaced(residencies)
    with (
        context or nullcontext(),
        jax_internals.assumed_cudnn(),
        opened,
        kernels_recognised(),
        replaced as names,
    ):
        closed = jax.make_jaxpr(flat_function)(*arguments)
    _check_captured(closed.consts)
    with jax_internals.without_mesh():
        program = program_of(
            without_meshes(closed, follows=follows_shardings),
            keep_checkpoints=keep_checkpoints,
            open_loops=open_loops,
            while_trips=while_trips,
            as_traced=as_traced,
            fetches_elements=fetches_elements,
            platforms=platforms,
        )
    if residencies is None:
        return program
    return replace(program, residencies=dict(residencies), checkpointed_names=tuple(names or ()))


def _check_captured(constants: Sequence[Any]) -> None:
    """Raises `InvalidFunctionError` if a captured constant is a tracer."""
    traced = next((constant for constant in constants if jax_internals.is_tracer(constant)), None)
    if traced is not None:
        shape = f"{traced.dtype}[{','.join(map(str, traced.shape))}]"
        raise InvalidFunctionError(
            f"The function captures a value of type {shape} that jax is tracing.",
            topic=topics.CAPTURED,
        )


def program_of(
    closed: Any,
    *,
    keep_checkpoints: bool = False,
    open_loops: bool = False,
    while_trips: WhileTrips = DEFAULT_TRIPS,
    as_traced: Collection[str] = (),
    fetches_elements: bool = False,
    platforms: Collection[str] = (),
) -> Program:
    """Returns the `Program` of a closed jaxpr. The options are the ones of `trace`."""
    builder = _Builder(keep_checkpoints, open_loops, while_trips, fetches_elements, platforms)
    program = builder.build(closed)
    while (simplified := simplified_once(program, as_traced)) is not program:
        # One simplification may enable another: a value transposed twice is then transposed once.
        program = _without_dead_code(simplified)
    return program


class _Builder(LoopOpener):
    """Inlines calls, opens loops, merges equal equations, and drops unread ones."""

    def build(self, closed: Any) -> Program:
        jaxpr = closed.jaxpr
        arguments = [self._new_value(variable.aval, None) for variable in jaxpr.invars]
        env = dict(zip(jaxpr.invars, arguments, strict=True))
        self._bind_constants(env, jaxpr.constvars, closed.consts)
        self._inline(jaxpr, env, "", None)
        results = tuple(self._read(env, variable) for variable in jaxpr.outvars)
        return _without_dead_code(
            Program(
                tuple(self._values),
                tuple(self._equations),
                tuple(arguments),
                self._constants,
                results,
                tuple(self._loops),
                self._hints,
                self._constraints,
                self._keep_checkpoints,
                frozenset(self._user_offloads) if self._keep_checkpoints else frozenset(),
            )
        )

    def _inline(self, jaxpr: Any, env: dict[Any, Any], scope: str, loop: int | None) -> None:
        for eqn in jaxpr.eqns:
            inputs = tuple(self._read(env, variable) for variable in eqn.invars)
            stack = join_scopes(scope, str(eqn.source_info.name_stack))
            if eqn.primitive.name in INLINED_CALLS:
                outputs = self._inline_call(eqn, inputs, stack, loop)
                env.update(zip(eqn.outvars, outputs, strict=True))
            elif eqn.primitive.name == _LINEAR_SOLVE:
                outputs = self._inline_solve(eqn, inputs, stack, loop)
                env.update(zip(eqn.outvars, outputs, strict=True))
            elif eqn.primitive.name in _MARKS:
                env[eqn.outvars[0]] = inputs[_MARKS[eqn.primitive.name]]
            elif eqn.primitive.name in _TYPES_IN_SHARD_MAP:
                env.update(zip(eqn.outvars, inputs, strict=True))
            elif kept_outputs(eqn) and (space := moved_to(eqn)) is not None:
                env[eqn.outvars[0]] = self._moved(eqn, inputs[0], space, scope, loop)
            elif eqn.primitive.name == HINT_PRIMITIVE:
                self._note_hint(eqn, inputs[0])
                env[eqn.outvars[0]] = inputs[0]
            elif is_constraint(eqn):
                env[eqn.outvars[0]] = self._constrained(eqn, inputs[0], scope, loop)
            elif (branch := loops.branch_of_platform(eqn, self._platforms)) is not None:
                outputs = self._inline_closed(branch, inputs[1:], stack, loop)
                env.update(zip(eqn.outvars, outputs, strict=True))
            elif self._open_loops and loops.may_open(eqn):
                env.update(zip(eqn.outvars, self._open(eqn, inputs, scope, loop), strict=True))
            elif (taken_apart := _independent_equations(eqn)) is not None:
                outputs = self._inline_closed(taken_apart, inputs, scope, loop)
                env.update(zip(eqn.outvars, outputs, strict=True))
            else:
                outputs = self._emit(eqn, inputs, scope, loop)
                env.update(zip(kept_outputs(eqn), outputs, strict=True))

    def _moved(
        self,
        eqn: Any,
        value: int | Literal,
        space: Any,
        scope: str,
        loop: int | None,
    ) -> int | Literal:
        """Returns the copy of a value in the memory `space`.

        A value that returns from host memory is the value that was copied there. The plan decides
        whether this value is kept, recomputed or offloaded in between.
        """
        is_fetch = space is jax.memory.Space.Device
        if is_fetch and isinstance(value, int) and value in self._host_copies:
            return self._offloaded(value)
        (copy,) = self._emit(eqn, (value,), scope, loop)
        if space is jax.memory.Space.Host:
            self._host_copies.setdefault(copy, value)
        return copy

    def _note_hint(self, eqn: Any, value: int | Literal) -> None:
        """Records a hint at its value. The program has no equation for the hint."""
        if isinstance(value, Literal):
            return
        placed = PlacedHint(eqn.params["hint"], jax_internals.source_line(eqn.source_info))
        hints = self._hints.get(value, ())
        if placed not in hints:
            self._hints[value] = (*hints, placed)

    def _constrained(
        self, eqn: Any, value: int | Literal, scope: str, loop: int | None
    ) -> int | Literal:
        """Records a constraint at a value, and returns the value.

        If the value is an argument or the border of a loop, or has another constraint, the
        constraint stays an equation, and its result is returned.
        """
        if isinstance(value, Literal):
            return value
        constraint, producer = self._constraints.get(value), self._values[value].producer
        is_computed = producer is not None and not self._equations[producer].is_border
        if not is_computed or (constraint and constraint_spec(constraint) != constraint_spec(eqn)):
            (value,) = self._emit(eqn, (value,), scope, loop)
        self._constraints.setdefault(value, eqn)
        return value

    def _inline_solve(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, loop: int | None
    ) -> list[int | Literal]:
        """Inlines the forward function of a linear solve.

        Its other functions are for derivatives, and jax differentiates before Kiwi traces.
        """
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        solve_start = lengths.matvec + lengths.vecmat
        right_start = sum(length for length in lengths if length is not None)
        operands = (*inputs[solve_start : solve_start + lengths.solve], *inputs[right_start:])
        return self._inline_closed(jaxprs.solve, operands, scope, loop)

    def _inline_call(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, loop: int | None
    ) -> list[int | Literal]:
        called = eqn.params[INLINED_CALLS[eqn.primitive.name]]
        closed = called if isinstance(called, jex.ClosedJaxpr) else jex.ClosedJaxpr(called, ())
        is_checkpoint = eqn.primitive.name in _CHECKPOINT_CALLS
        if self._keep_checkpoints and is_checkpoint and eqn.params.get("differentiated"):
            inputs = tuple(self._barrier(i, eqn, scope, loop) for i in inputs)
        has_line = bool(jax_internals.source_line(eqn.source_info))
        self._callers += [eqn.source_info] * has_line
        outputs = self._inline_closed(closed, inputs, scope, loop)
        if has_line:
            self._callers.pop()
        return outputs


def _without_dead_code(program: Program) -> Program:
    """Drops equations whose outputs nothing reads, and renumbers the others.

    A carry that is read keeps the equations that compute it for the next iteration. An equation in
    a loop keeps the equations that decide whether the loop goes on.
    """
    following: dict[int, list[int]] = {}
    for loop in program.loops:
        for carry in loop.carries:
            if isinstance(carry.next, int):
                following.setdefault(carry.current, []).append(carry.next)
    live = {result for result in program.results if isinstance(result, int)}
    count = -1
    kept: list[Equation] = []
    while count != len(kept):
        count = len(kept)
        kept = []
        for equation in reversed(program.equations):
            if equation.has_effects or any(output in live for output in equation.outputs):
                kept.append(equation)
                live.update(equation.reads)
                live.update(n for output in equation.outputs for n in following.get(output, ()))
                live.update(program.tests(equation.loop))
    kept.reverse()
    return _renumbered(program, kept)


def _renumbered(program: Program, kept: list[Equation]) -> Program:
    values: list[Value] = []
    new_index: dict[int, int] = {}

    def add(old: int, producer: int | None) -> int:
        new_index[old] = len(values)
        value = program.values[old]
        values.append(
            Value(
                len(values), value.shape, value.dtype, value.itemsize, value.is_extended, producer
            )
        )
        return new_index[old]

    def move(atom: int | Literal) -> int | Literal:
        return new_index[atom] if isinstance(atom, int) else atom

    arguments = tuple(add(argument, None) for argument in program.arguments)
    used = {i for equation in kept for i in equation.reads} | {
        result for result in program.results if isinstance(result, int)
    }
    constants = {
        add(constant, None): array
        for constant, array in program.constants.items()
        if constant in used
    }
    equations = []
    for index, equation in enumerate(kept):
        inputs = tuple(move(i) for i in equation.inputs)
        outputs = tuple(add(output, index) for output in equation.outputs)
        equations.append(
            Equation(
                index,
                equation.jaxpr_eqn,
                equation.scope,
                inputs,
                outputs,
                equation.loop,
                equation.caller,
            )
        )
    results = tuple(move(result) for result in program.results)
    loops_kept = tuple(
        replace(
            loop,
            carries=tuple(
                Carry(new_index[carry.current], move(carry.next))
                for carry in loop.carries
                if carry.current in new_index
            ),
            test=None if loop.test is None else new_index.get(loop.test),
        )
        for loop in program.loops
    )
    hints = {
        new_index[value]: placed for value, placed in program.hints.items() if value in new_index
    }
    constraints = {
        new_index[value]: equation
        for value, equation in program.constraints.items()
        if value in new_index
    }
    return Program(
        tuple(values),
        tuple(equations),
        arguments,
        constants,
        results,
        loops_kept,
        hints,
        constraints,
        program.keeps_checkpoints,
        frozenset(new_index[value] for value in program.user_offloads if value in new_index),
    )


def _independent_equations(eqn: Any) -> jex.ClosedJaxpr | None:
    """Returns the jaxpr of a split with one equation for each result; None for other equations.

    JAX traces `jax.numpy.split` as one equation, but lowers it to a slice per result, and XLA fuses
    each slice into its readers. A single unit would materialise all slices, in the same layout.
    """
    if eqn.primitive.name != "split":
        return None
    ends, axis = np.cumsum(eqn.params["sizes"]).tolist(), eqn.params["axis"]

    def slices(x: jax.Array) -> list[jax.Array]:
        pairs = zip([0, *ends], ends, strict=False)
        return [lax.slice_in_dim(x, start, end, axis=axis) for start, end in pairs]

    closed = jax.make_jaxpr(slices)(*(operand.aval for operand in eqn.invars))
    equations = [equation.replace(source_info=eqn.source_info) for equation in closed.jaxpr.eqns]
    return jex.ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)
