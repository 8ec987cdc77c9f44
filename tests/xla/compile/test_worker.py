"""Compiling processes start in advance, and end with the process that wanted them."""

import subprocess
from functools import partial

import jax
import pytest
from jax.sharding import PartitionSpec

from kiwi.errors import CompileCheckError
from kiwi.mesh import DeviceMesh
from kiwi.xla.compile import worker
from kiwi.xla.compile.worker import begun_elsewhere, process_ahead
from kiwi.xla.cpu.compiler import CPU, compile_elsewhere, compiled_there
from kiwi.xla.step import Step

STEP = Step(
    lambda x: [(x * 2).sum()],
    [jax.ShapeDtypeStruct((8, 4), "float32")],
    DeviceMesh.create((2,), "cpu"),
    [PartitionSpec("x")],
    [PartitionSpec()],
    (),
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Returns the processes that are started."""
    found: list[subprocess.Popen[str]] = []
    start = worker._start

    def recorded() -> subprocess.Popen[str]:
        found.append(start())
        return found[-1]

    monkeypatch.setattr(worker, "_start", recorded)
    return found


def test_each_compilation_takes_the_process_that_waits(started: list[subprocess.Popen[str]]):
    with process_ahead(), process_ahead():
        assert len(started) == 1
        elsewhere = compile_elsewhere(STEP)
        assert [p.poll() for p in started] == [0, None]
    assert started[1].poll() is not None and len(started) == 2
    here = CPU.compile(STEP)
    assert (elsewhere.peak_bytes, elsewhere.collective_uses) == (
        here.peak_bytes,
        here.collective_uses,
    )


def test_one_that_died_while_it_waited_is_replaced(started: list[subprocess.Popen[str]]):
    with process_ahead():
        started[0].kill()
        started[0].wait()
        assert compile_elsewhere(STEP).peak_bytes > 0
    assert len(started) == 3


def test_one_that_is_not_asked_ends_with_its_owner(started: list[subprocess.Popen[str]]):
    with pytest.raises(KeyboardInterrupt), process_ahead():
        raise KeyboardInterrupt
    assert started[0].poll() is not None


def test_without_anybody_who_wants_one_ahead_none_waits(started: list[subprocess.Popen[str]]):
    compile_elsewhere(STEP)
    assert [p.poll() for p in started] == [0]


def test_what_a_failed_process_printed_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "EXPORTED", "missing.bin")
    with pytest.raises(CompileCheckError, match="exit code 1") as caught:
        compile_elsewhere(STEP)
    assert "step.bin" in caught.value.cause


def test_several_work_at_the_same_time(started: list[subprocess.Popen[str]]):
    begun = [begun_elsewhere(compiled_there, STEP, "cpu") for _ in range(2)]
    assert len(started) == 2
    read = partial(CPU.read, STEP.mesh)
    first, second = (finish.read(read) for finish in reversed(begun))
    assert first.peak_bytes == second.peak_bytes > 0
    assert [p.poll() for p in started] == [0, 0]


def test_one_that_nobody_waits_for_ends(started: list[subprocess.Popen[str]]):
    begun = begun_elsewhere(compiled_there, STEP, "cpu")
    del begun
    assert started[0].poll() not in (None, 0)


def test_ctrl_c_ends_all_that_work_for_a_thread(
    started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    begun = [begun_elsewhere(compiled_there, STEP, "cpu") for _ in range(2)]
    monkeypatch.setattr(worker._Process, "all_printed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begun[0]()
    assert all(p.poll() is not None for p in started)
