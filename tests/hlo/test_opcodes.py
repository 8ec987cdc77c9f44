"""Matmuls that XLA's algebraic simplifier replaces before it fuses."""

import functools
from dataclasses import replace

import jax.numpy as jnp
import pytest

from kiwi.hlo.lowering import lower
from kiwi.hlo.opcodes import NO_MATMUL_SIMPLIFICATION, MatmulSimplification
from tests.helpers.planning import array, trace_flat

ALL = MatmulSimplification(outer_products=True, vector_products=True)
OUTER = MatmulSimplification(outer_products=True)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "simplification", "opcode"),
    [
        ("td,dn->tdn", ((8, 4), (4, 2)), ALL, "multiply"),
        ("td,dn->tdn", ((8, 4), (4, 2)), NO_MATMUL_SIMPLIFICATION, "dot_general"),
        ("tk,kn->tn", ((8, 1), (1, 4)), OUTER, "multiply"),  # Nothing is summed.
        ("tdn,dn->td", ((8, 4, 2), (4, 2)), ALL, "reduce"),
        ("tdn,dn->td", ((8, 4, 2), (4, 2)), OUTER, "dot_general"),
        ("tk,k->t", ((8, 4), (4,)), ALL, "reduce"),
        ("tk,kn->tn", ((8, 4), (4, 1)), ALL, "reduce"),  # A matrix of one column.
        ("tk,kn->tn", ((8, 4), (4, 2)), ALL, "dot_general"),
    ],
)
def test_matmuls_are_fused_as_what_they_become(subscripts, shapes, simplification, opcode):
    arrays = [array(*shape) for shape in shapes]
    graph = lower(trace_flat(functools.partial(jnp.einsum, subscripts), *arrays))
    (matmul,) = (o for o in graph.operators if o.opcode == "dot_general")
    simplified = replace(graph, matmul_simplification=simplification)
    assert simplified.opcodes[matmul.equation] == {opcode}
