import json
import re

import pytest

from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError, UnknownPlannerError
from kiwi.literature.remat.__main__ import main
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes, simulate
from kiwi.literature.remat.solve import PLANNERS, solve
from kiwi.solver.result import SolveStatus
from kiwi.solver.schedule import Schedule

from .graphs import random_general_graph, random_graph, training_chain, write_node_link
from .oracle import least_seconds


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_every_planner_keeps_all_where_memory_is_plenty(planner):
    graph = training_chain(3)
    result = solve(graph, order_peak_bytes(graph), planner, time_limit_seconds=2.0)
    assert result.compute_seconds == graph.once_seconds
    assert result.status is SolveStatus.OPTIMAL
    assert result.overhead == 0.0
    assert result.planner == planner


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_a_budget_below_the_bound_is_reported_with_bound_and_feasible_budget(planner):
    graph = training_chain(5)
    bound = largest_working_set(graph).size_bytes
    with pytest.raises(InfeasibleBudgetError, match="no schedule within") as caught:
        solve(graph, bound - 1, planner, time_limit_seconds=1.0)
    error = caught.value
    assert error.least_peak_bound_bytes == bound
    assert bound <= error.least_peak_bytes < order_peak_bytes(graph)
    assert least_seconds(graph, error.least_peak_bytes) is not None
    assert least_seconds(graph, error.least_peak_bytes - 1) is None


@pytest.mark.parametrize(
    "arguments", [(0, "fastsa", 1.0, 0), (9, "fastsa", 0.0, 0), (9, "fastsa", 1.0, -1)]
)
def test_unusable_arguments(arguments):
    with pytest.raises(InvalidArgumentError):
        solve(training_chain(2), *arguments)


def test_unknown_planner_names_the_known_ones():
    with pytest.raises(UnknownPlannerError, match="fastsa"):
        solve(training_chain(2), 100, "simplex")


@pytest.mark.parametrize("make", [random_graph, random_general_graph])
@pytest.mark.parametrize("seed", range(4))
def test_reported_numbers_are_those_of_the_simulator(make, seed):
    graph = make(seed, 7)
    budget = (order_peak_bytes(graph) + largest_working_set(graph).size_bytes + 1) // 2
    try:
        result = solve(graph, budget, "fastsa", time_limit_seconds=0.5)
    except InfeasibleBudgetError as error:
        assert error.least_peak_bytes <= order_peak_bytes(graph)
        assert error.least_peak_bytes > budget or "by remat" in str(error)
        return
    simulation = simulate(graph, result.schedule)
    assert result.peak_bytes == simulation.peak_bytes <= budget
    assert result.compute_seconds == simulation.compute_seconds >= result.bound_seconds


def test_command_writes_a_schedule_of_node_ids(tmp_path):
    graph = training_chain(6)
    write_node_link(graph, tmp_path / "graph.json")
    out = tmp_path / "schedule.json"
    arguments = [str(tmp_path / "graph.json"), "--budget", "0.7", "--time-limit", "1"]
    assert main([*arguments, "--planner", "fastsa", "--out", str(out)]) == 0
    answer = json.loads(out.read_text())
    simulation = simulate(graph, Schedule(tuple(answer["schedule"])))
    assert answer["peak"] == simulation.peak_bytes <= 0.7 * order_peak_bytes(graph)
    assert answer["time"] == simulation.compute_seconds
    assert answer["bound"] == graph.once_seconds


@pytest.mark.parametrize("planner", ["fastsa", "rk-checkmate"])
def test_command_reports_an_infeasible_budget(tmp_path, capsys, planner):
    graph = training_chain(6)
    write_node_link(graph, tmp_path / "graph.json")
    arguments = [str(tmp_path / "graph.json"), "--budget", "0.3", "--time-limit", "0.4"]
    assert main([*arguments, "--planner", planner]) == 2
    said = capsys.readouterr().err
    assert f"{largest_working_set(graph).size_bytes} bytes at least" in said
    least = int(re.search(r"a budget of (\d+) bytes, the smallest known", said)[1])
    assert largest_working_set(graph).size_bytes <= least < order_peak_bytes(graph)
