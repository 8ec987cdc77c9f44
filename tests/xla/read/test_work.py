"""The work and traffic of instructions, against XLA's own cost analysis and by hand."""

import itertools
from math import prod

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from kiwi.xla.read.hlo_text import arrays_of, parse_module
from kiwi.xla.read.work import ModuleWork, numpy_name, valid_positions

IMAGE, KERNEL = jnp.zeros((2, 9, 9, 6)), jnp.zeros((3, 3, 3, 8))


def convolved(x, w, **options):
    return lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (jnp.matmul, (jnp.zeros((5, 7)), jnp.zeros((7, 3)))),
        (jnp.matmul, (jnp.zeros((4, 5, 7)), jnp.zeros((4, 7, 3)))),
        (
            lambda x, w: convolved(
                x, w, window_strides=(2, 1), padding=((1, 1), (0, 2)), feature_group_count=2
            ),
            (IMAGE, KERNEL),
        ),
        (
            lambda x, w: convolved(
                x,
                w,
                window_strides=(1, 1),
                padding=((1, 2), (3, 1)),
                lhs_dilation=(2, 3),
                rhs_dilation=(1, 2),
            ),
            (IMAGE, jnp.zeros((3, 3, 6, 8))),
        ),
    ],
    ids=["matmul", "batched", "grouped convolution", "dilated convolution"],
)
def test_products_are_those_that_xla_counts(function, arguments):
    lowered = jax.jit(function).lower(*arguments)
    module = parse_module(lowered.as_text(dialect="hlo"))
    work = ModuleWork(module)
    flops = sum(
        sum((*work.of(i, c).matmul_flops.values(), *work.of(i, c).convolution_flops.values()))
        for c in module.computations.values()
        for i in c.instructions
    )
    assert flops == lowered.cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("array", "stored_bytes"),
    [
        ("f32[32,60,64]{2,1,0:T(8,128)}", 32 * 64 * 128 * 4),
        ("f32[32,60,64]{0,2,1:T(8,128)}", 128 * 60 * 64 * 4),
        ("bf16[4,60]{1,0:T(4,128)(2,1)}", 4 * 128 * 2),
        ("f32[250]{0:T(256)}", 256 * 4),
        ("f32[32,60,64]{2,1,0}", 32 * 60 * 64 * 4),
        ("f32[]{:T(128)}", 4),
    ],
)
def test_tiles_are_moved_with_what_fills_them(array, stored_bytes):
    (found,) = arrays_of(array)
    assert found.stored_bytes == stored_bytes
    shape = found.shape or (1,)
    assert found.bytes == prod(shape) * (2 if array.startswith("bf16") else 4)


FUSIONS = """HloModule m
%sliced (stack: f32[8,64], i: s32[], x: f32[64]) -> f32[64] {
  %stack = f32[8,64] parameter(0)
  %i = s32[] parameter(1)
  %x = f32[64] parameter(2)
  %zero = s32[] constant(0)
  %one = f32[1,64] dynamic-slice(%stack, %i, %zero), dynamic_slice_sizes={1,64}
  %row = f32[64] bitcast(%one)
  ROOT %sum = f32[64] add(%row, %x)
}
%updated (stack: f32[8,64], i: s32[], x: f32[64]) -> f32[8,64] {
  %stack = f32[8,64] parameter(0)
  %x = f32[64] parameter(2)
  %row = f32[1,64] bitcast(%x)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %new = f32[8,64] dynamic-update-slice(%stack, %row, %i, %zero)
}
ENTRY %main (stack: f32[8,64], i: s32[], x: f32[64]) -> f32[8,64] {
  %stack = f32[8,64]{1,0:T(8,128)} parameter(0)
  %i = s32[]{:T(128)} parameter(1)
  %x = f32[64]{0:T(128)} parameter(2)
  %y = f32[64]{0:T(128)} fusion(%stack, %i, %x), kind=kLoop, calls=%sliced
  %both = (f32[64], /*index=1*/s32[]) tuple(%y, %i)
  ROOT %z = f32[8,64]{1,0:T(8,128)} fusion(%stack, %i, %y), kind=kLoop, calls=%updated
}
"""


def test_of_slices_and_updates_only_the_part_is_moved():
    module = parse_module(FUSIONS)
    work = {i.name: ModuleWork(module).of(i, module.entry) for i in module.entry.instructions}
    row, padded = 64 * 4, 128 * 4
    assert work["y"].moved_bytes == padded + 2 * row + 4, "a row of the stack, index, x and result"
    assert work["y"].operations == {"float32": 64}
    assert work["z"].moved_bytes == padded + row + 4
    assert work["both"].is_scalar and not work["y"].is_scalar


IN_PLACE = """HloModule m
%picked (logits: f32[4,256], labels: s32[4,2]) -> f32[4] {
  %logits = f32[4,256] parameter(0)
  %labels = s32[4,2] parameter(1)
  %exp = f32[4,256] exponential(%logits)
  ROOT %own = f32[4] gather(%exp, %labels), offset_dims={}, slice_sizes={1,1}
}
%corrected (sum: f32[4,256], labels: s32[4,2]) -> f32[4,256] {
  %sum = f32[4,256] parameter(0)
  %labels = s32[4,2] parameter(1)
  %one = f32[] constant(-1)
  %ones = f32[4] broadcast(%one), dimensions={}
  ROOT %new = f32[4,256] scatter(%sum, %labels, %ones), update_window_dims={}, to_apply=%add
}
ENTRY %main (logits: f32[4,256], labels: s32[4,2]) -> f32[4,256] {
  %logits = f32[4,256]{1,0} parameter(0)
  %labels = s32[4,2]{1,0} parameter(1)
  %x = f32[64,64]{1,0} parameter(2)
  %own = f32[4]{0} fusion(%logits, %labels), kind=kLoop, calls=%picked
  %product = (f32[64,64]{1,0}, s8[33554432]{0}) custom-call(%x, %x), \
custom_call_target="__cublas$lt$matmul"
  ROOT %new = f32[4,256]{1,0} fusion(%logits, %labels), kind=kInput, calls=%corrected
}
"""


