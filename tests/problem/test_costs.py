"""The times of single units, against arithmetic by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from kiwi.hlo.large_operators import has_matmul
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.memory.timeline import Buffer
from kiwi.mesh import DeviceMesh, hardware
from kiwi.problem.costs import UnitWork
from kiwi.problem.unit_memory import lent_again
from tests.helpers.planning import array, kernels_of, unit_with, units_of

MIB = 2**20
GPU = hardware("h100-sxm")
ROWS, WIDTH = 4096, 1024
MATMUL = array(ROWS, WIDTH), array(WIDTH, WIDTH)
SQUARE_BYTES, OPERAND_BYTES = 4 * ROWS * WIDTH, 4 * WIDTH * WIDTH
ONE_PASS_SECONDS = SQUARE_BYTES / GPU.sustained_memory_bytes_per_second
MATMUL_SECONDS = 2 * ROWS * WIDTH**2 / GPU.matmul_flops_per_second("float32")


def seconds(units: UnitGraph, unit: Unit, profile: str = "h100-sxm") -> float:
    work = UnitWork.of(kernels_of(units, profile), unit, DeviceMesh.create((1,), profile))
    result_bytes = sum(units.graph.program.values[o].size_bytes for o in unit.outputs)
    return work.price({}, work.read_bytes, result_bytes).seconds


@pytest.mark.parametrize(
    ("behind", "kernels"),
    [
        (lambda y, b: y, 1),
        (lambda y, b: y + b, 1),
        (lambda y, b: jnp.maximum(y, 0.0), 2),
    ],
    ids=["matmul", "bias", "relu"],
)
def test_on_gpus_maps_behind_a_matmul_but_additions_are_a_kernel_of_their_own(behind, kernels):
    arguments = *MATMUL, array(WIDTH)
    units = units_of(lambda x, w, b: behind(x @ w, b), *arguments)
    (unit,) = units.units
    moved = (2 * SQUARE_BYTES + OPERAND_BYTES) / GPU.sustained_memory_bytes_per_second
    expected = kernels * GPU.kernel_launch_seconds + max(MATMUL_SECONDS, moved)
    expected += 2 * ONE_PASS_SECONDS * (kernels - 1)
    assert seconds(units, unit) == pytest.approx(expected, rel=2e-2)
    plain = units_of(lambda x, w: x @ w, *arguments[:2])
    alone = seconds(plain, plain.units[0], "v5e")
    assert seconds(units, unit, "v5e") == pytest.approx(alone, rel=0.01)


def test_a_bias_waits_for_partial_sums():
    """Then no matmul adds it: a kernel reads the sums and writes them again."""
    units = units_of(lambda x, w, b: x @ w + b, *MATMUL, array(WIDTH))
    (unit,) = units.units
    work = UnitWork.of(kernels_of(units), unit, DeviceMesh.create((8,), "h100-sxm"))
    (summed,) = unit.rule.reduction
    read = work.read_bytes
    whole, partial = (work.price({summed: n}, read, SQUARE_BYTES).seconds for n in (1, 8))
    moved = (sum(read) + 3 * SQUARE_BYTES) / GPU.sustained_memory_bytes_per_second
    assert partial == pytest.approx(2 * GPU.kernel_launch_seconds + moved, rel=1e-3)
    assert whole == pytest.approx(GPU.kernel_launch_seconds + MATMUL_SECONDS, rel=2e-2)


def test_of_what_is_sliced_the_slices_are_read():
    units = units_of(lambda x: jnp.sin(x[:8]) + x[8:16], array(ROWS, WIDTH))
    (unit,) = units.units
    slices_bytes = 3 * 4 * 8 * WIDTH  # two that are read, one result
    moved = slices_bytes / GPU.sustained_memory_bytes_per_second
    assert seconds(units, unit) == pytest.approx(GPU.kernel_launch_seconds + moved, rel=1e-3)


@pytest.mark.parametrize(
    ("profile", "lent_bytes"),
    [("h100-sxm", 32 * MIB), ("h200-sxm", 32 * MIB), ("a100-sxm", 4 * MIB)],
)
@pytest.mark.usefixtures("cublas_is_lent_its_workspace")
def test_cublas_is_lent_a_workspace(profile: str, lent_bytes: int):
    units = units_of(lambda x, w: x @ w, array(64, 64), array(64, 64))
    lent = kernels_of(units, profile)[0].workspace
    assert lent.buffers({}, [0, 0], 0) == (lent_bytes,)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (array(64, 64), array(64)),
        (array(64, 64, dtype="int8"), array(64, 64, dtype="int8")),
        (array(4, 4), array(4, 4)),
    ],
    ids=["vector", "integers", "small"],
)
@pytest.mark.usefixtures("cublas_is_lent_its_workspace")
def test_what_xla_generates_itself_is_lent_nothing(x, w):
    units = units_of(lambda x, w: x @ w, x, w)
    unit = unit_with(units, "dot_general")
    assert kernels_of(units, GPU)[unit.index].workspace.buffers({}, [0, 0], 0) == ()
    matmul = units_of(lambda x, w: x @ w, array(64, 64), array(64, 64))
    nobody = replace(GPU, name="described by nobody")
    assert kernels_of(matmul, nobody)[0].workspace.buffers({}, [0, 0], 0) == ()


@pytest.mark.usefixtures("cublas_is_lent_its_workspace")
def test_what_a_matmul_is_recomputed_for_is_lent_one():
    """Unless it multiplies, too; nothing is lent where something else is recomputed."""

    def loss(w, x):
        return jnp.sin(jnp.tanh(jnp.cos(x)) @ w).sum()

    units = units_of(lambda w, x: jax.grad(loss, (0, 1))(w, x), array(64, 64), array(64, 64))
    multiplying = [u.index for u in units.units if has_matmul(units, u)]
    product, reader = multiplying[0], multiplying[0] + 1
    assert reader not in multiplying
    first, other = units.units[product], units.units[reader]
    kernels = kernels_of(units, GPU)
    assert lent_again(kernels, [(first, [reader, multiplying[1], None])]) == {
        reader: Buffer(reader, reader + 1, 32 * MIB, "result", reader)
    }
    assert lent_again(kernels, [(other, [product]), (first, ())]) == {}


def test_on_tpus_functions_are_computed_beside_a_matmul():
    """In whichever takes longer; on GPUs in kernels of their own."""
    arguments = array(ROWS, WIDTH), array(WIDTH, WIDTH)
    plain = units_of(lambda x, w: x @ w, *arguments)
    mapped = units_of(lambda x, w: jnp.maximum(x @ w, 0.0), *arguments)
    found = [seconds(units, units.units[0], "v5e") for units in (plain, mapped)]
    assert found[0] == found[1]
    work = UnitWork.of(kernels_of(mapped, "v5e"), mapped.units[0], DeviceMesh.create((1,), "v5e"))
    assert work.functions and len(work.work) == 1
