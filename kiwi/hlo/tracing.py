"""From a JAX function to its `Program`: calls inlined, scans opened, equal equations merged."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from kiwi.hlo import jax_internals, loops
from kiwi.hlo.garbage_collection import without_collection
from kiwi.hlo.hints import HINT_PRIMITIVE, PlacedHint
from kiwi.hlo.loops import Carry, Loop, ScanOperands, border_equation
from kiwi.hlo.program import Equation, Literal, Program, Value, join_scopes, kept_outputs
from kiwi.hlo.sharding_constraints import constraint_spec, is_constraint
from kiwi.hlo.split_results import independent_equations

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
"""Call primitives that are inlined, and the parameter that holds what they call."""

_CHECKPOINT_CALLS = frozenset({"checkpoint", "remat", "remat2"})


@without_collection()
def trace(
    flat_function: Callable[..., Sequence[Any]],
    arguments: Sequence[Any],
    *,
    keep_checkpoints: bool = False,
    open_loops: bool = False,
) -> Program:
    """Traces a function of flat arguments to a `Program`.

    - `flat_function`: takes arrays, returns a flat sequence of arrays.
    - `arguments`: arrays or `jax.ShapeDtypeStruct`s.
    - `keep_checkpoints`: keeps the recomputation that the user's own `jax.checkpoint` asks
      for as separate equations. By default it is merged with the first computation, and
      what is recomputed is planned anew.
    - `open_loops`: makes the bodies of scans part of the program, see `kiwi.hlo.loops`.
    """
    with jax_internals.assumed_cudnn():
        closed = jax.make_jaxpr(flat_function)(*arguments)
    return _Builder(keep_checkpoints, open_loops).build(closed)


class _Builder:
    """Inlines calls, merges equal equations and drops unread ones, in one pass each."""

    def __init__(self, keep_checkpoints: bool, open_loops: bool) -> None:
        self._keep_checkpoints = keep_checkpoints
        self._open_loops = open_loops
        self._loops: list[Loop] = []
        self._spaces: dict[tuple[int, int], int] = {}
        self._loop_of_value: list[int | None] = []
        self._constant: set[int] = set()
        self._stacked: dict[int, tuple[int | Literal, int]] = {}
        self._values: list[Value] = []
        self._equations: list[Equation] = []
        self._constants: dict[int, Any] = {}
        self._constant_of_array: dict[int, int] = {}
        self._known: dict[Any, tuple[int, ...]] = {}
        self._hints: dict[int, tuple[PlacedHint, ...]] = {}
        self._constraints: dict[int, Any] = {}

    def build(self, closed: Any) -> Program:
        jaxpr = closed.jaxpr
        arguments = [self._new_value(v.aval, None) for v in jaxpr.invars]
        env = dict(zip(jaxpr.invars, arguments, strict=True))
        self._bind_constants(env, jaxpr.constvars, closed.consts)
        self._inline(jaxpr, env, "", None)
        results = tuple(self._read(env, v) for v in jaxpr.outvars)
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
            )
        )

    def _new_value(self, aval: Any, producer: int | None, loop: int | None = None) -> int:
        index = len(self._values)
        self._loop_of_value.append(loop)
        extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
        # A PRNG key of the default implementation is two 32-bit words.
        itemsize = 8 if extended else aval.dtype.itemsize
        self._values.append(
            Value(index, tuple(aval.shape), aval.dtype, itemsize, extended, producer)
        )
        return index

    def _bind_constants(self, env: dict[Any, Any], variables: Any, arrays: Any) -> None:
        for variable, array in zip(variables, arrays, strict=True):
            if id(array) not in self._constant_of_array:
                index = self._new_value(variable.aval, None)
                self._constant_of_array[id(array)] = index
                self._constants[index] = array
            env[variable] = self._constant_of_array[id(array)]

    def _read(self, env: dict[Any, Any], atom: Any) -> int | Literal:
        return Literal(atom.val) if isinstance(atom, jex.Literal) else env[atom]

    def _inline(self, jaxpr: Any, env: dict[Any, Any], scope: str, loop: int | None) -> None:
        for eqn in jaxpr.eqns:
            inputs = tuple(self._read(env, v) for v in eqn.invars)
            stack = join_scopes(scope, str(eqn.source_info.name_stack))
            if eqn.primitive.name in INLINED_CALLS:
                outputs = self._inline_call(eqn, inputs, stack, loop)
                env.update(zip(eqn.outvars, outputs, strict=True))
            elif eqn.primitive.name == HINT_PRIMITIVE:
                self._note_hint(eqn, inputs[0])
                env[eqn.outvars[0]] = inputs[0]
            elif is_constraint(eqn):
                env[eqn.outvars[0]] = self._constrained(eqn, inputs[0], scope, loop)
            elif self._open_loops and loops.may_open(eqn):
                env.update(zip(eqn.outvars, self._open(eqn, inputs, scope, loop), strict=True))
            elif (taken_apart := independent_equations(eqn)) is not None:
                outputs = self._inline_closed(taken_apart, inputs, scope, loop)
                env.update(zip(eqn.outvars, outputs, strict=True))
            else:
                outputs = self._emit(eqn, inputs, scope, loop)
                env.update(zip(kept_outputs(eqn), outputs, strict=True))

    def _note_hint(self, eqn: Any, value: int | Literal) -> None:
        """Records a hint at its value; the program has no equation for it."""
        if isinstance(value, Literal):
            return
        placed = PlacedHint(eqn.params["hint"], jax_internals.source_line(eqn.source_info))
        known = self._hints.get(value, ())
        if placed not in known:
            self._hints[value] = (*known, placed)

    def _constrained(
        self, eqn: Any, value: int | Literal, scope: str, loop: int | None
    ) -> int | Literal:
        """The value itself, or a copy if it is an argument or constrained otherwise."""
        if isinstance(value, Literal):
            return value
        known, producer = self._constraints.get(value), self._values[value].producer
        is_computed = producer is not None and not self._equations[producer].is_border
        if not is_computed or (known and constraint_spec(known) != constraint_spec(eqn)):
            (value,) = self._emit(eqn, (value,), scope, loop)
        self._constraints.setdefault(value, eqn)
        return value

    def _inline_call(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, loop: int | None
    ) -> list[int | Literal]:
        called = eqn.params[INLINED_CALLS[eqn.primitive.name]]
        closed = called if isinstance(called, jex.ClosedJaxpr) else jex.ClosedJaxpr(called, ())
        is_checkpoint = eqn.primitive.name in _CHECKPOINT_CALLS
        if self._keep_checkpoints and is_checkpoint and eqn.params.get("differentiated"):
            inputs = tuple(self._barrier(i, eqn, scope, loop) for i in inputs)
        return self._inline_closed(closed, inputs, scope, loop)

    def _inline_closed(
        self, closed: Any, inputs: Sequence[int | Literal], scope: str, loop: int | None
    ) -> list[int | Literal]:
        env: dict[Any, Any] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        self._bind_constants(env, closed.jaxpr.constvars, closed.consts)
        self._inline(closed.jaxpr, env, scope, loop)
        return [self._read(env, v) for v in closed.jaxpr.outvars]

    def _barrier(
        self, value: int | Literal, eqn: Any, scope: str, loop: int | None
    ) -> int | Literal:
        """A separate barrier for each input keeps the recomputation apart from the original."""
        if isinstance(value, Literal):
            return value
        aval = self._values[value].shape_dtype
        barrier = jax.make_jaxpr(jax.lax.optimization_barrier)(aval).eqns[0]
        barrier = barrier.replace(source_info=eqn.source_info)
        return self._append(barrier, scope, (value,), loop)[0]

    def _emit(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, loop: int | None
    ) -> tuple[int, ...]:
        if self._is_constant(eqn, inputs):
            loop = None
        key = None if eqn.effects else _identity(eqn, inputs)
        if key is None:
            return self._append(eqn, scope, inputs, loop)
        key = (key, self._place(eqn, inputs, loop))
        if key not in self._known:
            self._known[key] = self._append(eqn, scope, inputs, loop)
        return self._known[key]

    def _is_constant(self, eqn: Any, inputs: tuple[int | Literal, ...]) -> bool:
        """Whether an equation depends on no argument, so that it can run outside of all loops."""
        is_plain = not eqn.effects and eqn.primitive.name not in loops.LOOP_PRIMITIVES
        return is_plain and all(isinstance(i, Literal) or i in self._constant for i in inputs)

    def _place(self, eqn: Any, inputs: tuple[int | Literal, ...], loop: int | None) -> Any:
        """A key that equations share if one may replace the other.

        The same computation on members of one space is the same family. On what lies outside of
        the loop it is one value, which need not be alive from one loop to another.
        """
        if loop is None:
            return None
        here = self._loops[loop]
        is_member = any(isinstance(i, int) and self._is_member(i, here) for i in inputs)
        if is_member or eqn.primitive.name == loops.SLICE:
            return ("space", here.space)
        return ("loop", loop)

    def _is_member(self, value: int, loop: Loop) -> bool:
        """Whether each iteration of a loop has a value of its own of this kind."""
        owner = self._loop_of_value[value]
        return owner is not None and self._loops[owner].space == loop.space

    def _append(
        self, eqn: Any, scope: str, inputs: tuple[int | Literal, ...], loop: int | None
    ) -> tuple[int, ...]:
        index = len(self._equations)
        owner = loop
        if eqn.primitive.name == loops.STACK:
            assert loop is not None
            owner = self._loops[loop].parent
        outputs = tuple(self._new_value(v.aval, index, owner) for v in kept_outputs(eqn))
        self._equations.append(Equation(index, eqn, scope, inputs, outputs, loop))
        if self._is_constant(eqn, inputs):
            self._constant.update(outputs)
        return outputs

    def _open(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, parent: int | None
    ) -> list[int | Literal]:
        """Inlines the body of a scan into the program; returns the scan's results."""
        operands = loops.scan_operands(eqn)
        loop = self._new_loop(operands, parent)
        border = _Border(self, eqn.source_info, scope, loop)
        first, behind = operands.constants, operands.constants + operands.carries
        variables = operands.body.jaxpr.invars
        env = dict(zip(variables[:first], inputs[:first], strict=True))
        self._bind_constants(env, operands.body.jaxpr.constvars, operands.body.consts)
        unchanged = _unchanged_carries(operands)
        for k in range(first, behind):
            same = variables[k] in unchanged
            env[variables[k]] = inputs[k] if same else border.carry(inputs[k], k)
        for k in range(behind, len(inputs)):
            env[variables[k]] = border.slice(inputs[k])
        inner = join_scopes(scope, str(eqn.source_info.name_stack))
        self._inline(operands.body.jaxpr, env, inner, loop)
        outputs = [self._read(env, v) for v in operands.body.jaxpr.outvars]
        finals: list[int | Literal] = []
        carries = []
        for variable, following in zip(variables[first:behind], outputs, strict=False):
            if variable in unchanged:
                finals.append(following)
                continue
            current = env[variable]
            assert isinstance(current, int)
            carries.append(Carry(current, following))
            finals.append(border.result(following))
        self._loops[loop] = replace(self._loops[loop], carries=tuple(carries))
        kept = zip(outputs, eqn.outvars, strict=True)
        stacks = [
            Literal(None) if isinstance(v, jex.DropVar) else border.stack(y)
            for y, v in list(kept)[operands.carries :]
        ]
        return [*finals, *stacks]

    def _new_loop(self, operands: ScanOperands, parent: int | None) -> int:
        index = len(self._loops)
        outer = -1 if parent is None else self._loops[parent].space
        space = self._spaces.setdefault((outer, operands.length), len(self._spaces))
        shape = (operands.length, operands.reverse, operands.unroll)
        self._loops.append(Loop(index, parent, space, *shape, ()))
        return index


