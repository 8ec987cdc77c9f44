"""Kinds, bytes and mesh axes of collectives in HLO text, as XLA:CPU and XLA:GPU write it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.problem.predicted_collectives import unforeseen
from kiwi.xla.read.collectives import (
    AxisUse,
    CollectiveUse,
    by_kind,
    read_axis_uses,
    replica_groups,
)
from kiwi.xla.read.hlo_text import parse_module


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
        (
            "%s = ((f32[4]{0}, f32[8]{0}), (f32[16]{0}, f32[32]{0})) all-gather-start(%x, %y)",
            "all-gather",
            (16 + 32) * 4,
        ),
        (
            "%s = ((f32[16,8]{1,0}), f32[8,8]{1,0}) reduce-scatter-start(%x), channel_id=2",
            "reduce-scatter",
            16 * 8 * 4,
        ),
        (
            "%s = ((f32[16,8]{1,0}), f32[16,8]{1,0}) all-to-all-start(%x), channel_id=2",
            "all-to-all",
            16 * 8 * 4,
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
    uses = read_axis_uses(parse_module("  " + line), (2, 4), ("x", "y"))
    assert by_kind(uses) == {kind: CollectiveUse(1, expected_bytes)}


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
    assert read_axis_uses(parse_module(line), (2, 4), ("x", "y")) == ()


def test_occurrences_add_up():
    line = "%x = f32[4]{0} all-reduce(%y), replica_groups={{0,1,2,3},{4,5,6,7}}\n"
    expected = (AxisUse("all-reduce", ("y",), 3, 48),)
    assert read_axis_uses(parse_module(line * 3), (2, 4), ("x", "y")) == expected


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ("y",)),
        ("{{3,2,1,0},{7,6,5,4}}", ("y",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", ("x",)),
        ("{{0,1,2,3,4,5,6,7}}", ("x", "y")),
        ("{}", ("x", "y")),
        ("[2,4]<=[8]", ("y",)),
        ("[4,2]<=[2,4]T(1,0)", ("x",)),
        ("[1,8]<=[8]", ("x", "y")),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ("y",)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", ("x",)),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", ("x", "y")),
        ("mesh['a'=8] {'a':(1)2}", ("x",)),
        ("mesh['a'=8] {'a':(2)4}", ("y",)),
        ("mesh['axis_0'=1,'axis_1'=4,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", ("y",)),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", ("x",)),
        ("mesh['a'=2,'b'=4], device_ids=(0,4,1,5,2,6,3,7) {'a'}", None),
        ("mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", ("x",)),
        ("{{0,1},{2,3},{4,5},{6,7}}", None),
        ("[4,2]<=[8]", None),
        ("some_later_spelling(4)", None),
    ],
)
def test_replica_groups_tell_the_axes(groups: str, axes: tuple[str, ...] | None):
    line = f"%a = f32[4]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}, to_apply=%add"
    uses = read_axis_uses(parse_module(line), (2, 4), ("x", "y"))
    assert uses == (AxisUse("all-reduce", axes, 1, 16),)


@pytest.mark.parametrize(
    ("pairs", "axes"),
    [
        ("{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", ("y",)),
        ("{{0,4},{4,0},{1,5},{5,1}}", ("x",)),
        ("{{0,0},{1,4},{4,1}}", ("x", "y")),
    ],
)
def test_a_permutation_runs_along_the_axes_in_which_its_pairs_differ(pairs: str, axes):
    line = f"%p = f32[4]{{0}} collective-permute(%x), channel_id=1, source_target_pairs={pairs}"
    uses = read_axis_uses(parse_module(line), (2, 4), ("x", "y"))
    assert uses == (AxisUse("collective-permute", axes, 1, 16),)


def test_collectives_over_groups_of_one_device_are_none():
    line = "%a = f32[4]{0} all-reduce(%x), replica_groups={{0},{1},{2},{3}}, to_apply=%add"
    assert read_axis_uses(parse_module(line), (2, 2), ("x", "y")) == ()


def test_the_three_spellings_of_groups_agree():
    spellings = (
        "replica_groups={{0,4},{1,5},{2,6},{3,7}}",
        "replica_groups=[4,2]<=[2,4]T(1,0)",
        "replica_groups=mesh['a'=2,'b'=4] {'a'}",
    )
    expected = frozenset(frozenset({k, k + 4}) for k in range(4))
    assert [replica_groups(s, 8) for s in spellings] == [expected] * 3


@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (2, 2, 2)])
def test_compiled_sums_run_along_the_axes_that_they_sum_over(shape: tuple[int, ...], make_mesh):
    names = ("x", "y", "z")[: len(shape)]
    mesh = make_mesh(*shape, axis_names=names)
    array = jax.ShapeDtypeStruct((8,) * len(shape), "float32")
    split = NamedSharding(mesh, PartitionSpec(*names))
    whole = NamedSharding(mesh, PartitionSpec())
    for dim, name in enumerate(names):
        kept = PartitionSpec(*(n for n in names if n != name))
        summed = jax.jit(
            lambda x, dim=dim: jnp.sum(x, axis=dim),
            in_shardings=split,
            out_shardings=NamedSharding(mesh, kept),
        )
        uses = read_axis_uses(parse_module(summed.lower(array).compile().as_text()), shape, names)
        assert [(u.kind, u.axes) for u in uses] == [("all-reduce", (name,))]
    gathered = jax.jit(lambda x: x * 2, in_shardings=split, out_shardings=whole)
    uses = read_axis_uses(parse_module(gathered.lower(array).compile().as_text()), shape, names)
    assert {axes for u in uses for axes in (u.axes or ())} == set(names)
    assert all(u.kind == "all-gather" for u in uses)


def test_what_was_not_planned_is_unforeseen():
    planned = [AxisUse("all-gather", ("x",), 2, 1000), AxisUse("reduce-scatter", ("y",), 1, 500)]
    compiled = [
        AxisUse("all-gather", ("x",), 3, 1400),
        AxisUse("all-reduce", ("y",), 1, 500),
        AxisUse("all-to-all", None, 1, 300),
        AxisUse("all-reduce", ("x",), 1, 4),
    ]
    assert unforeseen(planned, compiled) == (
        AxisUse("all-reduce", ("y",), 1, 500),
        AxisUse("all-gather", ("x",), 1, 400),
        AxisUse("all-to-all", None, 1, 300),
    )
    assert unforeseen(planned, planned) == ()
