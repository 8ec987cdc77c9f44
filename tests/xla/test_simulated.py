"""The time of a schedule, by hand, on a device of 1 TFLOP/s and 1 GB/s with links of 1 GB/s."""

from dataclasses import replace

import pytest

from kiwi.mesh import DeviceMesh, Link, hardware
from kiwi.xla.read.hlo_text import parse_module
from kiwi.xla.read.schedule import read_schedule
from kiwi.xla.simulated import _SharedLink, seconds_by_unit, simulated

GATHER = "channel_id=7, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true"

MODULE = """HloModule m
%body (p: (s32[], f32[250,1000])) -> (s32[], f32[250,1000]) {
  %p = (s32[], f32[250,1000]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[250,1000] get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  %neg = f32[250,1000] negate(%x)
  ROOT %t = (s32[], f32[250,1000]) tuple(%next, %neg)
}
%cond (p: (s32[], f32[250,1000])) -> pred[] {
  %p = (s32[], f32[250,1000]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %six = s32[] constant(6)
  ROOT %more = pred[] compare(%i, %six), direction=LT
}
ENTRY %main (x: f32[250,1000]) -> f32[250,1000] {
  %x = f32[250,1000] parameter(0)
  COLLECTIVE
  %zero = s32[] constant(0)
  %start = (s32[], f32[250,1000]) tuple(%zero, %x)
  %loop = (s32[], f32[250,1000]) while(%start), condition=%cond, body=%body
  DONE
  ROOT %y = f32[250,1000] get-tuple-element(%loop), index=1
}
"""
START = f"%s = (f32[250,1000], f32[500,1000]) all-gather-start(%x), {GATHER}"
AWAITED = f"%g = f32[500,1000] all-gather(%x), {GATHER}"


@pytest.fixture
def mesh() -> DeviceMesh:
    """Two devices. A pass over 1 MB takes 1 ms in both directions; a gather to 2 MB takes half of
    that."""
    device = replace(
        hardware("h100-sxm"),
        memory_bandwidth_bytes_per_second=1e9,
        bandwidth_efficiency=1.0,
        kernel_launch_seconds=0.0,
        interference=0.25,
    )
    link = Link(1e9, 0.0)
    return DeviceMesh((2,), ("x",), (link,), device)


def time(mesh: DeviceMesh, collective: str, done: str = ""):
    text = MODULE.replace("COLLECTIVE", collective).replace("DONE", done)
    return simulated(read_schedule(parse_module(text), mesh.shape, mesh.axis_names), mesh)


def test_a_loop_takes_its_body_as_often_as_it_runs(mesh):
    found = time(mesh, "")
    assert found.compute_seconds == found.step_seconds == pytest.approx(3 * 2e-3)
    assert found.communication == ()


def test_what_each_unit_takes(mesh):
    named = MODULE.replace("negate(%x)", 'negate(%x), metadata={op_name="jit(f)/kiwi_4/neg"}')
    text = named.replace("COLLECTIVE", AWAITED).replace("DONE", "")
    schedule = read_schedule(parse_module(text), mesh.shape, mesh.axis_names)
    found = seconds_by_unit(schedule, mesh)
    assert found[4].compute == pytest.approx(3 * 2e-3) and found[4].communication == 0.0
    assert found[-1].compute == 0.0 and found[-1].communication == pytest.approx(1e-3)


def test_a_collective_without_start_is_waited_for(mesh):
    found = time(mesh, AWAITED)
    assert found.step_seconds == pytest.approx(6e-3 + 1e-3)
    (row,) = found.communication
    assert row.axes == ("x",) and row.seconds == row.exposed_seconds == pytest.approx(1e-3)


def test_a_collective_hides_behind_what_runs_before_it_is_awaited(mesh):
    found = time(mesh, START, "%d = f32[500,1000] all-gather-done(%s)")
    assert found.step_seconds == pytest.approx(6e-3 + 0.25e-3), "the share that interferes"
    assert found.exposed_seconds == pytest.approx(0.25e-3)
    alone = time(mesh, START + "\n  %d = f32[500,1000] all-gather-done(%s)")
    assert alone.step_seconds == pytest.approx(7e-3)


def test_devices_that_cannot_do_both_wait_at_the_start(mesh):
    one_at_a_time = replace(mesh, hardware=replace(mesh.hardware, interference=None))
    found = time(one_at_a_time, START, "%d = f32[500,1000] all-gather-done(%s)")
    assert found.step_seconds == pytest.approx(7e-3)


