"""What is offloaded leaves the device's memory in the programs that XLA:TPU compiles."""

from importlib.util import find_spec

import pytest

from kiwi.xla.tpu.compiler import TPU
from tests.helpers.offloading import all_as, arrays, perceptron

pytestmark = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the extra aot-tpu is not installed"
)


@pytest.mark.parametrize("is_scanned", [True, False])
def test_offloaded_values_leave_the_device(is_scanned: bool):
    step, given = perceptron(8, is_scanned=is_scanned), arrays(8, 512, 16384)
    plan = all_as(step, given, "offload", verify="tpu", donate_argnums=0)
    compiled = TPU.compile(plan.step)
    assert compiled.host_peak_bytes == pytest.approx(plan.estimate.host_peak_bytes, rel=0.05)
    assert plan.estimate.peak_bytes == pytest.approx(compiled.peak_bytes, rel=0.25)
