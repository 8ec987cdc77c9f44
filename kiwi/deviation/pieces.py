"""Parts of a traced program that are functions themselves.

A piece is a set of a program's equations. Its arguments are the values that it reads and does not
compute. Its results are the values that it computes and does not read. An equation is applied as it
was traced, under a name scope that states its phase, so that a plan treats the equation as in the
whole step.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from kiwi.hlo.graph import Phase
from kiwi.hlo.phases import phases
from kiwi.hlo.program import Literal, Program

SCOPES: Mapping[Phase, str] = {
    Phase.FORWARD: "jvp()",
    Phase.BACKWARD: "transpose(jvp())",
    Phase.UPDATE: "",
}
"""The name scopes by which `kiwi.hlo.phases` recognises the phases."""


@dataclass(frozen=True, eq=False)
class Node:
    """One equation.

    - `primitive`, `params`: the primitive and its parameters.
    - `inputs`: a value or a literal for each operand.
    - `outputs`: a value for each result; None for a result that nothing in the program reads.
    - `scope`: the name scope of its phase.
    """

    primitive: Any
    params: Mapping[str, Any]
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int | None, ...]
    scope: str
    source_line: str

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.primitive.name

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that the equation reads, each once."""
        return tuple(dict.fromkeys(i for i in self.inputs if isinstance(i, int)))

    @property
    def writes(self) -> tuple[int, ...]:
        """The values that the equation computes."""
        return tuple(output for output in self.outputs if output is not None)

    @property
    def in_scope(self) -> AbstractContextManager[Any]:
        """A context manager that puts equations into the node's name scope."""
        return jax.named_scope(self.scope) if self.scope else nullcontext()

    def apply(self, read: Callable[[int], Any]) -> list[Any]:
        """Applies the equation and returns all results. `read` returns the array or tracer of a
        value."""
        operands = [i.value if isinstance(i, Literal) else read(i) for i in self.inputs]
        results = self.primitive.bind(*operands, **self.params)
        return list(results) if self.primitive.multiple_results else [results]


@dataclass(frozen=True, eq=False)
class Piece:
    """Nodes in the order of their program, and the types of all values that the nodes read or
    write."""

    nodes: tuple[Node, ...]
    types: Mapping[int, jax.ShapeDtypeStruct]

    @functools.cached_property
    def arguments(self) -> tuple[int, ...]:
        """The values that are read and not computed, in the order in which they are read."""
        computed = {value for node in self.nodes for value in node.writes}
        read = (value for node in self.nodes for value in node.reads if value not in computed)
        return tuple(dict.fromkeys(read))

    @functools.cached_property
    def results(self) -> tuple[int, ...]:
        """The values that are computed and not read."""
        read = {value for node in self.nodes for value in node.reads}
        return tuple(output for node in self.nodes for output in node.writes if output not in read)

    @property
    def argument_types(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of the arguments, in order."""
        return tuple(self.types[value] for value in self.arguments)

    def function(self, *arrays: Any) -> list[Any]:
        """Computes the piece's results from its arguments."""
        known: dict[int, Any] = dict(zip(self.arguments, arrays, strict=True))
        for number, node in enumerate(self.nodes):
            with jax.named_scope(piece_scope(number)), node.in_scope:
                results = node.apply(known.__getitem__)
            pairs = zip(node.outputs, results, strict=True)
            known.update((value, array) for value, array in pairs if value is not None)
        return [known[value] for value in self.results]

    def part(self, numbers: Collection[int]) -> "Piece":
        """The piece that consists of the nodes with the given numbers."""
        selected = set(numbers)
        nodes = tuple(node for number, node in enumerate(self.nodes) if number in selected)
        return replace(self, nodes=nodes)

    def neighbours(self, seeds: Collection[int], distance: int) -> frozenset[int]:
        """The numbers of the nodes that a chain of at most `distance` values, read or written,
        connects to the nodes `seeds`. The producers of these nodes' operands are included as well
        if they only broadcast or count, because they cost nothing."""
        near = frozenset(seeds)
        for _ in range(distance):
            values = self._touched(near)
            near |= {n for n, node in enumerate(self.nodes) if values & {*node.reads, *node.writes}}
        values = {value for number in near for value in self.nodes[number].reads}
        cheap = {
            n
            for n, node in enumerate(self.nodes)
            if node.name in _EXPANDING and values.intersection(node.writes)
        }
        return near | cheap

    def _touched(self, numbers: Collection[int]) -> set[int]:
        nodes = [self.nodes[number] for number in numbers]
        return {value for node in nodes for value in (*node.reads, *node.writes)}


_EXPANDING = frozenset({"broadcast_in_dim", "iota"})


def piece_scope(number: int) -> str:
    """Returns the name scope of a node in the trace of `Piece.function`."""
    return f"piece_{number}_"


def whole_piece(program: Program) -> Piece:
    """Returns the piece with all equations of a program whose loops are not opened. Captured
    constants become arguments."""
    nodes = []
    types: dict[int, jax.ShapeDtypeStruct] = {}
    for equation, phase in zip(program.equations, phases(program), strict=True):
        eqn = equation.jaxpr_eqn
        remaining = iter(equation.outputs)
        outputs = tuple(
            None if isinstance(outvar, jex.DropVar) else next(remaining) for outvar in eqn.outvars
        )
        inputs = tuple(
            _typed(i, outvar) for i, outvar in zip(equation.inputs, eqn.invars, strict=True)
        )
        for value, variable in zip((*inputs, *outputs), (*eqn.invars, *eqn.outvars), strict=True):
            if isinstance(value, int):
                aval = variable.aval
                types[value] = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        nodes.append(
            Node(eqn.primitive, eqn.params, inputs, outputs, SCOPES[phase], equation.source_line)
        )
    return Piece(tuple(nodes), types)


def _typed(given: int | Literal, variable: Any) -> int | Literal:
    """Returns an operand; a literal as an array of the operand's type."""
    if isinstance(given, int):
        return given
    return Literal(np.asarray(given.value, variable.aval.dtype))


def sizes_of(piece: Piece) -> Sequence[int]:
    """Returns all sizes of dimensions in a piece, each once, the largest first."""
    types = piece.types
    shapes = [types[value].shape for node in piece.nodes for value in (*node.reads, *node.writes)]
    return sorted({size for shape in shapes for size in shape}, reverse=True)
