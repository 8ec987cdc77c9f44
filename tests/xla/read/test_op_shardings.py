"""XLA's text of shardings, against the requested ones."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.xla.cpu.propagation import propagated_text_on_cpu
from kiwi.xla.read.op_shardings import instructions, tensor_sharding
from kiwi.xla.step import Step

MESH = DeviceMesh.create((2, 1, 4), "h100-sxm")
DIMS = [(), (0,), (2,), (0, 2), (2, 0)]


@pytest.mark.parametrize(
    "dims", [d for d in itertools.product(DIMS, DIMS) if not set(d[0]) & set(d[1])]
)
def test_every_sharding_of_a_matrix_is_read_back(dims):
    lies = TensorSharding(dims)
    x = jax.ShapeDtypeStruct((16, 32), "float32")
    step = Step(lambda y: [jnp.sin(y)], [x], MESH, [MESH.partition_spec(lies)], [None], donated=())
    all_of_text = instructions(propagated_text_on_cpu(step))
    (found,) = [i for i in all_of_text if i.opcode == "sine"]
    assert found.shape == (16, 32) and "sin" in found.op_name
    assert tensor_sharding(found.sharding, 2, MESH) == lies


def test_lists_of_devices_are_read():
    text = "devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate"
    assert tensor_sharding(text, 2, MESH) == TensorSharding(((), (2,)))


@pytest.mark.parametrize(
    "text", ["maximal device=0", "manual", "devices=[2,1,4]<=[8] last_tile_dim_replicate"]
)
def test_what_the_axes_cannot_say_is_none(text):
    across = DeviceMesh.create((4, 2), "h100-sxm")
    assert tensor_sharding(text, 2, across) is None


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("mesh[], replicated", ((), ())),
        ("mesh['x'=2,'a'=1,'y'=4], [{'y', 'x'}, {}]", ((2, 0), ())),
        ("mesh['x'=2,'a'=1,'y'=4], [{}, {'x'}], replicated={'y'}", ((), (0,))),
        # Axes of another shape, whose parts are whole axes of this one.
        ("mesh['d'=8], [{'d':(1)2}, {'d':(2)4}]", ((0,), (2,))),
        ("mesh['d'=8], [{'d'}, {}]", ((0, 2), ())),
    ],
)
def test_named_shardings_are_read(text, dims):
    assert tensor_sharding(text, 2, MESH) == TensorSharding(dims)


@pytest.mark.parametrize(
    "text", ["mesh['d'=8], [{'d':(1)4}, {}]", "mesh['d'=4], [{'d'}, {}]", "mesh['d'=8], [{'d'}]"]
)
def test_named_shardings_that_the_axes_cannot_say_are_none(text):
    assert tensor_sharding(text, 2, MESH) is None


TEXT = """HloModule m

%body (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0), sharding={devices=[8]<=[8]}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(3), sharding={devices=[4,2]<=[2,4]T(1,0) last_tile_dim_replicate}
  %t = (f32[8]{0}, s32[8]{0}) sort(%a, %b), metadata={op_name="jit(f)/sort"}
  %g = s32[8]{0} get-tuple-element(%t), index=1, sharding={replicated}
  ROOT %n = f32[] negate(%g), metadata={op_name="jit(f)/neg" stack_frame_id=3}
}
"""


def test_instructions_of_the_entry_computation():
    parameter, element, negated = instructions(TEXT)
    assert (parameter.opcode, parameter.position) == ("parameter", 3)
    assert tensor_sharding(parameter.sharding, 1, MESH) == TensorSharding(((2,),))
    assert (element.position, element.sharding) == (1, "replicated")
    assert (negated.op_name, negated.shape, negated.sharding) == ("jit(f)/neg", (), "replicated")
