"""What is offloaded leaves the device's memory in the programs that XLA:GPU compiles."""

from dataclasses import replace

import pytest

from kiwi.xla.gpu.compiler import GPU
from tests.helpers.offloading import all_as, arrays, perceptron
from tests.xla.gpu.test_compiler import needs_compiler


@needs_compiler
def test_offloaded_values_leave_the_device():
    """Where every step is tied: with fewer barriers XLA:GPU holds more than with all kept."""
    step, given = perceptron(8, is_scanned=False), arrays(8, 512, 16384)
    options = {"profile": "h100-sxm", "verify": "cuda", "donate_argnums": 0}
    kept, plan = (all_as(step, given, name, **options) for name in ("keep", "offload"))
    tied = replace(plan, execution=replace(plan.execution, tied_steps=None))
    found, few, before = (GPU.compile(each.step) for each in (tied, plan, kept))
    assert found.host_peak_bytes == pytest.approx(plan.estimate.host_peak_bytes, rel=0.05)
    assert found.temporary_bytes < 0.5 * before.temporary_bytes
    assert few.temporary_bytes > before.temporary_bytes


def test_elements_that_scans_stack_stay_on_the_device():
    plan = all_as(
        perceptron(2, is_scanned=True), arrays(2, 256, 8192), "offload", profile="h100-sxm"
    )
    assert not plan.execution.fetched
