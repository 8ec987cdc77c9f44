"""How often instructions run, from the text of a module."""

from kiwi.xla.read.trip_counts import lines_with_runs

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


def test_loops_multiply_and_calls_add():
    runs = {line.split()[0]: count for line, count, _ in lines_with_runs(MODULE) if "=" in line}
    assert runs["%v"] == runs["ROOT"] == 1
    assert runs["%w"] == runs["%b"] == 3
    assert runs["%u"] == 1, "a loop of unknown length counts once"
    assert runs["%a"] == 3 * 5 + 3, "in the inner loop, and through one branch"


def test_lines_outside_of_computations_count_once():
    assert list(lines_with_runs("%a = f32[] add(%p)")) == [("%a = f32[] add(%p)", 1, "")]
