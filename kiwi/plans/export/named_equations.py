"""A function interpreted from its jaxpr, with a name for the results of some of its equations.

An equation's *label* is its number, preceded by the numbers of the scans that contain it: "3.12".
Calls of `jit` and `jax.checkpoint` are inlined. Scans are scanned again, with names in their
bodies. Custom derivatives and all other regions count as one equation.

**Names that save.** The derivative of tanh reads the result of tanh *before*
`checkpoint_name(tanh(x))` gives the result its name. So a policy that saves the name recomputes
tanh and everything in front of it. If a derivative reads its equation's result, the function
interpreted here makes it read the named result instead.

**Segments** of a flat list of equations are checkpointed one by one. With one `jax.checkpoint`
around a whole loss, all recomputation would start with the backward pass. A checkpointed segment is
recomputed when the cotangent of its results is there. The inputs of a segment are saved. So the
list is cut only where all values that cross the cut are saved anyway: arguments, named results, and
scalars. A scan is a segment of its own. Its body is cut in the same way.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex

from kiwi.hlo.loops import scan_operands
from kiwi.hlo.program import Equation, Literal, join_scopes, kept_outputs
from kiwi.hlo.tracing import INLINED_CALLS

_INLINED = {call: param for call, param in INLINED_CALLS.items() if "custom" not in call}
"""For each call that is inlined, the parameter with its jaxpr. Unlike in the planned program,
custom derivatives are not inlined, because the loss is still to be differentiated by their
rules."""

Evaluate = Callable[[Equation, Callable[[int], Any]], list[Any]]
"""Returns the results of an equation that another equation reads, or that are results of the
function. The second argument returns the array of a value."""

SCOPE = "kiwi_at_"
"""The prefix of the name scope of an equation."""


@dataclass(frozen=True, eq=False)
class Flat:
    """The equations of a jaxpr, with its arguments, constants and results. Values are numbered."""

    equations: tuple[Equation, ...]
    arguments: tuple[int, ...]
    constants: Mapping[int, Any]
    results: tuple[int | Literal, ...]

    @functools.cached_property
    def last_read(self) -> dict[int, int]:
        """The last equation that reads each value; the number of equations for a result."""
        readers = {value: equation.index for equation in self.equations for value in equation.reads}
        return readers | {
            result: len(self.equations) for result in self.results if isinstance(result, int)
        }


def flattened(closed: Any) -> Flat:
    """Returns a closed jaxpr with its calls inlined."""
    equations: list[Equation] = []
    constants: dict[int, Any] = {}
    numbers = itertools.count()

    def inline(called: Any, inputs: Sequence[int | Literal], scope: str) -> list[int | Literal]:
        env: dict[Any, int | Literal] = dict(zip(called.jaxpr.invars, inputs, strict=True))
        for variable, array in zip(called.jaxpr.constvars, called.consts, strict=True):
            constant = env[variable] = next(numbers)
            constants[constant] = array

        def read(atom: Any) -> int | Literal:
            return Literal(atom.val) if isinstance(atom, jex.Literal) else env[atom]

        for eqn in called.jaxpr.eqns:
            operands = tuple(map(read, eqn.invars))
            inner = eqn.params.get(_INLINED.get(eqn.primitive.name, ""))
            if inner is None:
                value_of_variable = {variable: next(numbers) for variable in kept_outputs(eqn)}
                equation = Equation(
                    len(equations), eqn, scope, operands, tuple(value_of_variable.values())
                )
                equations.append(equation)
                env.update(value_of_variable)
                continue
            inner = inner if isinstance(inner, jex.ClosedJaxpr) else jex.ClosedJaxpr(inner, ())
            stack = join_scopes(scope, str(eqn.source_info.name_stack))
            env.update(zip(eqn.outvars, inline(inner, operands, stack), strict=True))
        return list(map(read, called.jaxpr.outvars))

    arguments = tuple(next(numbers) for _ in closed.jaxpr.invars)
    results = inline(closed, arguments, "")
    return Flat(tuple(equations), arguments, constants, tuple(results))


def run_segments(
    flat: Flat,
    leaves: Sequence[Any],
    evaluate: Evaluate,
    saved: AbstractSet[int] = frozenset(),
    policy: Callable[..., Any] | None = None,
) -> list[Any]:
    """Evaluates a flat jaxpr and returns its results. With `policy`, each of its segments is
    checkpointed.

    - `leaves`: the arguments.
    - `evaluate`: evaluates one equation.
    - `saved`: the equations whose results the policy saves.
    """
    env = {**flat.constants, **dict(zip(flat.arguments, leaves, strict=True))}
    for segment in _segments(flat, saved) if policy else [flat.equations]:
        end = len(flat.equations) if policy is None else segment[-1].index + 1
        inputs = _read_from_outside(segment)
        needed = [
            output
            for equation in segment
            for output in equation.outputs
            if flat.last_read.get(output, -1) >= end
        ]
        run = functools.partial(_run, segment, inputs, needed, evaluate)
        if policy and segment[0].name != "scan":
            run = jax.checkpoint(run, policy=policy)
        env.update(zip(needed, run(*(env[i] for i in inputs)), strict=True))
    return [result.value if isinstance(result, Literal) else env[result] for result in flat.results]


def _run(
    segment: Sequence[Equation],
    inputs: Sequence[int],
    needed: Sequence[int],
    evaluate: Evaluate,
    *arrays: Any,
) -> list[Any]:
    env = dict(zip(inputs, arrays, strict=True))
    for equation in segment:
        env.update(zip(equation.outputs, evaluate(equation, env.__getitem__), strict=True))
    return [env[n] for n in needed]


def _read_from_outside(segment: Sequence[Equation]) -> list[int]:
    outputs = {output for equation in segment for output in equation.outputs}
    reads = (value for equation in segment for value in equation.reads)
    return [value for value in dict.fromkeys(reads) if value not in outputs]


def _segments(flat: Flat, saved: AbstractSet[int]) -> list[list[Equation]]:
    """Returns the equations, cut where all values that are read across the cut are saved."""
    segments: list[list[Equation]] = []
    crossing: set[int] = set()
    starts = True
    for equation in flat.equations:
        is_scan = equation.name == "scan"
        if starts or is_scan:
            segments.append([])
        segments[-1].append(equation)
        if equation.index not in saved:
            variables = zip(equation.outputs, kept_outputs(equation.jaxpr_eqn), strict=True)
            crossing |= {output for output, variable in variables if variable.aval.shape}
        crossing = {
            output for output in crossing if flat.last_read.get(output, -1) > equation.index
        }
        starts = is_scan or not crossing
    return segments


def interpreted(
    closed: Any,
    names: Mapping[str, str] | None = None,
    policy: Callable[..., Any] | None = None,
    prefix: str = "",
) -> Callable[..., list[Any]]:
    """Returns the function of a closed jaxpr, over flat arguments.

    - `names`: the name of the results of each equation with a certain label. None puts each
      equation in a name scope (`label_of`) instead.
    - `policy`: the policy by which segments of the function are checkpointed; None for no
      checkpoints.
    - `prefix`: the prefix of all labels.
    """
    flat = flattened(closed)
    label_of_equation = {outer.index: f"{prefix}{outer.index}" for outer in flat.equations}
    saved = {index for index, label in label_of_equation.items() if label in (names or ())}

    def evaluate(equation: Equation, read: Callable[[int], Any]) -> list[Any]:
        label = label_of_equation[equation.index]
        if equation.name == "scan":
            inner = functools.partial(interpreted, names=names, policy=policy, prefix=f"{label}.")
            return _scanned(equation, read, inner)
        if names is None:
            with jax.named_scope(SCOPE + label.replace(".", "_")):
                return equation.apply(read)
        if label not in names:
            return equation.apply(read)
        return _named(equation, [read(value) for value in equation.reads], names[label])

    return lambda *leaves: run_segments(flat, leaves, evaluate, saved, policy)


def label_of(name_stack: str) -> str | None:
    """Returns the label in the innermost scope of `interpreted` in a name stack; None if there is
    none."""
    _, scope, behind = name_stack.rpartition(SCOPE)
    digits = behind.partition(")")[0].partition("/")[0]
    return digits.replace("_", ".") if scope else None


def _scanned(
    equation: Equation,
    read: Callable[[int], Any],
    interpret: Callable[[Any], Callable[..., list[Any]]],
) -> list[Any]:
    """Returns the results of a scan whose body is interpreted."""
    operands, inputs = scan_operands(equation.jaxpr_eqn), equation.operands(read)
    constants, behind = operands.constants, operands.constants + operands.carries
    inner = interpret(operands.body)

    def body(carry: Any, xs: Any) -> Any:
        results = inner(*inputs[:constants], *carry, *xs)
        return tuple(results[: operands.carries]), tuple(results[operands.carries :])

    with jax.named_scope(equation.scope) if equation.scope else contextlib.nullcontext():
        carry, stacked = jax.lax.scan(
            body,
            tuple(inputs[constants:behind]),
            tuple(inputs[behind:]),
            length=operands.length,
            reverse=operands.reverse,
            unroll=operands.unroll,
        )
    return equation.kept([*carry, *stacked])


def _named(equation: Equation, operands: Sequence[Any], name: str) -> list[Any]:
    """Returns the named results of an equation. Its derivative reads the named results."""
    count = len(equation.outputs)

    def evaluate(*arrays: Any) -> list[Any]:
        return equation.apply(dict(zip(equation.reads, arrays, strict=True)).__getitem__)

    def named(*arrays: Any) -> list[Any]:
        return [checkpoint_name(result, name) for result in evaluate(*arrays)]

    def derivative(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        live = [k for k, tangent in enumerate(tangents) if _moves(tangent)]
        moved = [tangents[k] for k in live]
        flat = _derivative(evaluate, primals, moved, live)
        results = flat.results[:count]

        def with_names(step: Equation, read: Callable[[int], Any]) -> list[Any]:
            pairs = zip(step.outputs, step.apply(read), strict=True)
            return [
                checkpoint_name(result, name) if output in results else result
                for output, result in pairs
            ]

        results_and_tangents = run_segments(flat, [*primals, *moved], with_names)
        return results_and_tangents[:count], results_and_tangents[count:]

    if not _derivative_reads_result(evaluate, operands, count):
        return named(*operands)
    derived = jax.custom_jvp(named)
    derived.defjvp(derivative, symbolic_zeros=True)
    return derived(*operands)


def _derivative_reads_result(
    evaluate: Callable[..., list[Any]], operands: Sequence[Any], count: int
) -> bool:
    """Returns whether the derivative of an equation reads one of the equation's `count` results."""
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    live = [k for k, x in enumerate(types) if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]
    if not live:
        return False
    flat = _derivative(evaluate, types, [types[k] for k in live], live)
    reads = {value for equation in flat.equations for value in equation.reads}
    return any(result in reads for result in flat.results[:count] if isinstance(result, int))


def _derivative(
    evaluate: Callable[..., list[Any]],
    operands: Sequence[Any],
    tangents: Sequence[Any],
    live: Sequence[int],
) -> Flat:
    """Returns the jaxpr of an equation's results and their tangents, for tangents of the `live`
    operands."""

    def both(primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        def along(*moved: Any) -> list[Any]:
            full = list(primals)
            for k, x in zip(live, moved, strict=True):
                full[k] = x
            return evaluate(*full)

        results, derivatives = jax.jvp(along, [primals[k] for k in live], list(tangents))
        return [*results, *derivatives]

    return flattened(jax.make_jaxpr(both)(list(operands), list(tangents)))


def _moves(tangent: Any) -> bool:
    is_zero = isinstance(tangent, SymbolicZero)
    return not is_zero and jax.numpy.issubdtype(jax.typeof(tangent).dtype, jax.numpy.inexact)
