"""Units priced by a profile table with made-up figures."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.mesh import CATALOGUE, CollectiveEntry, Environment, OperatorEntry, ProfileTable
from kiwi.mesh.profile_entries import ARITHMETIC, ELEMENTWISE, STREAM, STREAM_DTYPE, Provenance
from kiwi.problem.library_calls import library_calls
from kiwi.problem.recorded_seconds import RecordedWork

LAUNCH = 1e-6
HARDWARE = replace(CATALOGUE["cpu"], analytic=False, kernel_launch_seconds=LAUNCH)
WHERE = Environment("a processor", "0.10.2", "none", "2026-11-21")


def stream(size, seconds):
    return OperatorEntry(STREAM, "", STREAM_DTYPE, ((size,),), 0.0, size, seconds, 0.1)


def function(opcode, size, seconds):
    shapes = ((size,),)
    return OperatorEntry(opcode, ELEMENTWISE, "float32", shapes, float(size), 0, seconds, 0.1)


SIZE = 64 * 32
STREAMS = (stream(4 * SIZE, 3e-6), stream(16 * SIZE, 9e-6))
FUNCTIONS = (function("tanh", SIZE, 5e-6), function(ARITHMETIC, SIZE, 1e-7))
TABLE = ProfileTable(HARDWARE, (*STREAMS, *FUNCTIONS), environment=WHERE)
X = jax.ShapeDtypeStruct((64, 32), "float32")
W = jax.ShapeDtypeStruct((32, 16), "float32")


def only_unit(fun, *args):
    units = kiwi.jit(fun, mesh_shape=(1,)).traced(*args).units
    (unit,) = units.units
    return units, unit


def test_a_kernel_takes_launch_traffic_and_functions():
    work = RecordedWork.of(*only_unit(lambda x: jnp.tanh(x) * 2 + 1, X), TABLE)
    found = work.price({}, 16 * SIZE)
    assert found.seconds == pytest.approx(LAUNCH + (9e-6 - LAUNCH) + 5e-6 + 2 * 1e-7)
    assert found.provenance is Provenance.MEASURED
    # Between the two streams, linear in logarithms.
    between = work.price({}, 8 * SIZE).seconds - found.seconds
    assert between == pytest.approx((3e-6 * 9e-6) ** 0.5 - 9e-6)


def test_functions_on_half_of_the_elements_take_half_the_time():
    units, unit = only_unit(jnp.tanh, X)
    work = RecordedWork.of(units, unit, TABLE)
    rows = unit.rule.reads[0][1][0][0]
    saved = work.price({}, 4 * SIZE).seconds - work.price({rows: 2}, 4 * SIZE).seconds
    assert saved == pytest.approx(2.5e-6)


def test_a_function_that_was_not_measured_is_arithmetic():
    work = RecordedWork.of(*only_unit(jnp.sin, X), TABLE)
    assert work.price({}, 4 * SIZE).seconds == pytest.approx(3e-6 + 1e-7)


def with_call(units, unit, seconds, table=TABLE):
    """Returns the table with the unit's only call, unsharded."""
    (call,) = [c for c in library_calls(units, unit, table.hardware) if c is not None]
    figures = (call.local_shapes({}), call.flops, call.local_bytes({}), seconds, 0.1)
    return table.with_entry(OperatorEntry(*call.known, *figures)), call


def test_a_matmul_takes_its_entry_and_the_traffic_beyond_it():
    units, unit = only_unit(lambda x, w, y: x @ w + y, X, W, jax.ShapeDtypeStruct((64, 16), "f4"))
    table, call = with_call(units, unit, 4e-4)
    work = RecordedWork.of(units, unit, table)
    bare = work.price({}, call.local_bytes({}))
    assert bare.seconds == pytest.approx(4e-4 + 1e-7 * (64 * 16) / SIZE)
    beyond = work.price({}, call.local_bytes({}) + 4 * SIZE).seconds - bare.seconds
    assert beyond == pytest.approx(3e-6 - LAUNCH)


