"""The gathered copies that XLA:GPU's matmuls transpose, for each gathered dimension."""

import functools
from unittest.mock import Mock

import jax.numpy as jnp
import pytest

from kiwi.memory.residency import Residency
from kiwi.mesh import TensorSharding
from kiwi.problem.copies import CopyNode, Reading, Transposes, copy_node
from kiwi.targets.rules.gpu.gpu_transposed_operands import gathered_operands
from tests.helpers.planning import array, units_of

SIZES = {"b": 8, "s": 16, "d": 32, "e": 64, "h": 8, "k": 16, "t": 24}
WHOLE = TensorSharding(((), (), ()))


def first_operand(pattern: str) -> Transposes:
    one, other = pattern.split("->")[0].split(",")
    arrays = [array(*(SIZES[k] for k in each)) for each in (one, other)]
    units = units_of(lambda x, y: jnp.einsum(pattern, x, y), *arrays)
    (unit,) = [u for u in units.units if units.graph.opcode_of(u.root) == "dot_general"]
    read = [value for value, _ in unit.rule.reads].index(units.graph.program.arguments[0])
    operand = dict(gathered_operands(units, unit))[read]
    return functools.partial(operand.is_transposed, (8,))


def cut(rank: int, *dims: int) -> TensorSharding:
    return TensorSharding(tuple((0,) if d in dims else () for d in range(rank)))


@pytest.mark.parametrize(
    ("pattern", "transposed"),
    [
        ("bsd,bse->de", [1]),  # (s, b, d): what is summed over lies in another order
        ("bsd,de->bse", [1]),  # the same of what is kept
        ("bshk,hkd->bsd", [1, 2, 3]),  # both groups have two dimensions: only the batch comes first
        ("bshk,bthk->bhst", [0, 1, 2, 3]),  # the heads lie between, whatever is gathered
    ],
)
def test_a_copy_is_read_only_if_its_groups_lie_together_and_in_order(pattern, transposed):
    transposes, rank = first_operand(pattern), pattern.index(",")
    whole = cut(rank)
    assert [d for d in range(rank) if transposes(cut(rank, d), whole)] == transposed


def test_what_is_only_cut_is_no_gathered_copy():
    assert not first_operand("bsd,bse->de")(WHOLE, cut(3, 1))


def test_dimensions_of_one_element_lie_anywhere():
    transposes = first_operand("bsd,bse->de")
    assert not transposes(TensorSharding(((0,), (1,), ())), TensorSharding(((0,), (), ())))


def node(*stored: TensorSharding) -> CopyNode:
    transposes = first_operand("bsd,bse->de")
    found = copy_node(3, 0, 0, stored, [WHOLE], [Residency(None, 5)], transposes)
    assert found is not None
    return found


def test_a_transposed_copy_takes_its_memory_twice():
    copies = node(cut(3, 0), cut(3, 1))
    kinds = [(o.reading, o.is_transposed) for o in copies.options]
    assert kinds == [(Reading.COPY, False), (Reading.COPY, True)]
    ranges = Mock(operands_held=lambda unit: (unit, unit + 1))
    given = lambda value, layout: 100, ranges, (copies,), lambda unit, option: ()
    held = [copies.buffers(option, *given) for option in copies.options]
    assert [sum(b.bytes for b in buffers) for buffers in held] == [100, 200]


def test_the_stored_layout_tells_which_copy_it_is():
    copies = node(cut(3, 0), cut(3, 1), cut(3, 2))
    allowed = copies.allowed_after([cut(3, 0), cut(3, 1), cut(3, 2)])
    assert allowed.tolist() == [[True, False], [False, True], [True, False]]
