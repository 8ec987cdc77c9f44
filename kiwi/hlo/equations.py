"""Builds the `EquationInfo` of each traced equation from the operators that it lowers to."""

from collections.abc import Hashable
from dataclasses import replace

from kiwi.hlo.graph import EquationInfo, StableHloOp
from kiwi.hlo.independent_batches import batch_flops
from kiwi.hlo.kernels import Kernel
from kiwi.hlo.loops import JOIN, border_dims
from kiwi.hlo.phases import phases
from kiwi.hlo.program import Equation, Program
from kiwi.hlo.regions.work import equation_flops, jaxpr_flops
from kiwi.hlo.rule import (
    ComposedRule,
    RuleComposer,
    ShardingRule,
    elementwise_rule,
    independent_rule,
)

REGION_PRIMITIVES = frozenset({"scan", "while", "cond", "shard_map", "custom_partitioning"})
"""Primitives that run a region, see `kiwi.hlo.regions.work`.

Operands and results of a `shard_map` have the layouts of its specs. Operands and results of the
other primitives are replicated."""

_GENERATORS = frozenset({"random_bits"})
"""Primitives that fill their result from a key. Any dimension of the result can be sharded,
although the loop that XLA runs for them has no sharding rule."""


def equation_infos(
    program: Program, operators: tuple[StableHloOp, ...], ssa_of_value: dict[int, int]
) -> tuple[EquationInfo, ...]:
    """Returns one `EquationInfo` per equation.

    `ssa_of_value`: value index → the index of the tensor (SSA value) to which the value lowers.
    """
    members: list[list[StableHloOp]] = [[] for _ in program.equations]
    for operator in operators:
        members[operator.equation].append(operator)
    constant = _constants(program)
    return tuple(
        EquationInfo(
            equation.index,
            phase,
            tuple(op.index for op in members[equation.index]),
            _rule(program, equation, members[equation.index], ssa_of_value),
            constant[equation.index],
            equation.name in REGION_PRIMITIVES and not equation.is_kernel,
            _flops(equation, members[equation.index]),
        )
        for equation, phase in zip(program.equations, phases(program), strict=True)
    )


def _constants(program: Program) -> list[bool]:
    """Returns, for each equation, whether it depends on no argument."""
    constant_value = [False] * len(program.values)
    constants = []
    for equation in program.equations:
        is_constant = (
            not equation.has_effects
            and not equation.is_border  # Its result differs between iterations.
            and all(constant_value[value] for value in equation.reads)
        )
        constants.append(is_constant)
        for output in equation.outputs:
            constant_value[output] = is_constant
    return constants


def _flops(equation: Equation, members: list[StableHloOp]) -> float:
    if equation.kernel is not None:
        return equation.kernel.share_of_work * jaxpr_flops(equation.kernel_jaxpr)
    if equation.batches is not None:
        return batch_flops(equation.jaxpr_eqn)
    if equation.name in REGION_PRIMITIVES or equation.is_library_kernel:
        return equation_flops(equation.jaxpr_eqn)
    return sum(op.flops for op in members)


def _rule(
    program: Program, equation: Equation, members: list[StableHloOp], ssa_of_value: dict[int, int]
) -> ComposedRule:
    values = (*equation.reads, *equation.outputs)
    if equation.name in _GENERATORS:
        return _disconnected_rule(program, equation, results_blocked=False)
    if equation.kernel is not None:
        return _kernel_rule(equation, equation.kernel)
    if equation.batches is not None:
        return _kernel_rule(equation, equation.batches)
    if equation.name in REGION_PRIMITIVES or any(
        program.values[value].is_extended for value in values
    ):
        return _disconnected_rule(program, equation, results_blocked=True)
    if equation.is_border:
        return _border_rule(program, equation)
    return _joined_rule(program, equation, members, ssa_of_value)


def _disconnected_rule(
    program: Program, equation: Equation, *, results_blocked: bool
) -> ComposedRule:
    """Returns a rule in which operands and results share no factor.

    Operands stay whole. `results_blocked`: whether results stay whole, too; otherwise every
    dimension of a result can be sharded.
    """
    composer = RuleComposer()
    inputs = [program.values[value].shape for value in equation.reads]
    outputs = [program.values[value].shape for value in equation.outputs]
    composer.add(independent_rule(inputs, (), blocked=True), equation.reads, ())
    results = independent_rule((), outputs, blocked=results_blocked)
    composer.add(results, (), equation.outputs)
    return composer.compose(equation.outputs)


def _kernel_rule(equation: Equation, kernel: Kernel) -> ComposedRule:
    """Returns the kernel's own rule, without the results that nothing reads."""
    eqn = equation.jaxpr_eqn
    rule = kernel.rule(
        *(
            [variable.aval.shape for variable in variables]
            for variables in (eqn.invars, eqn.outvars)
        )
    )
    operands = [i if isinstance(i, int) else None for i in equation.inputs]
    results = tuple(equation.kept(rule.results))
    composer = RuleComposer()
    composer.add(replace(rule, results=results), operands, equation.outputs)
    return composer.compose(equation.outputs)


def _border_rule(program: Program, equation: Equation) -> ComposedRule:
    """Returns the rule of a loop's border: operand and result are sharded alike, and the dimension
    of the iterations stays whole."""
    (result,) = equation.outputs
    # The first operand of a join is the index of the branch that runs.
    case = equation.inputs[0] if equation.name == JOIN else None
    shapes = [program.values[value].shape for value in (*equation.reads, result) if value != case]
    shape = min(shapes, key=len)
    stacked = max(shapes, key=len)
    length = stacked[0] if len(stacked) > len(shape) else 1
    operand_factors, result_factors = border_dims(equation.name, len(shape))
    operands = tuple(
        () if value == case else tuple((factor,) for factor in operand_factors)
        for value in equation.reads
    )
    rule = ShardingRule(
        (length, *shape),
        operands,
        (tuple((factor,) for factor in result_factors),),
        blocked=frozenset({0}),
    )
    composer = RuleComposer()
    composer.add(rule, equation.reads, equation.outputs)
    return composer.compose(equation.outputs)


def _joined_rule(
    program: Program, equation: Equation, members: list[StableHloOp], ssa_of_value: dict[int, int]
) -> ComposedRule:
    """Returns the joint rule of the equation's operators.

    A tensor that neither an operator of the equation nor an input provides is a constant that JAX
    shares between equations. Such tensors constrain nothing.
    """
    composer = RuleComposer()
    keys: dict[int, Hashable] = {ssa_of_value[value]: value for value in reversed(equation.reads)}
    for op in members:
        operand_keys = [keys.get(i) for i in op.operands]
        keys.update((tensor, ("ssa", tensor)) for tensor in op.results)
        composer.add(op.rule, operand_keys, [keys[tensor] for tensor in op.results])
    results = [keys.get(ssa_of_value[result_value]) for result_value in equation.outputs]
    produced = {key for op in members for key in (keys[tensor] for tensor in op.results)}
    for k, (output, key) in enumerate(zip(equation.outputs, results, strict=True)):
        if key not in produced:
            # The result is an input (a conversion to the same type), or a shared constant.
            shape = program.values[output].shape
            results[k] = ("same", output)
            composer.add(elementwise_rule(shape, 1), [key], [results[k]])
    return composer.compose(results)
