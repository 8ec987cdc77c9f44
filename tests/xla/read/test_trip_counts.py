"""The number of runs of instructions, from the text of a module."""

from kiwi.xla.read.hlo_text import OUTSIDE, parse_module, runs

MODULE = """HloModule m
%inner (p: f32[]) -> f32[] {
  %a = f32[] add(%p, %p)
}
%cond (p: f32[]) -> pred[] {
  %c = pred[] compare(%p, %p)
}
%left (p: f32[]) -> f32[] {
  %l = f32[] negate(%p)
}
%right (p: f32[]) -> f32[] {
  %r = f32[] call(%p), to_apply=%inner
}
%outer (p: f32[]) -> f32[] {
  %w = f32[] while(%p), condition=%cond, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
  %b = f32[] conditional(%p), branch_computations={%left, %right}
}
%unknown (p: f32[]) -> f32[] {
  %u = f32[] negate(%p)
}
ENTRY %main (p: f32[]) -> f32[] {
  %v = f32[] while(%p), condition=%cond, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %x = f32[] while(%v), condition=%cond, body=%unknown
}
"""


COUNTED = """HloModule m
%cond (p: (f32[], s32[])) -> pred[] {
  %p = (f32[], s32[]{:T(128)}) parameter(0)
  %limit = s32[]{:T(128)} constant(7)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=1
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}
%body (q: (f32[], s32[])) -> (f32[], s32[]) {
  %inside = f32[] add(%q, %q)
}
ENTRY %main (x: f32[], n: s32[]) -> f32[] {
  %two = s32[]{:T(128)} constant(2)
  %start = s32[]{:T(128)} copy(%two)
  %t = (f32[], /*index=1*/s32[]{:T(128)}) tuple(%x, /*index=1*/%start)
  ROOT %w = (f32[], s32[]{:T(128)}) while(%t), condition=%cond, body=%body
}
"""


def test_a_loop_that_counts_between_constants_runs_as_often():
    assert inside_runs(COUNTED) == 5


def test_an_element_of_a_tuple_may_be_written_as_its_place():
    """As XLA:TPU of jax 0.11 does."""
    i = "  %i = s32[]{:T(128)} get-tuple-element(%p), index=1\n"
    assert i in COUNTED
    text = COUNTED.replace(i, "").replace("compare(%i,", "compare(%p#1,")
    assert inside_runs(text) == 5
    condition = parse_module(text).computations["cond"]
    assert condition.by_name["p#1"].result_type == "s32[]{:T(128)}"
    assert [reader.name for reader in condition.readers["p#1"]] == ["lt"]


def test_a_loop_that_starts_from_an_argument_counts_once():
    assert inside_runs(COUNTED.replace("copy(%two)", "copy(%n)")) == 1


def test_a_loop_that_counts_in_fractions_counts_once():
    assert inside_runs(COUNTED.replace("constant(7)", "constant(7.5)")) == 1


def inside_runs(text: str) -> int:
    module = parse_module(text)
    inside = (name for name, c in module.computations.items() if "inside" in c.by_name)
    return runs(module)[next(inside)]


def test_loops_multiply_and_calls_add():
    module = parse_module(MODULE)
    times = runs(module)
    found = {i: times[name] for name, c in module.computations.items() for i in c.by_name}
    assert found["v"] == found["x"] == 1
    assert found["w"] == found["b"] == 3
    assert found["u"] == 1, "a loop of unknown length counts once"
    assert found["a"] == 3 * 5 + 3, "in the inner loop, and through one branch"


def test_lines_outside_of_computations_count_once():
    module = parse_module("%a = f32[] add(%p)")
    assert runs(module) == {OUTSIDE: 1} and list(module.computations[OUTSIDE].by_name) == ["a"]
