"""Processes that compile loops while another process plans."""

import pytest

from kiwi.solver import compiled as ahead


def test_each_function_is_awaited_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_started", [])
    ahead.compile_ahead(("gc:collect", "time:sleep"))  # the second fails: it takes an argument
    (compiling,) = ahead._started
    ahead.wait_for("gc:collect")
    assert compiling.functions == ["time:sleep"]
    ahead.wait_for("gc:collect", "os:getpid")
    ahead.wait_for("time:sleep")
    ahead.wait_for("gc:collect", "time:sleep")
    assert not compiling.functions and compiling.process.returncode != 0


def test_processes_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_started", [])
    ahead.compile_ahead(("gc:collect",))
    ahead.compile_ahead(("gc:collect",), ("gc:collect",))
    assert len(ahead._started) == 1
    ahead.wait_for("gc:collect")
