"""A function interpreted from its jaxpr, with a mark at each of its equations.

An equation's *label* is its position, through the calls and scans that it is in: "3.0.12". Calls of
`jit` and `jax.checkpoint` are inlined; scans are scanned again, with marks in their bodies; custom
derivatives and all other regions are one equation.

**Names that save.** `checkpoint_name(tanh(x))` does not save what the derivative of tanh reads,
which is its own result *before* the name: a policy that saves the name recomputes tanh and all in
front of it. Where a derivative reads its equation's result, it is made to read the named one.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex

from kiwi.hlo.loops import scan_operands
from kiwi.hlo.program import kept_outputs
from kiwi.plans.export.checkpoint_segments import FlatEquation, flattened, run_segments

SCOPE = "kiwi_at_"

Evaluate = Callable[..., list[Any]]


@dataclass(frozen=True)
class Mark:
    """What becomes of equations; this one leaves them as they are. `prefix` is the scan's label."""

    prefix: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The labels, behind the prefix, whose results are saved."""
        return frozenset()

    def inside(self, label: str) -> "Mark":
        """The mark for the body of the scan with a label."""
        return replace(self, prefix=f"{self.prefix}{label}.")

    def __call__(self, label: str, eqn: Any, evaluate: Evaluate) -> Evaluate:
        """What evaluates the equation instead."""
        return evaluate


@dataclass(frozen=True)
class Scoped(Mark):
    """A mark that is found again in the name stacks of what is made of the equation."""

    def __call__(self, label: str, eqn: Any, evaluate: Evaluate) -> Evaluate:
        """What evaluates the equation instead."""
        scope = SCOPE + (self.prefix + label).replace(".", "_")

        def run(*operands: Any) -> list[Any]:
            with jax.named_scope(scope):
                return evaluate(*operands)

        return run


def interpreted(closed: Any, mark: Mark, policy: Callable[..., Any] | None = None) -> Evaluate:
    """The function of a closed jaxpr.

    `mark(label, equation, evaluate)` gives what evaluates an equation: `evaluate` takes the
    equation's distinct operands and returns the results that something reads. With `policy`, the
    function is checkpointed by segments, see `kiwi.plans.export.checkpoint_segments`.
    """
    flat = flattened(closed)

    def evaluate(step: FlatEquation, inputs: list[Any]) -> list[Any]:
        with jax.named_scope(step.scope) if step.scope else contextlib.nullcontext():
            if step.eqn.primitive.name == "scan":
                return _scanned(step, inputs, mark, policy)
            variables = step.eqn.invars
            operands = {v: x for v, x in zip(variables, inputs, strict=True) if _is_variable(v)}
            found = iter(mark(step.label, step.eqn, _evaluator(step.eqn))(*operands.values()))
            return [None if isinstance(v, jex.DropVar) else next(found) for v in step.eqn.outvars]

    def run(*leaves: Any) -> list[Any]:
        return run_segments(flat, leaves, evaluate, mark.names, policy)

    return run


def _scanned(
    step: FlatEquation, inputs: list[Any], mark: Mark, policy: Callable[..., Any] | None
) -> list[Any]:
    operands = scan_operands(step.eqn)
    first, behind = operands.constants, operands.constants + operands.carries
    inner = interpreted(operands.body, mark.inside(step.label), policy)

    def body(carry: Any, xs: Any) -> Any:
        results = inner(*inputs[:first], *carry, *xs)
        return tuple(results[: operands.carries]), tuple(results[operands.carries :])

    carry, stacked = jax.lax.scan(
        body,
        tuple(inputs[first:behind]),
        tuple(inputs[behind:]),
        length=operands.length,
        reverse=operands.reverse,
        unroll=operands.unroll,
    )
    return [*carry, *stacked]


def label_of(name_stack: str) -> str | None:
    """The label that `scoped` left in a name stack, if any."""
    _, found, behind = name_stack.rpartition(SCOPE)
    digits = behind.partition(")")[0].partition("/")[0]
    return digits.replace("_", ".") if found else None


@dataclass(frozen=True)
class Named(Mark):
    """A mark that names the results of the equations whose labels `name_of` has."""

    name_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The labels, behind the prefix, whose results are saved."""
        cut = len(self.prefix)
        return frozenset(k[cut:] for k in self.name_of if k.startswith(self.prefix))

    def __call__(self, label: str, eqn: Any, evaluate: Evaluate) -> Evaluate:
        """What evaluates the equation instead."""
        name = self.name_of.get(self.prefix + label)
        if name is None:
            return evaluate
        if _derivative_reads_result(eqn, evaluate):
            return _derived_from_name(evaluate, name)
        return lambda *operands: [checkpoint_name(y, name) for y in evaluate(*operands)]


