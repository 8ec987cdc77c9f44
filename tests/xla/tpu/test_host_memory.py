"""What is offloaded leaves the device's memory in the programs that XLA:TPU compiles."""

from importlib.util import find_spec

import pytest

from kiwi.xla.compile.worker import answer_elsewhere
from kiwi.xla.tpu.compiler import TPU
from tests.helpers.offloading import all_as, arrays, perceptron
from tests.helpers.tpu_code import generated

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


def test_code_is_generated_for_slices_of_the_buffer():
    """XLA:TPU refuses slices of several dimensions only when it generates code, after the check."""
    step, given = perceptron(2, is_scanned=False), arrays(2, 512, 4096)
    plan = all_as(step, given, "offload", 2**29, mesh_shape=(2, 2))
    assert plan.residency_counts()["offload"] > 0
    assert not answer_elsewhere(generated, plan.step, "tpu")