class _Border:
    """Emits the equations at the border of one loop."""

    def __init__(self, builder: _Builder, source_info: Any, scope: str, loop: int) -> None:
        self._builder = builder
        self._source_info = source_info
        self._scope = scope
        self._loop = builder._loops[loop]

    def carry(self, initial: int | Literal, position: int) -> int:
        """Carries that start from one value go different ways: their position tells them apart."""
        index = self._loop.index
        return self._emit(loops.CARRY, initial, index, loop=index, position=position)

    def result(self, following: int | Literal) -> int | Literal:
        """What lies outside of the loop is the same in the last iteration."""
        if isinstance(following, Literal) or not self._builder._is_member(following, self._loop):
            return following
        return self._emit(loops.RESULT, following, self._loop.parent, loop=self._loop.index)

    def slice(self, stacked: int | Literal) -> int | Literal:
        """What was stacked in this space is at hand; of anything else an element."""
        assert isinstance(stacked, int)
        known = self._builder._stacked.get(stacked)
        if known is not None and known[1] == self._loop.space:
            return known[0]
        return self._emit(loops.SLICE, stacked, self._loop.index, space=self._loop.space)

    def stack(self, y: int | Literal) -> int:
        length = self._loop.length
        index = self._loop.index
        stacked = self._emit(loops.STACK, y, index, loop=index, length=length)
        self._builder._stacked[stacked] = (y, self._loop.space)
        return stacked

    def _emit(self, name: str, operand: int | Literal, owner: int | None, **params: int) -> int:
        if isinstance(operand, Literal):
            aval = jax.typeof(operand.value)
        else:
            aval = self._builder._values[operand].shape_dtype
        eqn = border_equation(name, aval, self._source_info, **params)
        return self._builder._emit(eqn, (operand,), self._scope, owner)[0]


