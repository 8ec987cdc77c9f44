"""A plan's residencies for hand-written code: a loss with names, and a policy that saves the names.

The loss is differentiated with each of its equations in a name scope of its own. So every equation
of the derived program names the equation of the loss that it came from. The derived program is
aligned with the planned step: by source line, primitive and type, in order of occurrence. Equations
without a match are aligned by primitive and type only. A step that calls the loss several times has
several equations for one equation of the loss, which is saved if the plan keeps all of them. A
value that the plan keeps and the loss does not compute itself, such as a factor of a derivative, is
saved as the result of the equation that it came from.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from kiwi.emit.execution import Execution
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.graph import Phase
from kiwi.hlo.phases import phases
from kiwi.hlo.program import Program
from kiwi.hlo.tracing import trace
from kiwi.messages import topics
from kiwi.plans.export.named_equations import interpreted, label_of
from kiwi.plans.record import PlanRecord

LEAST_FOUND = 0.5
"""If a smaller fraction of the loss's equations is found in the step, the step is taken not to
differentiate this loss, and an error says so."""


@dataclass(frozen=True, eq=False)
class CheckpointPolicy:
    """A loss and a policy with which `jax.checkpoint` keeps and recomputes the values that a plan
    keeps and recomputes.

    - `function`: the loss, with the same arguments, and with names for the values that the plan
      keeps.
    - `checkpointed`: the loss under the policy, to be differentiated. It is checkpointed by
      segments, each recomputed when its cotangent is known (`kiwi.plans.export.named_equations`).
    - `policy`: the checkpoint policy that saves exactly `names`.
    - `names`: the names, in order.
    - `unmatched`: the number of values that the plan keeps and that were not found in the loss,
      since the step computes them outside of the loss or in another way. They are recomputed.
    """

    function: Callable[..., Any]
    checkpointed: Callable[..., Any]
    policy: Callable[..., Any]
    names: tuple[str, ...]
    unmatched: int


def checkpoint_policy(
    plan: PlanRecord,
    loss: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> CheckpointPolicy:
    """Returns the checkpoint policy that corresponds to a plan, for the loss that the planned step
    differentiates.

    - `loss`: the function that the step passes to `jax.grad`.
    - `args`: the arguments of the loss, arrays or `jax.ShapeDtypeStruct`s, of the types with which
      the step calls it.
    - `argnums`, `has_aux`: as passed to `jax.grad`.

    **Raises:** `InvalidArgumentError` if most of the loss is not found in the step.
    """
    leaves, tree = jax.tree.flatten(args)
    out_tree: list[Any] = []

    def flat(*flat_args: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(loss(*jax.tree.unflatten(tree, flat_args)))
        out_tree.append(structure)
        return leaves

    closed = jax.make_jaxpr(flat)(*leaves)

    def with_names(
        names: Mapping[str, str] | None = None, policy: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        run = interpreted(closed, names, policy)
        return lambda *a: jax.tree.unflatten(out_tree[0], run(*jax.tree.leaves(a)))

    derived = trace(
        _derivative(with_names(), tree, _differentiated(args, argnums), has_aux=has_aux),
        leaves,
        open_loops=bool(plan.execution.units.graph.program.loops),
        platforms=plan.execution.compiler.platforms,
    )
    labels, unmatched = _saved_labels(plan.execution, derived)
    names = {label: f"kiwi_{label}" for label in labels}
    policy = jax.checkpoint_policies.save_only_these_names(*names.values())
    functions = with_names(names), with_names(names, policy)
    return CheckpointPolicy(*functions, policy, tuple(names.values()), unmatched)


def _differentiated(args: Sequence[Any], argnums: int | Sequence[int]) -> frozenset[int]:
    """Returns the positions, among all leaves, of the leaves that have a gradient.

    A differentiated argument may also hold counters and keys, as the state of a `flax.nnx` module
    does. The step then differentiates only its floating-point leaves.
    """
    chosen = {argnums} if isinstance(argnums, int) else set(argnums)
    chosen = {number % len(args) for number in chosen}
    owners = [k for k, arg in enumerate(args) for _ in jax.tree.leaves(arg)]
    pairs = zip(owners, jax.tree.leaves(args), strict=True)
    return frozenset(
        position
        for position, (owner, leaf) in enumerate(pairs)
        if owner in chosen and jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact)
    )


def _derivative(
    loss: Callable[..., Any], tree: Any, differentiated: frozenset[int], *, has_aux: bool
) -> Callable[..., list[Any]]:
    """Returns a function of flat arguments that computes the value of the loss and the gradients of
    the `differentiated` leaves."""

    def derived(*leaves: Any) -> list[Any]:
        def of_some(some: Mapping[int, Any]) -> Any:
            all_leaves = [some.get(position, leaf) for position, leaf in enumerate(leaves)]
            return loss(*jax.tree.unflatten(tree, all_leaves))

        inexact_leaves = {position: leaves[position] for position in sorted(differentiated)}
        return jax.tree.leaves(jax.value_and_grad(of_some, has_aux=has_aux)(inexact_leaves))

    return derived


def _saved_labels(execution: Execution, derived: Program) -> tuple[list[str], int]:
    """Returns the labels of the loss's equations to save, and the number of kept values that no
    equation of the loss matches."""
    program = execution.units.graph.program
    phase_of = execution.units.graph.phase_of
    step = [
        equation_index.index
        for equation_index in program.equations
        if phase_of(equation_index.index) is Phase.FORWARD
    ]
    derived_phases = phases(derived)
    loss = [
        equation_index.index
        for equation_index in derived.equations
        if derived_phases[equation_index.index] is Phase.FORWARD
    ]
    match = aligned(program, step, derived, loss)
    if len(set(match.values())) < LEAST_FOUND * len(loss):
        raise InvalidArgumentError(
            "Most of the loss is not found in the planned step.",
            topic=topics.LOSS_NOT_FOUND,
        )
    kept_equations = {program.values[value].producer for value in kept_for_backward(execution)}
    copies: dict[int, list[bool]] = defaultdict(list)
    for equation, counterpart in match.items():
        copies[counterpart].append(equation in kept_equations)
    saved = [equation_index for equation_index, are_kept in copies.items() if all(are_kept)]
    labels = (
        label_of(derived.equations[equation_index].name_stack) for equation_index in sorted(saved)
    )
    unmatched = len(kept_equations - match.keys())
    return list(dict.fromkeys(label for label in labels if label is not None)), unmatched


def kept_for_backward(execution: Execution) -> frozenset[int]:
    """Returns the forward values that are read behind the forward pass and not recomputed there."""
    units, again = execution.units, execution.recomputed
    computed: set[int] = set()
    read: set[int] = set()
    for unit in execution.schedule.steps:
        is_late = unit in computed or units.units[unit].phase is not Phase.FORWARD
        computed.add(unit)
        if is_late:
            read.update(units.units[unit].reads)
    return frozenset(
        value
        for value in read
        if value in units.producer
        and units.producer[value] not in again
        and units.units[units.producer[value]].phase is Phase.FORWARD
    )


def aligned(
    first: Program, of_first: Iterable[int], second: Program, of_second: Iterable[int]
) -> dict[int, int]:
    """Returns, for equations among `of_first` of the first program, the equation among `of_second`
    of the second program that each is a copy of."""
    right_of_left: dict[int, int] = {}
    left_first, left_second = list(of_first), list(of_second)
    for with_line in (True, False):
        groups = _groups(first, left_first, with_line)
        for key, group in _groups(second, left_second, with_line).items():
            counterparts = groups.get(key, [])
            if counterparts and len(counterparts) % len(group) == 0:
                right_of_left.update(
                    (index, group[k % len(group)]) for k, index in enumerate(counterparts)
                )
        matched = set(right_of_left.values())
        left_first = [index for index in left_first if index not in right_of_left]
        left_second = [index for index in left_second if index not in matched]
    return right_of_left


def _groups(
    program: Program, equations: Iterable[int], with_line: bool
) -> Mapping[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in equations:
        equation = program.equations[index]
        types = tuple(
            (program.values[output].shape, str(program.values[output].dtype))
            for output in equation.outputs
        )
        line = equation.source_line if with_line else ""
        groups[equation.name, types, line].append(index)
    return groups
