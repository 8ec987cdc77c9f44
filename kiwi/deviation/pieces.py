"""Parts of a traced program that are functions themselves.

A piece is a set of a program's equations. Its arguments are the values that it reads and does not
compute, its results the values that it computes and others read. An equation is applied as it was
traced, under a name scope that states its phase, so that plans treat it as they did in the whole
step.
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
"""Name scopes by which `kiwi.hlo.phases` recognises the phases."""


@dataclass(frozen=True, eq=False)
class Node:
    """One equation.

    - `inputs`: a value or a literal for each operand. `outputs`: a value for each result, None if
      nothing in the program reads it.
    - `params`: the parameters of its primitive.
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
        """The values read, each once."""
        return tuple(dict.fromkeys(i for i in self.inputs if isinstance(i, int)))

    @property
    def writes(self) -> tuple[int, ...]:
        """The values computed."""
        return tuple(o for o in self.outputs if o is not None)

    @property
    def in_scope(self) -> AbstractContextManager[Any]:
        """Inside this context manager, equations get its name scope."""
        return jax.named_scope(self.scope) if self.scope else nullcontext()

    def apply(self, read: Callable[[int], Any]) -> list[Any]:
        """All results; `read` gives the array or tracer of a value."""
        operands = [i.value if isinstance(i, Literal) else read(i) for i in self.inputs]
        results = self.primitive.bind(*operands, **self.params)
        return list(results) if self.primitive.multiple_results else [results]


@dataclass(frozen=True, eq=False)
class Piece:
    """Nodes in the order of their program, with the types of all values that they read or write."""

    nodes: tuple[Node, ...]
    types: Mapping[int, jax.ShapeDtypeStruct]

    @functools.cached_property
    def arguments(self) -> tuple[int, ...]:
        """The values that are read and not computed, in the order in which they are read."""
        made = {value for node in self.nodes for value in node.writes}
        read = (value for node in self.nodes for value in node.reads if value not in made)
        return tuple(dict.fromkeys(read))

    @functools.cached_property
    def results(self) -> tuple[int, ...]:
        """The values that are computed and not read."""
        read = {value for node in self.nodes for value in node.reads}
        return tuple(v for node in self.nodes for v in node.writes if v not in read)

    @property
    def argument_types(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of the arguments, in order."""
        return tuple(self.types[value] for value in self.arguments)

    def function(self, *arrays: Any) -> list[Any]:
        """The piece as a function of its arguments."""
        known: dict[int, Any] = dict(zip(self.arguments, arrays, strict=True))
        for number, node in enumerate(self.nodes):
            with jax.named_scope(piece_scope(number)), node.in_scope:
                results = node.apply(known.__getitem__)
            pairs = zip(node.outputs, results, strict=True)
            known.update((value, array) for value, array in pairs if value is not None)
        return [known[value] for value in self.results]

    def part(self, numbers: Collection[int]) -> "Piece":
        """The piece of some of the nodes, by their numbers."""
        kept = set(numbers)
        nodes = tuple(node for number, node in enumerate(self.nodes) if number in kept)
        return replace(self, nodes=nodes)

    def neighbours(self, seeds: Collection[int], distance: int) -> frozenset[int]:
        """The numbers of the nodes within so many values of some nodes, forth or back. Nodes that
        expand scalars cost nothing, and may be one value further."""
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
    """The name scope of a piece's node in what `Piece.function` traces."""
    return f"piece_{number}_"


def whole_piece(program: Program) -> Piece:
    """All equations of a program whose loops are not opened; captured constants are arguments."""
    nodes = []
    types: dict[int, jax.ShapeDtypeStruct] = {}
    for equation, phase in zip(program.equations, phases(program), strict=True):
        eqn = equation.jaxpr_eqn
        kept = iter(equation.outputs)
        outputs = tuple(None if isinstance(v, jex.DropVar) else next(kept) for v in eqn.outvars)
        inputs = tuple(_typed(i, v) for i, v in zip(equation.inputs, eqn.invars, strict=True))
        for value, variable in zip((*inputs, *outputs), (*eqn.invars, *eqn.outvars), strict=True):
            if isinstance(value, int):
                aval = variable.aval
                types[value] = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        nodes.append(
            Node(eqn.primitive, eqn.params, inputs, outputs, SCOPES[phase], equation.source_line)
        )
    return Piece(tuple(nodes), types)


def _typed(given: int | Literal, variable: Any) -> int | Literal:
    """A literal as an array of the operand's type."""
    if isinstance(given, int):
        return given
    return Literal(np.asarray(given.value, variable.aval.dtype))


def sizes_of(piece: Piece) -> Sequence[int]:
    """All sizes of dimensions, the largest first."""
    types = piece.types
    shapes = [types[v].shape for node in piece.nodes for v in (*node.reads, *node.writes)]
    return sorted({size for shape in shapes for size in shape}, reverse=True)