def _evaluator(eqn: Any) -> Evaluate:
    variables, outputs = _variables(eqn), kept_outputs(eqn)
    names = ("",) * len(variables), ("",) * len(outputs)
    debug_info = jex.DebugInfo("kiwi", eqn.primitive.name, *names)
    jaxpr = jex.Jaxpr((), variables, outputs, (eqn,), eqn.effects, debug_info)
    return jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))


def _derivative_reads_result(eqn: Any, evaluate: Evaluate) -> bool:
    """Whether the derivative of an equation is computed from its result."""
    operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in _variables(eqn)]
    live = [k for k, x in enumerate(operands) if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]
    if not live:
        return False
    closed, count = _derivative(evaluate, operands, [operands[k] for k in live], live)
    results = set(filter(_is_variable, closed.jaxpr.outvars[:count]))
    return any(v in results for e in closed.jaxpr.eqns for v in e.invars if _is_variable(v))


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, jex.Literal)


def _variables(eqn: Any) -> tuple[Any, ...]:
    """What an equation reads, each once."""
    return tuple(dict.fromkeys(filter(_is_variable, eqn.invars)))


def _derivative(
    evaluate: Evaluate, operands: Sequence[Any], tangents: Sequence[Any], live: Sequence[int]
) -> tuple[Any, int]:
    """The jaxpr of results and their tangents, and how many results there are."""
    counts: list[int] = []

    def both(primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        def along(*moved: Any) -> list[Any]:
            full = list(primals)
            for k, x in zip(live, moved, strict=True):
                full[k] = x
            return list(evaluate(*full))

        results, derivatives = jax.jvp(along, [primals[k] for k in live], list(tangents))
        counts.append(len(results))
        return [*results, *derivatives]

    closed = jax.make_jaxpr(both)(list(operands), list(tangents))
    return closed, counts[0]


def _derived_from_name(evaluate: Evaluate, name: str) -> Evaluate:
    """`evaluate` with named results, from which its derivative is computed."""

    @jax.custom_jvp
    def named(*operands: Any) -> list[Any]:
        return [checkpoint_name(y, name) for y in evaluate(*operands)]

    def derivative(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        live = [k for k, t in enumerate(tangents) if _moves(t)]
        closed, count = _derivative(evaluate, primals, [tangents[k] for k in live], live)
        results = frozenset(closed.jaxpr.outvars[:count])
        leaves = [*primals, *(tangents[k] for k in live)]
        found = _with_names(closed, leaves, results, name)
        return found[:count], found[count:]

    named.defjvp(derivative, symbolic_zeros=True)
    return named


def _moves(tangent: Any) -> bool:
    is_zero = isinstance(tangent, SymbolicZero)
    return not is_zero and jax.numpy.issubdtype(jax.typeof(tangent).dtype, jax.numpy.inexact)


def _with_names(closed: Any, leaves: Sequence[Any], results: frozenset[Any], name: str) -> Any:
    """Evaluates a jaxpr; those of `results` are named as they are computed."""
    env: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(closed.jaxpr.invars, leaves, strict=True))
    for eqn in closed.jaxpr.eqns:
        operands = {v: env[v] for v in eqn.invars if _is_variable(v)}
        for v, y in zip(kept_outputs(eqn), _evaluator(eqn)(*operands.values()), strict=True):
            env[v] = checkpoint_name(y, name) if v in results else y
    return [env[v] if _is_variable(v) else v.val for v in closed.jaxpr.outvars]
