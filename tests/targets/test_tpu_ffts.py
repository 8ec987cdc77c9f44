"""The stages of FFTs on TPUs: what they move and hold."""

import jax
import jax.numpy as jnp
import pytest

from kiwi.targets.rules.tpu.tpu_ffts import stages
from tests.helpers.planning import array, kernels_of, units_of

ROWS = 64


@pytest.mark.parametrize(
    ("length", "count"),
    [(64, 1), (256, 1), (1000, 1), (1024, 2), (4096, 2), (128 * 128 * 8, 3)],
)
def test_a_long_transform_has_a_stage_for_each_factor_of_128(length, count):
    assert stages(length) == count


def kernel_of(function, *arguments):
    """The kernel of the only transform of a function."""
    units = units_of(function, *arguments)
    (unit,) = (
        unit
        for unit in units.units
        if any(units.graph.program.equations[k].name == "fft" for k in unit.equations)
    )
    return kernels_of(units, "v5e")[unit.index]


def test_stages_move_and_hold_multiples_of_the_real_part():
    kernel = kernel_of(lambda x: jnp.fft.rfft(x), array(ROWS, 4096))
    real_bytes = ROWS * 4096 * 4
    (moved,) = kernel.moved_beside
    assert moved.bytes == 24 * real_bytes
    result_bytes = ROWS * 2049 * 8
    (held,) = kernel.workspace.buffers({}, (real_bytes,), result_bytes)
    assert held == pytest.approx(3 * real_bytes, rel=1e-6)


def test_each_dimension_of_a_transform_has_its_stages():
    kernel = kernel_of(lambda x, y: jnp.fft.fft2(jax.lax.complex(x, y)), *[array(4, 512, 256)] * 2)
    (moved,) = kernel.moved_beside
    assert moved.bytes == (21 + 0) * 4 * 512 * 256 * 4
