"""An array that one loop slices and another loop reads again is resharded before the second loop
starts."""

from importlib.util import find_spec

import pytest

import kiwi
from benchmarks.field.programs import PROGRAMS

needs_compiler = pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None, reason="the extra aot-cuda is not installed"
)


@needs_compiler
def test_no_iteration_of_a_recurrence_gathers_a_whole_stack():
    """Layers scanned around a scan over time, whose backward pass reads keys and values again. A
    gather of all of them in each iteration takes four times the step."""
    program = PROGRAMS["rwkv"]
    step, _ = program.make()
    options = {"mesh_shape": (2, 4), "profile": "h100-sxm", "verify": "cuda", "plan_cache": False}
    plan = kiwi.plan(step, *program.make_args(), donate_argnums=program.donated, **options)
    assert plan.compiled is not None and plan.compiled.step_seconds is not None
    assert plan.compiled.step_seconds < 1.2 * plan.estimate.step_seconds
