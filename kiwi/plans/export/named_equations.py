"""A function interpreted from its jaxpr, with a name for the results of some of its equations.

An equation's *label* is its number, behind those of the scans that it is in: "3.12". Calls of
`jit` and `jax.checkpoint` are inlined; scans are scanned again, with names in their bodies; custom
derivatives and all other regions are one equation.

**Names that save.** `checkpoint_name(tanh(x))` does not save what the derivative of tanh reads,
which is its own result *before* the name: a policy that saves the name recomputes tanh and all in
front of it. Where a derivative reads its equation's result, it is made to read the named one.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from kiwi.hlo.loops import scan_operands
from kiwi.hlo.program import Equation
from kiwi.plans.export.checkpoint_segments import Flat, flattened, run_segments

SCOPE = "kiwi_at_"


def interpreted(
    closed: Any,
    names: Mapping[str, str] | None = None,
    policy: Callable[..., Any] | None = None,
    prefix: str = "",
) -> Callable[..., list[Any]]:
    """The function of a closed jaxpr.

    - `names`: for labels of equations the names of their results; None puts each equation in a
      name scope, see `label_of`.
    - `policy`: with one, the function is checkpointed by segments, see
      `kiwi.plans.export.checkpoint_segments`.
    - `prefix`: of the labels.
    """
    flat = flattened(closed)
    label_of_equation = {e.index: f"{prefix}{e.index}" for e in flat.equations}
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
    """The label of the scope that `interpreted` left in a name stack, if any."""
    _, found, behind = name_stack.rpartition(SCOPE)
    digits = behind.partition(")")[0].partition("/")[0]
    return digits.replace("_", ".") if found else None


def _scanned(
    equation: Equation,
    read: Callable[[int], Any],
    interpret: Callable[[Any], Callable[..., list[Any]]],
) -> list[Any]:
    """A scan whose body is interpreted."""
    operands, inputs = scan_operands(equation.jaxpr_eqn), equation.operands(read)
    first, behind = operands.constants, operands.constants + operands.carries
    inner = interpret(operands.body)

    def body(carry: Any, xs: Any) -> Any:
        results = inner(*inputs[:first], *carry, *xs)
        return tuple(results[: operands.carries]), tuple(results[operands.carries :])

    with jax.named_scope(equation.scope) if equation.scope else contextlib.nullcontext():
        carry, stacked = jax.lax.scan(
            body,
            tuple(inputs[first:behind]),
            tuple(inputs[behind:]),
            length=operands.length,
            reverse=operands.reverse,
            unroll=operands.unroll,
        )
    return equation.kept([*carry, *stacked])


def _named(equation: Equation, operands: Sequence[Any], name: str) -> list[Any]:
    """The named results of an equation, from which its derivative is computed."""
    count = len(equation.outputs)

    def evaluate(*arrays: Any) -> list[Any]:
        return equation.apply(dict(zip(equation.reads, arrays, strict=True)).__getitem__)

    def named(*arrays: Any) -> list[Any]:
        return [checkpoint_name(y, name) for y in evaluate(*arrays)]

    def derivative(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        live = [k for k, tangent in enumerate(tangents) if _moves(tangent)]
        moved = [tangents[k] for k in live]
        flat = _derivative(evaluate, primals, moved, live)
        results = flat.results[:count]

        def with_names(step: Equation, read: Callable[[int], Any]) -> list[Any]:
            pairs = zip(step.outputs, step.apply(read), strict=True)
            return [checkpoint_name(y, name) if o in results else y for o, y in pairs]

        found = run_segments(flat, [*primals, *moved], with_names)
        return found[:count], found[count:]

    if not _derivative_reads_result(evaluate, operands, count):
        return named(*operands)
    derived = jax.custom_jvp(named)
    derived.defjvp(derivative, symbolic_zeros=True)
    return derived(*operands)


def _derivative_reads_result(
    evaluate: Callable[..., list[Any]], operands: Sequence[Any], count: int
) -> bool:
    """Whether the derivative of an equation is computed from one of its `count` results."""
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
    """The jaxpr of results and their tangents, for tangents of the `live` operands."""

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