STORED = """HloModule m
%store (buffer: f32[4,250,1000], x: f32[1,250,1000], i: s32[]) -> f32[4,250,1000] {
  %buffer = f32[4,250,1000]{2,1,0:T(8,128)S(5)} parameter(0)
  %x = f32[1,250,1000] parameter(1)
  %i = s32[] parameter(2)
  ROOT %u = f32[4,250,1000]{2,1,0:T(8,128)S(5)} dynamic-update-slice(%buffer, %x, %i, %i, %i)
}
%fetch (buffer: f32[4,250,1000], i: s32[]) -> f32[1,250,1000] {
  %buffer = f32[4,250,1000]{2,1,0:T(8,128)S(5)} parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = f32[1,250,1000] dynamic-slice(%buffer, %i, %i, %i), dynamic_slice_sizes={1,250,1000}
}
ENTRY %main (buffer: f32[4,250,1000], x: f32[1,250,1000], i: s32[]) -> f32[1,250,1000] {
  %buffer = f32[4,250,1000]{2,1,0:T(8,128)S(5)} parameter(0)
  %x = f32[1,250,1000] parameter(1)
  %i = s32[] parameter(2)
  %o = (f32[4,250,1000]{2,1,0:T(8,128)S(5)}, u32[]) async-start(%buffer, %x, %i), calls=%store
  %f = (f32[1,250,1000], u32[]) async-start(%buffer, %i), calls=%fetch
  %y = f32[1,250,1000] negate(%x)
  %d = f32[1,250,1000] async-done(%f)
  %e = f32[4,250,1000]{2,1,0:T(8,128)S(5)} async-done(%o)
  ROOT %z = f32[1,250,1000] add(%y, %d)
}
"""


def test_copies_of_one_direction_share_their_link():
    """Alone they take 3 and 1 s: together the small one ends after 2 s and the large one after 4.
    A third, of 2 s, starts after 1 s, when half a second of the small one is left."""
    link = _SharedLink()
    link.start("large", 3.0, 0.0)
    link.start("small", 1.0, 0.0)
    assert (link.end("small", 0.0), link.end("large", 0.0)) == pytest.approx((2.0, 4.0))
    link.start("third", 2.0, 1.0)
    assert link.end("small", 1.0) == pytest.approx(2.5)
    assert link.end("third", 2.5) == pytest.approx(2.5 + 2 * 1.5)
    assert link.end("large", 2.5) == pytest.approx(6.0)
    assert link.end("large", 7.0) == link.end("small", 7.0) == 7.0


@pytest.mark.parametrize("opcode", ["async", "fusion"])
def test_copies_to_the_host_and_back_go_at_once(mesh, opcode: str):
    """Each takes 4 ms at 250 MB/s, 2 ms of it while the device computes. XLA:GPU of jax 0.11 writes
    what it starts into the opcode."""
    slow = replace(mesh, hardware=replace(mesh.hardware, host_bandwidth_bytes_per_second=250e6))
    module = parse_module(STORED.replace("async-", f"{opcode}-"))
    found = simulated(read_schedule(module, mesh.shape, mesh.axis_names), slow)
    (row,) = found.communication
    assert row.axes == () and row.seconds == pytest.approx(8e-3)
    costs = (2e-3 + 0.05 * 2e-3) + 0.05 * 4e-3
    assert found.step_seconds == pytest.approx(2e-3 + costs + 3e-3)


def test_a_loop_that_tells_no_trips_runs_as_often_as_its_units_are_planned_to(mesh):
    """The limit of its counter is no constant."""
    scoped = 'negate(%x), metadata={op_name="jit(step)/kiwi_4/neg"}'
    text = MODULE.replace("negate(%x)", scoped).replace("constant(6)", "get-tuple-element(%p)")
    text = text.replace("COLLECTIVE", "").replace("DONE", "")
    schedule = read_schedule(parse_module(text), mesh.shape, mesh.axis_names)
    assert simulated(schedule, mesh).step_seconds == pytest.approx(2e-3)
    runs = {4: 5.0}
    assert simulated(schedule, mesh, None, runs).step_seconds == pytest.approx(5 * 2e-3)
    assert seconds_by_unit(schedule, mesh, None, runs)[4].compute == pytest.approx(5 * 2e-3)
