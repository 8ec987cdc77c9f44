"""Collectives and memory as read from compiled programs."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.plan.compiled import CollectiveUse, read_collectives, read_compiled


@pytest.mark.parametrize(
    ("line", "kind", "expected_bytes"),
    [
        (
            "%ar = f32[4,8]{1,0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%add",
            "all-reduce",
            4 * 8 * 4,
        ),
        (
            "ROOT %t = (f32[4]{0}, bf16[8]{0}) all-reduce(%x, %y), replica_groups=[2,4]<=[8]",
            "all-reduce",
            4 * 4 + 8 * 2,
        ),
        ("%ag = bf16[16]{0} all-gather(%x), dimensions={0}", "all-gather", 32),
        (
            "%s = (f32[4]{0}, f32[16]{0}) all-gather-start(%x), dimensions={0}",
            "all-gather",
            16 * 4,
        ),
        (
            "%p = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%x)",
            "collective-permute",
            4 * 4,
        ),
        ("%r = f32[4]{0} all-reduce-start(%x), replica_groups={{0,1}}", "all-reduce", 16),
        (
            "%rs = f32[2,8]{1,0} reduce-scatter(%x), replica_groups={{0,1,2,3},{4,5,6,7}}",
            "reduce-scatter",
            2 * 8 * 4 * 4,
        ),
        (
            "%rs = f32[2,8]{1,0} reduce-scatter(%x), replica_groups=[4,2]<=[8], dimensions={0}",
            "reduce-scatter",
            2 * 8 * 4 * 2,
        ),
        (
            "%aa = (f32[2]{0}, f32[2]{0}) all-to-all(%x, %y), replica_groups={{0,1}}",
            "all-to-all",
            2 * 2 * 4,
        ),
        ("%ag = pred[64]{0} all-gather(%x)", "all-gather", 64),
        ("%ag = f8e4m3fn[64]{0} all-gather(%x)", "all-gather", 64),
        ("%ag = c64[4]{0} all-gather(%x)", "all-gather", 32),
        ("%ag = s4[64]{0} all-gather(%x)", "all-gather", 32),
        ("%ag = f32[] all-reduce(%x)", "all-reduce", 4),
    ],
)
def test_a_collective_is_read_with_the_larger_buffer(line: str, kind: str, expected_bytes: int):
    assert read_collectives("  " + line) == {kind: CollectiveUse(1, expected_bytes)}


@pytest.mark.parametrize(
    "line",
    [
        "%d = f32[16]{0} all-gather-done(%s)",
        "%add = f32[4]{0} add(%all-reduce.1, %y)",
        "%g = f32[4]{0} get-tuple-element(%all-to-all), index=0",
        "",
    ],
)
def test_lines_that_only_mention_a_collective_do_not_count(line: str):
    assert read_collectives(line) == {}


def test_occurrences_add_up():
    line = "%x = f32[4]{0} all-reduce(%y)\n"
    assert read_collectives(line * 3) == {"all-reduce": CollectiveUse(3, 48)}


def test_a_compiled_program_is_read(make_mesh):
    mesh = make_mesh(8)
    rows = NamedSharding(mesh, PartitionSpec("x"))
    whole = NamedSharding(mesh, PartitionSpec())

    def total(x):
        return jnp.sum(x, axis=0)

    shape = jax.ShapeDtypeStruct((64, 32), "float32")
    compiled = jax.jit(total, in_shardings=rows, out_shardings=whole).lower(shape).compile()
    program = read_compiled(compiled, "cpu", 1.5)
    assert (program.target, program.compile_seconds) == ("cpu", 1.5)
    assert program.argument_bytes == 64 // 8 * 32 * 4 and program.output_bytes == 32 * 4
    assert program.collectives == {"all-reduce": CollectiveUse(1, 32 * 4)}
    assert program.collective_bytes == 32 * 4
    held = program.argument_bytes + program.output_bytes + program.temporary_bytes
    assert program.peak_bytes == held - program.alias_bytes


def test_a_donated_argument_is_counted_once():
    shape = jax.ShapeDtypeStruct((64, 32), "float32")
    plain = jax.jit(lambda x: x + 1).lower(shape).compile()
    donated = jax.jit(lambda x: x + 1, donate_argnums=0).lower(shape).compile()
    before, after = (read_compiled(c, "cpu", 0.0).peak_bytes for c in (plain, donated))
    assert before - after == 64 * 32 * 4
