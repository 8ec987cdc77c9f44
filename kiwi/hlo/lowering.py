"""From a traced program to its `HloGraph`.

The program is lowered with *every* value as a result. The operands of the module's `return` then
are the SSA values to which the traced values lower. An operator belongs to the first equation whose
outputs need it.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import jax

from kiwi.hlo import jax_internals
from kiwi.hlo.costs import operator_flops
from kiwi.hlo.equations import equation_infos
from kiwi.hlo.garbage_collection import without_collection
from kiwi.hlo.graph import HloGraph, StableHloOp, Tensor
from kiwi.hlo.kernels import placeholder
from kiwi.hlo.program import Program
from kiwi.hlo.rule import ShardingRule, elementwise_rule, identity_rule, independent_rule


@without_collection()
@jax_internals.without_mesh()
def lower(program: Program) -> HloGraph:
    """Lowers a program to StableHLO, and returns its operators with sharding rules and costs."""
    module = _lower_all_values(program)
    jax_internals.populate_sharding_rules(module)
    reader = _Reader(module)
    reader.read_main()
    # The module returns tokens, one for each kind of ordered effect, in front of the values.
    returned = reader.returned[len(reader.returned) - len(program.values) :]
    ssa_of_value = dict(zip(range(len(program.values)), returned, strict=True))
    owners = _owners(program, reader, ssa_of_value)
    operators = tuple(
        replace(reader.records[i], index=k, equation=owners[i])
        for k, i in enumerate(sorted(owners))
    )
    return HloGraph(
        program, operators, tuple(reader.tensors), equation_infos(program, operators, ssa_of_value)
    )


def _lower_all_values(program: Program) -> Any:
    inputs = [*program.arguments, *program.constants]

    def every_value(*arrays: Any) -> list[Any]:
        env = dict(zip(inputs, arrays, strict=True))
        for equation in program.equations:
            if equation.is_unlowered:
                operands = equation.operands(env.__getitem__)
                results = equation.kept(placeholder(equation.jaxpr_eqn, operands))
            else:
                results = equation.apply(env.__getitem__)
            env.update(zip(equation.outputs, results, strict=True))
        return [env[value] for value in range(len(program.values))]

    shapes = [program.values[value].shape_dtype for value in inputs]
    return jax.jit(every_value, keep_unused=True).lower(*shapes).compiler_ir("stablehlo")


class _Reader:
    """Walks through a module from `main`, inlines calls, and numbers the SSA values.

    `producer`: SSA value → the index of the record whose operator computes the value. `returned`:
    the SSA values that `main` returns.
    """

    def __init__(self, module: Any) -> None:
        self._functions = jax_internals.functions(module)
        self.tensors: list[Tensor] = []
        self.records: list[StableHloOp] = []  # Their `equation` is not known yet.
        self.producer: dict[int, int] = {}
        self.returned: list[int] = []
        self._rules: dict[Hashable, ShardingRule] = {}  # Operators of repeated layers share rules.

    def read_main(self) -> None:
        main = self._functions["main"]
        env = {
            argument: self._new_tensor(argument) for argument in jax_internals.block_arguments(main)
        }
        self.returned = self._read_block(main, env)

    def _new_tensor(self, value: Any) -> int:
        shape, dtype = jax_internals.tensor_shape_and_dtype(value) or ((), "token")
        self.tensors.append(Tensor(shape, dtype))
        return len(self.tensors) - 1

    def _read_block(self, function: Any, env: dict[Any, int]) -> list[int]:
        for op in jax_internals.block_operations(function):
            operands = [env[operand] for operand in op.operands]
            opcode = op.operation.name
            if opcode in ("func.return", "stablehlo.return"):
                return operands
            if opcode == "func.call":
                results = self._read_call(op, operands)
            else:
                results = [self._new_tensor(result) for result in op.results]
                self._record(op, opcode, operands, results)
            env.update(zip(op.results, results, strict=True))
        raise AssertionError("a function without return")

    def _read_call(self, op: Any, operands: list[int]) -> list[int]:
        callee = self._functions[jax_internals.callee(op)]
        env = dict(zip(jax_internals.block_arguments(callee), operands, strict=True))
        return self._read_block(callee, env)

    def _record(self, op: Any, opcode: str, operands: list[int], results: list[int]) -> None:
        for result in results:
            self.producer[result] = len(self.records)
        short = opcode.removeprefix("stablehlo.")
        rule = self._rule(op, operands, results)
        shapes = ([self.tensors[i].shape for i in side] for side in (operands, results))
        flops = operator_flops(short, rule, *shapes)
        sides = tuple(operands), tuple(results)
        self.records.append(StableHloOp(len(self.records), short, *sides, rule, -1, flops))

    def _rule(self, op: Any, operands: list[int], results: list[int]) -> ShardingRule:
        key = jax_internals.sharding_rule_key(op)
        if key not in self._rules:
            rule = jax_internals.sharding_rule(op)
            if rule is None:
                return self._own_rule(op, operands, results)
            self._rules[key] = rule
        return self._rules[key]

    def _own_rule(self, op: Any, operands: list[int], results: list[int]) -> ShardingRule:
        """Returns the rule of an operation for which Shardy has none."""
        operand_shapes = [self.tensors[i].shape for i in operands]
        result_shapes = [self.tensors[i].shape for i in results]
        if op.operation.name == "stablehlo.optimization_barrier":
            return identity_rule(operand_shapes)
        # chlo's elementwise functions (erf, lgamma, ...) are expanded before Shardy runs.
        shapes = {*operand_shapes, *result_shapes}
        if op.operation.name.startswith("chlo.") and len(shapes) == 1:
            return elementwise_rule(result_shapes[0], len(operands), len(results))
        return independent_rule(operand_shapes, result_shapes, blocked=bool(operands))


def _owners(program: Program, reader: _Reader, ssa_of_value: dict[int, int]) -> dict[int, int]:
    """Returns operator → equation, by index. An operator that only dropped results need is left
    out."""
    owners: dict[int, int] = {}
    for equation in program.equations:
        pending = [ssa_of_value[output] for output in equation.outputs]
        while pending:
            record = reader.producer.get(pending.pop())
            if record is not None and record not in owners:
                owners[record] = equation.index
                pending.extend(reader.records[record].operands)
    return owners