def _unchanged_carries(operands: ScanOperands) -> frozenset[Any]:
    """The variables of carries that every iteration passes on unchanged."""
    first = operands.constants
    jaxpr = operands.body.jaxpr
    carried = jaxpr.invars[first : first + operands.carries]
    pairs = zip(carried, jaxpr.outvars, strict=False)
    return frozenset(v for v, following in pairs if v is following)


def _identity(eqn: Any, inputs: tuple[int | Literal, ...]) -> Any:
    """A key that equations share if they compute the same; None if Kiwi cannot know."""
    atoms = tuple(i if isinstance(i, int) else _literal_identity(i.value) for i in inputs)
    avals = tuple(
        (
            v.aval.shape,
            str(v.aval.dtype),
            getattr(v.aval, "weak_type", False),
            isinstance(v, jex.DropVar),
        )
        for v in eqn.outvars
    )
    key = (eqn.primitive.name, atoms, avals, tuple(sorted(eqn.params.items(), key=itemgetter(0))))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _literal_identity(value: Any) -> tuple[str, ...]:
    return (type(value).__name__, str(getattr(value, "dtype", "")), repr(value))


def _without_dead_code(program: Program) -> Program:
    """Drops equations whose outputs nothing reads, and renumbers the others.

    A carry that is read keeps the equations that compute it for the next iteration.
    """
    following = {c.current: c.next for loop in program.loops for c in loop.carries}
    live = {r for r in program.results if isinstance(r, int)}
    count = -1
    kept: list[Equation] = []
    while count != len(kept):
        count = len(kept)
        kept = []
        for equation in reversed(program.equations):
            if equation.has_effects or any(o in live for o in equation.outputs):
                kept.append(equation)
                live.update(equation.reads)
                live.update(n for n in map(following.get, equation.outputs) if isinstance(n, int))
    kept.reverse()
    return _renumbered(program, kept)


