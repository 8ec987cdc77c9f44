"""XLA:TPU gathers over several dimensions in the way that `kiwi.mesh.torus` finds cheapest."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import kiwi
from kiwi.mesh import linear_costs
from kiwi.xla.step import ExportedStep
from kiwi.xla.tpu.compiler import TPU, devices_of

pytestmark = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the extra aot-tpu is not installed"
)

RING, AS_ALL_REDUCE, ALL_LINKS = "1DAllGather", "UniDirectionNDRingStrategy", "3DAllGather"


@pytest.mark.parametrize(
    ("profile", "shape", "algorithm"),
    [
        ("v5e", (4, 4), RING),
        ("v5p", (2, 4, 4), RING),
        ("v5p", (4, 4, 4), AS_ALL_REDUCE),
        ("v5p", (2, 2, 2), ALL_LINKS),
    ],
)
def test_an_all_gather_goes_the_way_that_is_priced(profile, shape, algorithm):
    plan = kiwi.plan(
        lambda x: x + 1,
        jax.ShapeDtypeStruct((16384, 1024), "bfloat16"),
        mesh_shape=shape,
        profile=profile,
        verify=None,
        in_shardings=PartitionSpec(("x", "y", "z")[: len(shape)]),
        out_shardings=PartitionSpec(),
    )
    (found,) = TPU.answer(plan.step, algorithms_there)
    assert found.startswith(algorithm)
    # Seconds per byte, in links of a chip: two of a ring, or all there and back.
    axes, rate = range(len(shape)), plan.mesh.links[0].sustained_bytes_per_second
    ways = linear_costs("all-gather", plan.mesh, tuple(axes))
    links = (1 - 1 / prod(shape)) / min(way.seconds_per_byte for way in ways) / rate
    expected = {RING: 2, AS_ALL_REDUCE: 6 / 2, ALL_LINKS: 3}
    assert links == pytest.approx(expected[algorithm])


@pytest.mark.parametrize(
    ("profile", "shape", "kind"),
    [
        ("v5e", (2, 4), "reduce-scatter"),
        ("v5e", (4, 4), "all-reduce"),
        ("v5p", (2, 2, 2), "all-reduce"),
    ],
)
def test_sums_over_a_whole_slice_are_scattered_where_that_is_predicted(profile, shape, kind):
    axes = ("x", "y", "z")[: len(shape)]
    plan = kiwi.plan(
        lambda x, y: (x.T @ x, x.T @ y),
        *[jax.ShapeDtypeStruct((16384, 1024), "float32")] * 2,
        mesh_shape=shape,
        profile=profile,
        topology="x".join(map(str, shape)),
        verify="tpu",
        in_shardings=PartitionSpec(axes),
        out_shardings=PartitionSpec(axes),
    )
    planned, compiled = plan.estimate.collectives, plan.compiled.collectives
    assert set(planned) == set(compiled) == {kind}
    assert planned[kind].bytes == compiled[kind].bytes  # In one or two of them.


@pytest.mark.parametrize(
    ("shape", "cut", "is_whole"),
    [
        ((512, 8 * 384), 1, False),
        ((512, 8 * 256), 1, True),
        ((1024, 8, 64), 0, False),  # The minor dimension.
        ((1024, 8, 128), 0, True),
        ((32, 8192), 0, False),
        ((64, 8192), 0, True),
    ],
)
def test_sums_are_scattered_in_pieces_that_tiles_can_be_cut_into(shape, cut, is_whole):
    """Along another dimension they are moved behind it."""
    summed = shape[0], shape[1:]
    plan = kiwi.plan(
        lambda x, y: jnp.tensordot(x, y, (0, 0)),
        *[jax.ShapeDtypeStruct((16384, *np.atleast_1d(own)), "bfloat16") for own in summed],
        mesh_shape=(2, 4),
        profile="v5e",
        verify="tpu",
        in_shardings=PartitionSpec(("x", "y")),
        out_shardings=PartitionSpec(*[None] * cut, ("x", "y")),
    )
    moved = {"reduce-scatter"} if is_whole else {"reduce-scatter", "all-to-all"}
    assert set(plan.estimate.collectives) == set(plan.compiled.collectives) == moved


def algorithms_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """Returns the strategy, or otherwise the emitter, of each collective in the compiled
    program."""
    text = step.compile(devices_of(step.mesh), TPU.check_options).as_text()
    lines = [line for line in text.splitlines() if '"collective_algorithm_config"' in line]
    pattern = re.compile(r'"strategy":"(\w+)"|"emitter":"(\dD\w+)"')
    return [found[1] or found[2] for line in lines if (found := pattern.search(line))]
