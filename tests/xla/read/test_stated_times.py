"""Times that compilers state, read from the text of programs."""

import pytest

from kiwi.xla.read.stated_times import gpu_seconds, timed_scope, tpu_cycles

TPU = """HloModule step, is_scheduled=true

%fused (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0), metadata={op_name="jit(f)/timed_0/mul"}
  %one = f32[8]{0} fusion(%a), calls=%fused, metadata={op_name="jit(f)/timed_0/mul"}, \
backend_config={"window_config":{"estimated_cycles":"120"}}
  %two = f32[8]{0} fusion(%one), calls=%fused, metadata={op_name="jit(f)/timed_0/add"}, \
backend_config={"window_config":{"estimated_cycles":"30"}}
  %three = f32[8]{0} fusion(%two), calls=%fused, metadata={op_name="jit(f)/timed_10/add"}, \
backend_config={"window_config":{"estimated_cycles":"7"}}
  %four = f32[8]{0} custom-call(%three), metadata={op_name="jit(f)/timed_2/gather"}
  %five = f32[8]{0} fusion(%four), calls=%fused, metadata={op_name="jit(f)/timed_2/gather"}, \
backend_config={"window_config":{"estimated_cycles":"9"}}
  ROOT %six = f32[8]{0} fusion(%five), calls=%fused, metadata={op_name="jit(f)/other"}, \
backend_config={"window_config":{"estimated_cycles":"11"}}
}
"""


def test_cycles_are_added_by_scope_and_parts_are_left_out():
    # The custom call states nothing, so that nothing is known of function 2.
    assert tpu_cycles(TPU) == {0: 150.0, 10: 7.0}
    assert timed_scope(10) == "timed_10"


def cost(*rows):
    stated = (
        f'{{"end_to_end_cycles":1.5,"exec_time_us":{us},"compute_time_us":0,"name":"{name}"}}'
        for us, name in rows
    )
    return f'backend_config={{"reification_cost":[{",".join(stated)}]}}'


GPU = f"""HloModule step, is_scheduled=true

%fused (p: f32[8]) -> f32[8] {{
  ROOT %p = f32[8]{{0}} parameter(0)
}}

%scatter (q: f32[8]) -> f32[4] {{
  %q = f32[8]{{0}} parameter(0)
  ROOT %rs = f32[4]{{0}} reduce-scatter(%q), to_apply=%add, {cost((40, "sol"))}
}}

ENTRY %main (a: f32[8]) -> f32[4] {{
  %a = f32[8]{{0}} parameter(0)
  %map = f32[8]{{0}} fusion(%a), calls=%fused, metadata={{op_name="jit(f)/timed_0/mul"}}, \
{cost((2.5, ""), (2.0, "sol"))}
  %dot = f32[8]{{0}} fusion(%map), calls=%fused, metadata={{op_name="jit(f)/timed_1/dot"}}, \
{cost((900, ""), (800, "experimental-gemm-cost-model"), (7e1, "sol"))}
  %cublas = f32[8]{{0}} custom-call(%dot), metadata={{op_name="jit(f)/timed_2/dot"}}
  %start = ((f32[8]{{0}}), f32[4]{{0}}) async-start(%cublas), calls=%scatter, \
metadata={{op_name="jit(f)/timed_3/reduce_scatter"}}
  ROOT %done = f32[4]{{0}} async-done(%start), metadata={{op_name="jit(f)/timed_3/reduce_scatter"}}
}}
"""


def test_kernels_take_their_model_and_matmuls_and_collectives_the_tables():
    assert gpu_seconds(GPU) == pytest.approx({0: 2.5e-6, 1: 70e-6, 3: 40e-6})
