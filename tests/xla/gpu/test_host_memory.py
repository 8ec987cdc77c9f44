"""Offloaded values leave the device's memory in programs that XLA:GPU compiles."""

import pytest

import kiwi
from kiwi.xla.compilers import compile_for
from tests.helpers.offloading import all_as, arrays, perceptron
from tests.xla.gpu.test_compiler import needs_compiler


@needs_compiler
def test_offloaded_values_leave_the_device():
    """With the few barriers that a plan begins with; copies begin at once, and each ends where the
    next one is due."""
    step, given = perceptron(8, is_scanned=False), arrays(8, 512, 16384)
    options = {"profile": "h100-sxm", "verify": "cuda", "donate_argnums": 0}
    kept, plan = (all_as(step, given, name, **options) for name in ("keep", "offload"))
    found, before = (compile_for("cuda", each.step) for each in (plan, kept))
    assert found.host_peak_bytes == plan.estimate.host_peak_bytes
    assert found.temporary_bytes < 0.6 * before.temporary_bytes
    assert found.time is not None and before.time is not None
    kernels = found.time.compute_seconds
    assert kernels == pytest.approx(before.time.compute_seconds, rel=0.02)


def test_elements_that_scans_stack_stay_on_the_device():
    plan = all_as(
        perceptron(2, is_scanned=True), arrays(2, 256, 8192), "offload", profile="h100-sxm"
    )
    assert not plan.execution.fetched


@needs_compiler
def test_arguments_on_the_host_are_on_the_device_while_they_are_read():
    """XLA:GPU has to be told where arguments lie: else kernels read the host's memory in place."""
    step, given = perceptron(4, is_scanned=False), arrays(4, 1024, 4096)
    options = {"profile": "h100-sxm", "mesh_shape": (2,), "verify": "cuda", "donate_argnums": 0}
    kinds = (kiwi.Constraints(memory_kinds={"ws": kind}) for kind in ("device", "pinned_host"))
    kept, found = (kiwi.plan(step, *given, constraints=each, **options) for each in kinds)
    assert found.compiled is not None and kept.compiled is not None
    assert found.compiled.host_peak_bytes == found.estimate.host_peak_bytes > 0
    read_bytes = found.compiled.temporary_bytes - kept.compiled.temporary_bytes
    assert read_bytes >= found.compiled.host_peak_bytes