def test_of_what_is_mapped_and_gathered_or_scattered_to_only_the_windows_are_moved():
    module = parse_module(IN_PLACE)
    moved = {
        i.name: ModuleWork(module).of(i, module.entry).moved_bytes
        for i in module.entry.instructions
    }
    labels = 4 * 2 * 4
    assert moved["own"] == 4 * 4 + 4 * 4 + labels, "four elements, as many results, the labels"
    assert moved["new"] == 2 * 4 * 32 + labels, "four sectors, read and written"


def test_the_workspace_of_a_library_is_not_moved():
    module = parse_module(IN_PLACE)
    product = module.entry.by_name["product"]
    assert ModuleWork(module).of(product, module.entry).moved_bytes == 3 * 64 * 64 * 4


NESTED = """HloModule m
%viewed (x: bf16[64,8,8]) -> bf16[64,64] {
  %x = bf16[64,8,8] parameter(0)
  ROOT %view = bf16[64,64] bitcast(%x)
}
%multiplied (mask: pred[64,64], x: bf16[64,8,8]) -> f32[64,64] {
  %mask = pred[64,64] parameter(0)
  %x = bf16[64,8,8] parameter(1)
  %rows = bf16[64,64] fusion(%x), kind=kLoop, calls=%viewed
  ROOT %product = f32[64,64] dot(%mask, %rows), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY %main (mask: pred[64,64], x: bf16[64,8,8]) -> f32[64,64] {
  %mask = pred[64,64]{1,0} parameter(0)
  %x = bf16[64,8,8]{2,1,0} parameter(1)
  ROOT %y = f32[64,64]{1,0} fusion(%mask, %x), kind=kOutput, calls=%multiplied
}
"""


@pytest.mark.parametrize(
    ("tile", "operations"),
    [
        ('"1","1","16","128"', 0.0),
        ('"1","16","1","128"', 150.0),
        ('"1","8","2","128"', 75.0),
        ('"1","8","2"', 75.0),  # The reduced rows are not part of the result's tile.
    ],
)
def test_rows_of_several_matrices_in_one_tile_are_waited_for(tile: str, operations: float):
    rows = "f32[4,16,64,128]" if tile.count(",") == 3 else "f32[4,16,64]"
    root = "x" if tile.count(",") == 3 else "sums"
    config = f'"block_level_fusion_config":{{"output_tiles":[{{"sizes":[{tile}]}}]}}'
    text = f"""
HloModule jit_step
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}
fused {{
  x = f32[4,16,64,128]{{3,2,1,0}} parameter(0)
  zero = f32[] constant(0)
  sums = f32[4,16,64]{{2,1,0}} reduce(x, zero), dimensions={{3}}, to_apply=add
  ROOT found = {rows} negate({root})
}}
ENTRY main {{
  x = f32[4,16,64,128]{{3,2,1,0}} parameter(0)
  ROOT softmax = {rows} fusion(x), kind=kCustom, calls=fused, {config}
}}
"""
    module = parse_module(text)
    work = ModuleWork(module)
    entry, without = module.entry, parse_module(text.replace("output_tiles", "tiles"))
    found = work.of(entry.by_name["softmax"], entry).operations["float32"]
    plain = ModuleWork(without).of(without.entry.by_name["softmax"], without.entry)
    assert found - plain.operations["float32"] == operations * 4 * 16 * 64 * 128


def test_masks_are_multiplied_in_the_type_of_the_other_operand():
    module = parse_module(NESTED)
    work = ModuleWork(module).of(module.entry.root, module.entry)
    assert work.matmul_flops == {"bfloat16": 2 * 64**3}


def test_what_a_nested_fusion_only_views_is_read_by_its_reader():
    module = parse_module(NESTED)
    work = ModuleWork(module).of(module.entry.root, module.entry)
    assert work.moved_bytes == 64 * 64 * (1 + 2 + 4)


def test_types_have_the_names_of_numpy():
    names = [numpy_name(n) for n in ("f32", "bf16", "s8", "u4", "pred", "f8e4m3fn")]
    assert names == ["float32", "bfloat16", "int8", "uint4", "bool", "float8_e4m3fn"]


@given(
    lhs=st.integers(1, 9),
    out=st.integers(1, 9),
    window=st.integers(1, 12),
    stride=st.integers(1, 3),
    pad=st.integers(-3, 6),
    lhs_dilate=st.integers(1, 4),
    rhs_dilate=st.integers(1, 6),
)
def test_products_of_a_convolution_are_counted(
    lhs: int, out: int, window: int, stride: int, pad: int, lhs_dilate: int, rhs_dilate: int
):
    pairs = itertools.product(range(out), range(window))
    places = [o * stride + w * rhs_dilate - pad for o, w in pairs]
    met = [p for p in places if 0 <= p <= (lhs - 1) * lhs_dilate and p % lhs_dilate == 0]
    assert valid_positions(lhs, out, window, stride, pad, lhs_dilate, rhs_dilate) == len(met)


def test_windows_as_long_as_a_batch_of_products_take_no_memory():
    """XLA:TPU makes one of a batch of matmuls; all pairs of these would take 32 GiB."""
    assert valid_positions(65536, 65536, 65536, 65535, 65535, 65536, 1) == 65536
