"""A traced JAX function as one flat list of equations.

    program   ::= arguments constants equation* results
    equation  ::= value* = primitive[params] (value | literal)*

Calls (`jit`, `custom_jvp_call`, `checkpoint`, ...) are inlined; equal pure equations are
merged; equations that nothing reads are dropped. What is left is either a first-order
primitive or an opaque region (`scan`, `while`, `cond`, `shard_map`, ...).
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from kiwi.hlo import jax_internals
from kiwi.hlo.collection import without_collection

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


@dataclass(frozen=True)
class Literal:
    """A constant scalar written into an equation."""

    value: Any


@dataclass(frozen=True)
class Value:
    """What an argument, a captured constant or an equation yields.

    `shape` is the logical shape that JAX shows. `is_extended` marks dtypes such as PRNG
    keys, whose array in HLO has further dimensions.
    """

    index: int
    shape: tuple[int, ...]
    dtype: Any
    itemsize: int
    is_extended: bool
    producer: int | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole, unsharded value."""
        return prod(self.shape) * self.itemsize

    @property
    def shape_dtype(self) -> jax.ShapeDtypeStruct:
        """The value's type as JAX's functions take it."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


@dataclass(frozen=True, eq=False)
class Equation:
    """One application of a primitive.

    `inputs` holds a value index or a `Literal` per operand, `outputs` the value indices of
    the results that something reads. `jaxpr_eqn` is the traced equation itself and `scope`
    the name scope of the calls around it, which inlining took away.
    """

    index: int
    jaxpr_eqn: Any
    scope: str
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.jaxpr_eqn.primitive.name

    @property
    def has_effects(self) -> bool:
        """Whether it does more than compute its results."""
        return bool(self.jaxpr_eqn.effects)

    @property
    def name_stack(self) -> str:
        """The JAX name stack, e.g. `transpose(jvp())/layer`."""
        return _join(self.scope, str(self.jaxpr_eqn.source_info.name_stack))

    @property
    def reads(self) -> tuple[int, ...]:
        """The values read, without literals, each once."""
        return tuple(dict.fromkeys(i for i in self.inputs if isinstance(i, int)))

    @property
    def stacked_outputs(self) -> tuple[bool, ...]:
        """For each output of a scan whether it is stacked, not carried."""
        flags = jax_internals.stacked_results(self.jaxpr_eqn)
        kept = zip(flags, self.jaxpr_eqn.outvars, strict=True)
        return tuple(flag for flag, v in kept if not isinstance(v, jex.DropVar))

    @property
    def filled_with(self) -> Any:
        """The scalar that the result repeats, where a literal one is broadcast; else None."""
        filled = self.inputs[0] if self.name == "broadcast_in_dim" else None
        return filled.value if isinstance(filled, Literal) else None

    @functools.cached_property
    def source_line(self) -> str:
        """`"file.py:12 (function)"` of the user's code."""
        return jax_internals.source_line(self.jaxpr_eqn.source_info)

    @functools.cached_property
    def _function(self) -> Callable[..., list[Any]]:
        eqn = self.jaxpr_eqn
        variables, outputs = _distinct_variables(eqn.invars), _kept_outputs(eqn)
        names = tuple("" for _ in variables), tuple("" for _ in outputs)
        debug_info = jex.DebugInfo("kiwi", eqn.primitive.name, *names)
        jaxpr = jex.Jaxpr((), variables, outputs, (eqn,), eqn.effects, debug_info)
        return jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))

    def apply(self, read: Callable[[int], Any]) -> list[Any]:
        """Evaluates the equation under its own name scope.

        `read` gives the array or tracer of a value index; returns one array per output.
        """
        arguments = {
            v: i.value if isinstance(i, Literal) else read(i)
            for v, i in zip(self.jaxpr_eqn.invars, self.inputs, strict=True)
            if not isinstance(v, jex.Literal)
        }
        with jax.named_scope(self.scope) if self.scope else contextlib.nullcontext():
            return list(self._function(*arguments.values()))


def _distinct_variables(atoms: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(a for a in atoms if not isinstance(a, jex.Literal)))


def _kept_outputs(eqn: Any) -> tuple[Any, ...]:
    return tuple(v for v in eqn.outvars if not isinstance(v, jex.DropVar))