def _renumbered(program: Program, kept: list[Equation]) -> Program:
    values: list[Value] = []
    new_index: dict[int, int] = {}

    def add(old: int, producer: int | None) -> int:
        new_index[old] = len(values)
        v = program.values[old]
        values.append(Value(len(values), v.shape, v.dtype, v.itemsize, v.is_extended, producer))
        return new_index[old]

    def move(atom: int | Literal) -> int | Literal:
        return new_index[atom] if isinstance(atom, int) else atom

    arguments = tuple(add(a, None) for a in program.arguments)
    used = {i for e in kept for i in e.reads} | {r for r in program.results if isinstance(r, int)}
    constants = {add(c, None): array for c, array in program.constants.items() if c in used}
    equations = []
    for index, e in enumerate(kept):
        inputs = tuple(move(i) for i in e.inputs)
        outputs = tuple(add(o, index) for o in e.outputs)
        equations.append(Equation(index, e.jaxpr_eqn, e.scope, inputs, outputs, e.loop))
    results = tuple(move(r) for r in program.results)
    alive = tuple(
        replace(
            loop,
            carries=tuple(
                Carry(new_index[c.current], move(c.next))
                for c in loop.carries
                if c.current in new_index
            ),
        )
        for loop in program.loops
    )
    hints = {new_index[v]: placed for v, placed in program.hints.items() if v in new_index}
    constraints = {new_index[v]: e for v, e in program.constraints.items() if v in new_index}
    return Program(
        tuple(values), tuple(equations), arguments, constants, results, alive, hints, constraints
    )
