"""Every operator of the examples has a price. Operators without costs only move data."""

import jax
import pytest

from examples._compare import EXAMPLES, Training
from kiwi.calls.signature import JitOptions, bind
from kiwi.hlo.costs import FREE_OPCODES
from kiwi.hlo.loops import CARRY, RESULT, SLICE
from kiwi.mesh import DeviceMesh, hardware
from kiwi.planners.planning import trace_call
from kiwi.problem.costs import UnitWork
from tests.helpers.planning import kernels_of

MET_FREE = {
    "bitcast_convert",
    "broadcast_in_dim",
    "concatenate",
    "constant",
    "convert",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "iota",
    "pad",
    "reshape",
    "slice",
    "transpose",
}


QUICK = ("flax_linen_gpt", "moe_all_to_all", "accumulation")
ALL = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in EXAMPLES]


@pytest.mark.parametrize("name", ALL)
def test_operators_of_the_examples_are_priced(name):
    training = Training.of(name)
    state = jax.eval_shape(training.make_state)
    call = bind(training.step, JitOptions(), (state, training.batch), {})
    units = trace_call(call, open_loops=True).units
    graph = units.graph
    for operator in graph.operators:
        assert operator.flops > 0 or operator.opcode in FREE_OPCODES, operator.opcode
    free = {op.opcode for op in graph.operators if not op.flops}
    assert free <= MET_FREE
    assert all(info.flops > 0 for info in graph.equations if info.is_region)
    mesh = DeviceMesh.create((2, 4), hardware("h100-sxm"))
    kernels = kernels_of(units)
    for unit in units.units:
        if units.border(unit) in (CARRY, RESULT, SLICE):
            continue  # already in place, or read there by the kernels of the iteration
        work = UnitWork.of(kernels, unit, mesh)
        seconds = work.price({}, work.read_bytes, 4).seconds
        assert seconds > 0, graph.opcode_of(unit.root)
