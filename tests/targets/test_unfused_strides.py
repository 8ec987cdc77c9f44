"""Slices of every other element and pads between elements are separate kernels on TPUs."""

import jax
import pytest

import kiwi
from kiwi.mesh import DeviceMesh
from kiwi.problem.costs import UnitWork
from tests.helpers.planning import array, kernels_of, units_of
from tests.xla.tpu.test_buffers import needs_compiler

MIB = 2**20


def even_sums(x):
    return x[:, ::2] + x[:, 1::2]


def between(x):
    return jax.lax.pad(2.0 * x, 0.0, [(0, 0, 0), (0, 1, 1)])


def beside(x):
    return x[:, :512] + x[:, 512:]


@pytest.mark.parametrize(
    ("function", "moved", "apart", "kernels"),
    [(even_sums, 12, [8, 8], 3), (between, 12, [8], 2), (beside, 12, [], 1)],
)
def test_strided_kernels_move_what_others_only_go_over(function, moved, apart, kernels):
    """Halves of 4 MiB each are written and read again, or 4 MiB in front of 8."""
    x = array(2048, 1024) if function is not between else array(2048, 512)
    units = units_of(function, x)
    (unit,) = units.units
    result = units.graph.program.values[unit.outputs[0]].size_bytes
    for profile in ("v5e", "h100-sxm"):
        mesh = DeviceMesh.create((1,), profile)
        work, hardware = UnitWork.of(kernels_of(units, profile), unit, mesh), mesh.hardware
        found = work.price({}, work.read_bytes, result).seconds
        is_apart = profile == "v5e"
        seconds = (moved + is_apart * sum(apart)) * MIB / hardware.sustained_memory_bytes_per_second
        seconds += (kernels if is_apart else 1) * hardware.kernel_launch_seconds
        assert found == pytest.approx(seconds, rel=1e-6)


@needs_compiler
def test_an_associative_scan_takes_what_was_planned():
    def step(w, x):
        return jax.lax.associative_scan(lambda a, b: a * 0.5 + b, jax.numpy.tanh(x @ w), axis=1)

    arguments = array(512, 512), array(32, 1024, 512)
    plan = kiwi.plan(step, *arguments, mesh_shape=(4,), profile="v5e", verify="tpu", effort="quick")
    assert plan.compiled is not None and plan.compiled.time is not None
    planned, compiled = plan.estimate.compute_seconds, plan.compiled.time.compute_seconds
    assert planned == pytest.approx(compiled, rel=0.2)