def test_a_reduction_takes_longer_by_what_is_fused_with_it():
    units, unit = only_unit(lambda x, y: (x * y).sum(0), X, X)
    table, call = with_call(units, unit, 1e-4)
    moved = call.local_bytes({}) + 4 * SIZE
    found = RecordedWork.of(units, unit, table).price({}, moved)
    assert found.seconds == pytest.approx(1e-4 * moved / call.local_bytes({}) + 1e-7)


GPU = replace(TABLE, hardware=replace(CATALOGUE["h100-sxm"], analytic=False))


def test_functions_of_a_gpu_are_computed_while_it_reads():
    """A kernel takes its launch and the longer of both; a sum is traffic."""
    hardware = GPU.hardware
    launch, rate = hardware.kernel_launch_seconds, hardware.sustained_memory_bytes_per_second
    units, unit = only_unit(lambda x: jnp.tanh(x).sum(1), X)
    work = RecordedWork.of(units, unit, GPU)
    few, many = (work.price({}, moved).seconds for moved in (4 * SIZE, 2**27))
    added = SIZE / hardware.peak_flops_per_second("float32", matmul=False)
    assert few - launch == pytest.approx(5e-6, rel=2 * added / 5e-6 + 0.03)
    assert many == pytest.approx(launch + 2**27 / rate, rel=0.03)


def products(*rights):
    """Yields matmuls of one size, whose operands have other orders of dimensions."""
    left = jax.ShapeDtypeStruct((4, 8, 32), "float32")
    for subscripts, shape in rights:
        fun = lambda x, w, subscripts=subscripts: jnp.einsum(subscripts, x, w)  # noqa: E731
        yield only_unit(fun, left, jax.ShapeDtypeStruct(shape, "float32"))


def test_a_gpus_matmul_is_that_of_matrices():
    """One entry serves for rows of two dimensions; columns lie first in another one."""
    rows = ("abk,kn->abn", (32, 16)), ("abk,kcd->abcd", (32, 8, 2))
    for units, unit in products(*rows):
        (call,) = [c for c in library_calls(units, unit, GPU.hardware) if c is not None]
        assert call.subscripts == "bmk,bkn->bmn"
        assert call.local_shapes({}) == ((1, 32, 32), (1, 32, 16))
        assert call.result.shape == (1, 32, 16)
    (found,) = products(("abk,nk->abn", (16, 32)))
    table, call = with_call(*found, 7e-5, GPU)
    assert call.subscripts == "bmk,bnk->bmn" and call.operands[1].shape == (1, 16, 32)
    price = RecordedWork.of(*found, table).price({}, call.local_bytes({}))
    assert price.seconds == pytest.approx(7e-5) and price.provenance is Provenance.MEASURED


def test_a_gpus_operands_that_lie_otherwise_are_transposed_apart():
    """The batch of heads lies in the middle: the matmul itself is that of what lies in front."""
    heads = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 8, 32), (8, 32, 16))]
    numbers = ((2,), (1,)), ((1,), (0,))
    units, unit = only_unit(lambda x, w: jax.lax.dot_general(x, w, numbers), *heads)
    (call,) = [c for c in library_calls(units, unit, GPU.hardware) if c is not None]
    assert call.subscripts == "bmk,bkn->bmn" and call.local_shapes({})[0] == (8, 4, 32)
    ((heads_factor,), *_) = call.operands[0].dims
    assert call.local_shapes({heads_factor: 2})[0] == (4, 4, 32)


def collective(axes, devices, seconds):
    return CollectiveEntry("all-gather", devices, "float32", 1024, seconds, 0.1, axes)


def test_collectives_are_those_of_the_axes_or_the_slowest_of_the_length():
    entries = (collective((0,), 2, 5e-5), collective((1,), 2, 2e-5))
    table = replace(TABLE, collectives=entries, mesh_shape=(2, 2))
    along = [table.collective("all-gather", (axis,), (2, 2), 1024, 1.0) for axis in (0, 1)]
    assert [p.seconds for p in along] == [5e-5, 2e-5]
    assert table.collective("all-gather", (1,), (4, 2), 1024, 1.0).seconds == 5e-5
    assert table.collective("all-gather", (0, 1), (2, 2), 1024, 1.0).seconds == 1.0
