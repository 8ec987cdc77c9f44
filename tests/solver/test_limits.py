"""Searches that end from outside: signals, the time limit, and solvers that obey neither."""

import gzip
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.solver.contest import check
from kiwi.solver import Edge, Interval, Node, Problem, evaluate, mathopt_run, milp, solve, warm_up
from kiwi.solver.engine import Engine
from kiwi.solver.network import build_network
from kiwi.solver.request import Request
from tests.solver.test_problem import worked_problem

PATIENCE_SECONDS = 300
"""Long enough for any machine. Tests end as soon as the awaited event happens."""


def knotted_problem(count: int = 30) -> Problem:
    """Returns a problem in which every pair of nodes has an edge. Neither bound nor search solves
    it soon."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, (count, 6))
    nodes = tuple(
        Node(
            f"n{i}", rng.integers(0, 50, 6) * 1.0, tuple((Interval(i, count, int(b)),) for b in row)
        )
        for i, row in enumerate(sizes)
    )
    edges = tuple(
        Edge(i, j, rng.integers(0, 50, (6, 6)) * 1.0) for i in range(count) for j in range(i)
    )
    return Problem(nodes, edges, int(sizes.mean() * count * 0.8), count)


def write_contest(problem: Problem, path: Path) -> None:
    """Writes a problem of whole costs, in which a node holds memory in one interval of time."""
    used = [[sum(use.bytes for use in option) for option in node.usage] for node in problem.nodes]
    spans = [[node.usage[0][0].start, node.usage[0][0].end] for node in problem.nodes]
    costs = [node.costs.astype(int).tolist() for node in problem.nodes]
    pairs = [[edge.tail, edge.head] for edge in problem.edges]
    tables = [np.asarray(edge.costs).astype(int).ravel().tolist() for edge in problem.edges]
    body = {
        "name": "knotted",
        "nodes": {"intervals": spans, "costs": costs, "usages": used},
        "edges": {"nodes": pairs, "costs": tables},
        "usage_limit": problem.limit_bytes,
    }
    path.write_bytes(gzip.compress(json.dumps({"problem": body}).encode()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_search_with_its_best_solution(tmp_path: Path, number: int) -> None:
    instance, out = tmp_path / "instance.json.gz", tmp_path / "solution.json"
    write_contest(knotted_problem(), instance)
    command = [sys.executable, "-m", "kiwi.solver", str(instance), "--time-limit", "1e6"]
    with subprocess.Popen([*command, "--gap", "0", "--out", str(out)], text=True) as process:
        _wait_for(out, process)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert check(instance, json.loads(out.read_text())["solution"])[1]


def _wait_for(path: Path, process: subprocess.Popen) -> None:
    for _ in range(20 * PATIENCE_SECONDS):
        if path.exists():
            return
        assert process.poll() is None
        time.sleep(0.05)
    raise AssertionError(f"{path} was never written")


@pytest.mark.parametrize(("told", "status"), [("supervisor.note_written()", 0), ("0", 1)])
def test_work_that_heeds_no_signal_is_killed(told: str, status: int) -> None:
    script = f"""
import signal, sys, time
from kiwi.solver.supervise import Supervisor
supervisor = Supervisor(time.monotonic())
def work():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    {told}
    time.sleep(1e6)
sys.exit(supervisor.run(work))
"""
    assert (
        subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_SECONDS).returncode
        == status
    )


def test_a_signal_ends_work_that_heeds_none() -> None:
    script = """
import math, signal, sys, time
from kiwi.solver.supervise import Supervisor
supervisor = Supervisor(math.inf)
def work():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    supervisor.note_written()
    print("ready", flush=True)
    time.sleep(1e6)
sys.exit(supervisor.run(work))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


def test_what_an_interrupted_round_had_found_is_returned(monkeypatch) -> None:
    whole = Engine._round

    def interrupted(self, *, force: bool) -> None:
        whole(self, force=force)
        raise KeyboardInterrupt  # before the round is reported

    warm_up()  # runs rounds too
    monkeypatch.setattr(Engine, "_round", interrupted)
    problem = knotted_problem()
    result = solve(problem, any_time=True, gap=0.0)
    assert result.solution is not None and evaluate(problem, result.solution).feasible
    assert result.message == "Interrupted." and not result.deterministic


def test_a_model_that_takes_too_long_to_write_is_given_up() -> None:
    problem = knotted_problem(8)
    late = Request(problem, "highs", time_limit_seconds=1e-9)
    assert milp.solve_network(build_network(problem), late) == (None, -np.inf, True)


def test_a_solver_that_keeps_no_limit_is_left_alone(monkeypatch) -> None:
    for_ever = threading.Event()
    monkeypatch.setattr(mathopt_run.mathopt, "solve", lambda *_, **__: for_ever.wait())
    result = solve(worked_problem(), solver="highs", time_limit_seconds=0.1)
    for_ever.set()
    assert result.solution is None and not result.deterministic


def test_rows_that_no_solution_breaks_are_not_needed(monkeypatch) -> None:
    """Only the broken ones are written, and the optimum is that of all."""
    monkeypatch.setattr(milp, "_MOST_TERMS", 0)
    monkeypatch.setattr(milp, "_NEW_ROWS", 1)
    problem = knotted_problem(6)
    few = solve(problem, solver="highs", gap=0.0)
    exact = solve(problem, solver="brute-force")
    assert few.objective == exact.objective and few.bound == pytest.approx(exact.objective)