@dataclass(frozen=True, eq=False)
class Program:
    """The flat program of a traced function.

    `arguments` are value indices in the order of the flattened arguments, `constants` map
    captured arrays' value indices to the arrays, `results` follow the flattened results.
    """

    values: tuple[Value, ...]
    equations: tuple[Equation, ...]
    arguments: tuple[int, ...]
    constants: dict[int, Any]
    results: tuple[int | Literal, ...]

    @functools.cached_property
    def result_values(self) -> frozenset[int]:
        """The values among the results."""
        return frozenset(r for r in self.results if isinstance(r, int))

    @functools.cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value the equations that read it, in program order."""
        found: list[list[int]] = [[] for _ in self.values]
        for equation in self.equations:
            for value in equation.reads:
                found[value].append(equation.index)
        return tuple(tuple(f) for f in found)

    def evaluate(self, arguments: Sequence[Any]) -> dict[int, Any]:
        """Evaluates every equation; returns all values by index."""
        env: dict[int, Any] = dict(zip(self.arguments, arguments, strict=True))
        env.update(self.constants)
        for equation in self.equations:
            env.update(zip(equation.outputs, equation.apply(env.__getitem__), strict=True))
        return env


@without_collection
def trace(
    flat_function: Callable[..., Sequence[Any]],
    arguments: Sequence[Any],
    *,
    keep_checkpoints: bool = False,
) -> Program:
    """Traces a function of flat arguments to a `Program`.

    **Arguments:**

    - `flat_function`: takes arrays, returns a flat sequence of arrays.
    - `arguments`: arrays or `jax.ShapeDtypeStruct`s.
    - `keep_checkpoints`: keeps the recomputation that the user's own `jax.checkpoint` asks
      for as separate equations. By default it is merged with the first computation, and
      what is recomputed is planned anew.
    """
    closed = jax.make_jaxpr(flat_function)(*arguments)
    return _Builder(keep_checkpoints).build(closed)


class _Builder:
    """Inlines, merges equal equations and drops unread ones, in one pass each."""

    def __init__(self, keep_checkpoints: bool) -> None:
        self._keep_checkpoints = keep_checkpoints
        self._values: list[Value] = []
        self._equations: list[Equation] = []
        self._constants: dict[int, Any] = {}
        self._constant_of_array: dict[int, int] = {}
        self._known: dict[Any, tuple[int, ...]] = {}

    def build(self, closed: Any) -> Program:
        jaxpr = closed.jaxpr
        arguments = [self._new_value(v.aval, None) for v in jaxpr.invars]
        env = dict(zip(jaxpr.invars, arguments, strict=True))
        self._bind_constants(env, jaxpr.constvars, closed.consts)
        self._inline(jaxpr, env, scope="")
        results = tuple(self._read(env, v) for v in jaxpr.outvars)
        return _without_dead_code(
            Program(
                tuple(self._values),
                tuple(self._equations),
                tuple(arguments),
                self._constants,
                results,
            )
        )

    def _new_value(self, aval: Any, producer: int | None) -> int:
        index = len(self._values)
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

    def _inline(self, jaxpr: Any, env: dict[Any, Any], scope: str) -> None:
        for eqn in jaxpr.eqns:
            inputs = tuple(self._read(env, v) for v in eqn.invars)
            if eqn.primitive.name in INLINED_CALLS:
                stack = _join(scope, str(eqn.source_info.name_stack))
                env.update(zip(eqn.outvars, self._inline_call(eqn, inputs, stack), strict=True))
            else:
                outputs = self._emit(eqn, inputs, scope)
                env.update(zip(_kept_outputs(eqn), outputs, strict=True))

    def _inline_call(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str
    ) -> list[int | Literal]:
        called = eqn.params[INLINED_CALLS[eqn.primitive.name]]
        closed = called if isinstance(called, jex.ClosedJaxpr) else jex.ClosedJaxpr(called, ())
        if self._keep_checkpoints and _is_recomputation(eqn):
            inputs = tuple(self._barrier(i, eqn, scope) for i in inputs)
        env: dict[Any, Any] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        self._bind_constants(env, closed.jaxpr.constvars, closed.consts)
        self._inline(closed.jaxpr, env, scope)
        return [self._read(env, v) for v in closed.jaxpr.outvars]

    def _barrier(self, value: int | Literal, eqn: Any, scope: str) -> int | Literal:
        """A separate barrier for each input keeps the recomputation apart from the original."""
        if isinstance(value, Literal):
            return value
        aval = self._values[value].shape_dtype
        barrier = jax.make_jaxpr(jax.lax.optimization_barrier)(aval).eqns[0]
        barrier = barrier.replace(source_info=eqn.source_info)
        return self._append(barrier, scope, (value,))[0]

    def _emit(self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str) -> tuple[int, ...]:
        key = None if eqn.effects else _identity(eqn, inputs)
        if key is None:
            return self._append(eqn, scope, inputs)
        if key not in self._known:
            self._known[key] = self._append(eqn, scope, inputs)
        return self._known[key]

    def _append(self, eqn: Any, scope: str, inputs: tuple[int | Literal, ...]) -> tuple[int, ...]:
        index = len(self._equations)
        outputs = tuple(self._new_value(v.aval, index) for v in _kept_outputs(eqn))
        self._equations.append(Equation(index, eqn, scope, inputs, outputs))
        return outputs


def _join(outer: str, inner: str) -> str:
    return f"{outer}/{inner}" if outer and inner else outer or inner


def _is_recomputation(eqn: Any) -> bool:
    return eqn.primitive.name in _CHECKPOINT_CALLS and bool(eqn.params.get("differentiated"))


def _identity(eqn: Any, inputs: tuple[int | Literal, ...]) -> Any:
    """A key equal for equations that compute the same; None if that cannot be told."""
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
    key = (eqn.primitive.name, atoms, avals, tuple(sorted(eqn.params.items(), key=_first)))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _literal_identity(value: Any) -> tuple[str, ...]:
    return (type(value).__name__, str(getattr(value, "dtype", "")), repr(value))


def _without_dead_code(program: Program) -> Program:
    """Drops equations whose outputs nothing reads, and renumbers what is left."""
    live = {r for r in program.results if isinstance(r, int)}
    kept: list[Equation] = []
    for equation in reversed(program.equations):
        if equation.has_effects or any(o in live for o in equation.outputs):
            kept.append(equation)
            live.update(equation.reads)
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
        equations.append(Equation(index, e.jaxpr_eqn, e.scope, inputs, outputs))
    results = tuple(move(r) for r in program.results)
    return Program(tuple(values), tuple(equations), arguments, constants, results)
