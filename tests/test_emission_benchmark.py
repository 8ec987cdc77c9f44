"""The benchmark of barriers reads XLA's text correctly."""

from benchmarks.emission.kernels import fingerprint, kernels, totals

TEXT = """HloModule jit_step, is_scheduled=true

%update (p0: f32[5,256], p1: f32[256], p2: s32[]) -> f32[5,256] {
  %p0 = f32[5,256]{1,0:T(8,128)} parameter(0)
  %p1 = f32[256]{0:T(256)} parameter(1)
  %doubled = f32[256]{0} add(%p1, %p1)
  %row = f32[1,256]{1,0} bitcast(%doubled)
  %p2 = s32[] parameter(2)
  ROOT %updated = f32[5,256]{1,0} dynamic-update-slice(%p0, %row, %p2, %p2)
}

%sliced (p0.1: f32[5,256], p1.1: s32[]) -> f32[256] {
  %p0.1 = f32[5,256]{1,0} parameter(0)
  %p1.1 = s32[] parameter(1)
  %slice = f32[1,256]{1,0} dynamic-slice(%p0.1, %p1.1, %p1.1), dynamic_slice_sizes={1,256}
  ROOT %flat = f32[256]{0} bitcast(%slice)
}

%body (state: (s32[], f32[5,256])) -> (s32[], f32[5,256]) {
  %state = (s32[], f32[5,256]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %kept = f32[5,256]{1,0} get-tuple-element(%state), index=1
  %part = f32[256]{0} fusion(%kept, %k), kind=kLoop, calls=%sliced
  %new = f32[5,256]{1,0} fusion(%kept, %part, %k), kind=kLoop, calls=%update, \
metadata={op_name="kiwi_3_again/add"}, backend_config={"estimated_cycles":"70"}
  ROOT %next = (s32[], f32[5,256]{1,0}) tuple(%k, %new)
}

%condition (state.1: (s32[], f32[5,256])) -> pred[] {
  %state.1 = (s32[], f32[5,256]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (x: f32[5,256]) -> f32[5,256] {
  %x = f32[5,256]{1,0} parameter(0)
  %sum = f32[5,256]{1,0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
  %dot = bf16[5,5]{1,0} convolution(%sum, %x), dim_labels=bf_io->bf, \
backend_config={"estimated_cycles":"100"}
  %zero = s32[] constant(0)
  %one = s32[] add(%zero, %zero)
  %started = (s32[], f32[5,256]{1,0}) tuple(%one, %sum)
  %loop = (s32[], f32[5,256]{1,0}) while(%started), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %done = f32[5,256]{1,0} get-tuple-element(%loop), index=1
}
"""

ROW_BYTES = 4 * 256
INDEX_BYTES = 4


def test_kernels_run_as_often_as_their_loop_and_move_what_they_slice():
    found = {k.instruction.name: (k.runs, k.traffic_bytes) for k in kernels(TEXT)}
    assert found == {
        "dot": (1, 2 * 5 * ROW_BYTES + 2 * 25),
        "part": (5, ROW_BYTES + ROW_BYTES + INDEX_BYTES),
        "new": (5, ROW_BYTES + ROW_BYTES + INDEX_BYTES),
    }


def test_totals_name_what_is_recomputed():
    found = totals(TEXT)
    assert found["kernels"] == 11 and found["matmuls"] == 1
    assert found["cycles"] == 100 + 5 * 70 and found["recomputed_cycles"] == 5 * 70
    assert found["recomputed_traffic_bytes"] == 5 * (2 * ROW_BYTES + INDEX_BYTES)


def test_what_is_moved_a_second_time_is_converted_a_second_time():
    """XLA names no operator for conversions of operands; those behind a barrier are made again."""
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (x: f32[5,256]) -> (bf16[5,256], bf16[5,256]) {
  %x = f32[5,256]{1,0} parameter(0)
  %first = bf16[5,256]{1,0} convert(%x)
  %passed = (f32[5,256]{1,0}) tuple(%x)
  %again = f32[5,256]{1,0} get-tuple-element(%passed), index=0, \
metadata={op_name="jit(step)/kiwi_4/optimization_barrier"}
  %second = bf16[5,256]{1,0} convert(%again)
  ROOT %both = (bf16[5,256]{1,0}, bf16[5,256]{1,0}) tuple(%first, %second)
}
"""
    found = totals(text)
    assert found["kernels"] == 2
    assert found["recomputed_traffic_bytes"] == found["traffic_bytes"] // 2 > 0


def test_generated_code_has_no_barriers_but_copies_what_it_converts_again():
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (x: f32[5,256]) -> (bf16[5,256], bf16[5,256]) {
  %x = f32[5,256]{1,0} parameter(0)
  %first = bf16[5,256]{1,0} convert(%x), backend_config={"estimated_cycles":"20"}
  %started = (f32[5,256]{1,0}, f32[5,256]{1,0}, u32[]) copy-start(%x)
  %near = f32[5,256]{1,0} copy-done(%started)
  %second = bf16[5,256]{1,0} convert(%near), backend_config={"estimated_cycles":"30"}
  ROOT %both = (bf16[5,256]{1,0}, bf16[5,256]{1,0}) tuple(%first, %second)
}
"""
    assert totals(text)["recomputed_cycles"] == 30


def test_what_a_reader_computes_again_is_recomputed():
    """Of the three operands of a fused product one is read for a recomputed sine alone."""
    text = """HloModule jit_step, is_scheduled=true

%fused (a: f32[256], b: f32[256], c: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %flat = f32[256]{0} bitcast(%a)
  %sine = f32[256]{0} sine(%flat), metadata={op_name="jit(step)/kiwi_2_again/sin"}
  %b = f32[256]{0} parameter(1)
  %added = f32[256]{0} add(%sine, %b), metadata={op_name="jit(step)/kiwi_2_again/add"}
  %c = f32[256]{0} parameter(2)
  %more = f32[256]{0} add(%added, %c), metadata={op_name="jit(step)/kiwi_7/add"}
  ROOT %product = f32[256]{0} multiply(%more, %b), metadata={op_name="jit(step)/kiwi_7/mul"}
}

ENTRY %main (x: f32[256], y: f32[256], z: f32[256]) -> f32[256] {
  %x = f32[256]{0} parameter(0)
  %y = f32[256]{0} parameter(1)
  %z = f32[256]{0} parameter(2)
  ROOT %fusion = f32[256]{0} fusion(%x, %y, %z), kind=kLoop, calls=%fused, \
metadata={op_name="jit(step)/kiwi_7/mul"}
}
"""
    found = totals(text)
    assert found["traffic_bytes"] == 4 * ROW_BYTES
    assert found["recomputed_traffic_bytes"] == ROW_BYTES


def test_programs_that_differ_in_names_are_equal():
    renamed = TEXT.replace("%doubled", "%add.7").replace("kiwi_3_again/", "")
    assert fingerprint(renamed) == fingerprint(TEXT)
    assert fingerprint(TEXT.replace("f32[5,256]{1,0} fusion", "f32[5,256]{0,1} fusion")) != (
        fingerprint(TEXT)
    )
