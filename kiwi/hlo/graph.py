"""The HLO graph of a traced program, for planning: operators with their sharding rules."""

import enum
import functools
from dataclasses import dataclass

from kiwi.hlo.opcodes import NO_MATMUL_SIMPLIFICATION, MatmulSimplification, fused_opcode
from kiwi.hlo.program import Program
from kiwi.hlo.rule import ComposedRule, ShardingRule


class Phase(enum.Enum):
    """The part of a training step that an operator belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, eq=False)
class StableHloOp:
    """One StableHLO operator.

    - `operands`, `results`: indices of tensors (SSA values) of the graph.
    - `equation`: the index of the equation that lowers to the operator.
    - `flops`: the work of the whole, unsharded operator. A multiply-add counts as two.
    """

    index: int
    opcode: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: ShardingRule
    equation: int
    flops: float


@dataclass(frozen=True)
class Tensor:
    """Shape and MLIR element type of an SSA value."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class EquationInfo:
    """One traced equation with its operators, their joint sharding rule and their work.

    - `operators`: indices into `HloGraph.operators`.
    - `rule`: the joint rule of the operators. The keys of its reads are value indices.
    - `is_constant`: whether the equation depends on no argument.
    - `is_region`: whether the equation runs a region (`scan`, `while`, ...) and is planned whole.
    - `flops`: the work of the whole, unsharded equation. A multiply-add counts as two.
    """

    index: int
    phase: Phase
    operators: tuple[int, ...]
    rule: ComposedRule
    is_constant: bool
    is_region: bool
    flops: float


@dataclass(frozen=True, eq=False)
class HloGraph:
    """A program together with the StableHLO operators that it lowers to.

    - `tensors`: the SSA values of the lowered program, by index.
    - `equations`: one entry for each equation of the program.
    - `matmul_simplification`: what the compiler makes of matmuls before it fuses.
    """

    program: Program
    operators: tuple[StableHloOp, ...]
    tensors: tuple[Tensor, ...]
    equations: tuple[EquationInfo, ...]
    matmul_simplification: MatmulSimplification = NO_MATMUL_SIMPLIFICATION

    @functools.cached_property
    def opcodes(self) -> tuple[frozenset[str], ...]:
        """For each equation, the opcodes of its operators, as XLA simplifies them."""
        return tuple(
            frozenset(self._opcode(self.operators[i]) for i in info.operators)
            for info in self.equations
        )

    def _opcode(self, operator: StableHloOp) -> str:
        return fused_opcode(
            operator.opcode,
            operator.rule,
            [self.tensors[i].shape for i in operator.operands],
            [self.tensors[i].shape for i in operator.results],
            self.matmul_simplification,
        )

    def phase_of(self, equation: int) -> Phase:
        """The phase of an equation."""
        return self.equations[equation].phase

    def opcode_of(self, equation: int) -> str:
        """The opcode of an equation's costliest operator.

        Borders of loops, transfers, and equations without operators yield their primitive's name.
        """
        members, traced = self.equations[equation].operators, self.program.equations[equation]
        if not members or traced.is_border or traced.is_transfer:
            return traced.name
        return max((self.operators[i] for i in members), key=lambda op: (op.flops, op.index)).opcode
