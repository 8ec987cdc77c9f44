"""The interface of `solve`: arguments, statuses, progress, repeatability, interruption."""

import dataclasses
import math
import signal
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.solver.layered import layered_problem, with_budget
from kiwi.errors import InvalidArgumentError, SolverUnavailableError, UnknownSolverError
from kiwi.solver import (
    Edge,
    Interval,
    Node,
    Problem,
    Progress,
    SolveStatus,
    evaluate,
    solve,
    toulbar,
)
from kiwi.solver.lagrangian import LEAST_ROUNDS
from kiwi.solver.least_peak import least_peak
from kiwi.solver.network import build_network
from tests.solver.test_problem import worked_problem

EXACT = ["brute-force", "highs", "scip", "cp-sat", "gurobi", "auto"]
ALL = [*EXACT, "toulbar2", "lagrangian"]


def two_layers() -> Problem:
    return with_budget(layered_problem(2, seed=1), 0.7)


@pytest.mark.parametrize("solver", ALL)
def test_worked_example(solver: str) -> None:
    result = solve(worked_problem(), solver=solver, gap=0.0)
    assert (result.solution, result.objective, result.peak_bytes) == ((1, 0), 7.5, 5)
    assert result.status is SolveStatus.OPTIMAL
    assert result.solver == ("lagrangian" if solver == "auto" else solver), result.message
    assert result.bound == pytest.approx(7.5)
    assert result.gap == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("solver", ALL)
def test_empty_problem_and_no_edges(solver: str) -> None:
    empty = solve(Problem((), (), 5, 0), solver=solver)
    assert (empty.solution, empty.objective, empty.status) == ((), 0.0, SolveStatus.OPTIMAL)
    nodes = (Node("a", np.array([2.0, 1.0]), ((), ())), Node("b", np.array([4.0]), ((),)))
    result = solve(Problem(nodes, (), None, 0), solver=solver)
    assert (result.solution, result.objective) == ((1, 0), 5.0)


@pytest.mark.parametrize("solver", EXACT)
def test_a_limit_that_is_too_low_is_proven_so(solver: str) -> None:
    problem = dataclasses.replace(worked_problem(), limit_bytes=1)
    result = solve(problem, solver=solver)
    assert result.status is SolveStatus.INFEASIBLE
    assert (result.solution, result.objective, result.gap) == (None, None, None)
    assert result.bound == math.inf


def test_the_least_peak_of_an_infeasible_problem() -> None:
    """Option 1 of the first node and option 2 of the second hold 1 and 2 bytes."""
    result = solve(dataclasses.replace(worked_problem(), limit_bytes=1))
    assert (result.least_peak_bytes, result.least_peak_bound_bytes) == (2, 2)


def test_a_limit_is_searched_for_to_the_byte_and_the_least_peak_to_a_thousandth() -> None:
    sizes = (10_000_000, 10_001_000)
    usage = tuple((Interval(0, 1, size),) for size in sizes)
    net = build_network(Problem((Node("n", np.zeros(2), usage),), (), sizes[0], 1))
    assert least_peak(net, 0, math.inf, sizes[1]).found_bytes == sizes[1]
    found = least_peak(net, 0, math.inf, sizes[1], enough_bytes=sizes[0])
    assert found.found_bytes == sizes[0] and found.choice is not None


def test_forbidden_pairs_alone_can_make_it_infeasible() -> None:
    nodes = tuple(Node(name, np.zeros(2), ((), ())) for name in "ab")
    problem = Problem(nodes, (Edge(0, 1, np.full((2, 2), np.inf)),), None, 1)
    for solver in ALL:
        assert solve(problem, solver=solver).status is SolveStatus.INFEASIBLE


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"solver": "magic"}, UnknownSolverError, "no solver 'magic'"),
        ({"time_limit_seconds": 0.0}, InvalidArgumentError, "time_limit_seconds is 0.0"),
        ({"gap": -1.0}, InvalidArgumentError, "gap is -1.0"),
        ({"round_limit": 0}, InvalidArgumentError, "round_limit is 0"),
        ({"warm_start": (0,)}, InvalidArgumentError, "1 entries for 2 nodes"),
    ],
)
def test_bad_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        solve(worked_problem(), **arguments)


def test_brute_force_declines_large_problems() -> None:
    with pytest.raises(SolverUnavailableError, match="declined"):
        solve(layered_problem(1), solver="brute-force")


def test_gurobi_without_a_fitting_licence_falls_back_and_says_so(monkeypatch) -> None:
    def refuse(*_arguments, **_keywords):
        raise SolverUnavailableError("Gurobi declined: Model too large")

    monkeypatch.setattr("kiwi.solver.mathopt_run._solve_with_gurobi", refuse)
    result = solve(worked_problem(), solver="gurobi")
    assert result.status is SolveStatus.OPTIMAL and result.solver == "highs"
    assert "HiGHS stood in. Gurobi declined: Model too large" in result.message


def test_gurobi_over_the_limit_of_its_own_licence_falls_back_in_a_line() -> None:
    """The licence of the wheel takes 2000 variables."""
    usage = tuple((Interval(0, 1, 2 - k),) for k in range(3))
    nodes = tuple(Node(f"n{i}", np.arange(3.0), usage) for i in range(700))
    result = solve(Problem(nodes, (), 700, 1), solver="gurobi")
    if result.solver == "gurobi":
        pytest.skip("a licence without a limit")
    assert result.status is SolveStatus.OPTIMAL and result.solver == "highs"
    assert result.objective == pytest.approx(700.0)
    assert result.message.startswith("Gurobi could not be used, HiGHS stood in. Gurobi declined: ")
    assert "\n" not in result.message


@pytest.mark.parametrize("solver", ["auto", "lagrangian", "toulbar2"])
def test_same_seed_same_solution(solver: str) -> None:
    problem = two_layers()
    first, second = (solve(problem, solver=solver, seed=3, gap=0.01) for _ in range(2))
    assert first.deterministic and second.deterministic
    assert (first.solution, first.bound) == (second.solution, second.bound)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_round_limit_fixes_the_solution(rounds: int) -> None:
    problem = two_layers()
    first, second = (solve(problem, seed=7, gap=0.0, round_limit=rounds) for _ in range(2))
    assert first.deterministic and first.iterations <= rounds
    assert (first.solution, first.bound) == (second.solution, second.bound)


def test_work_is_counted_and_the_same_each_time() -> None:
    problem = two_layers()
    first, again, longer = (solve(problem, gap=0.0, round_limit=n) for n in (1, 1, 3))
    assert 0 < first.work == again.work
    assert longer.iterations == 1 or first.work < longer.work


def test_the_clock_is_reported_where_it_ended_the_search() -> None:
    assert not solve(two_layers(), gap=0.0, time_limit_seconds=1e-3).deterministic


def test_a_search_that_has_no_time_ends_with_its_first_rounds() -> None:
    """As on a machine too busy for the limit: the solution does not depend on how busy."""
    problem = two_layers()
    late = solve(problem, gap=0.0, time_limit_seconds=1e-6, solver="lagrangian")
    counted = solve(problem, gap=0.0, round_limit=LEAST_ROUNDS, solver="lagrangian")
    assert late.iterations == LEAST_ROUNDS and not late.deterministic
    assert late.solution is not None and late.solution == counted.solution


def test_a_looser_budget_is_never_worse_than_the_tighter_plan_it_starts_from() -> None:
    problem = layered_problem(2, seed=1)
    tight = solve(with_budget(problem, 0.7), gap=0.05)
    looser = with_budget(problem, 0.8)
    result = solve(looser, warm_start=tight.solution, round_limit=1, gap=0.0)
    assert result.objective is not None and tight.objective is not None
    assert result.objective <= tight.objective


def test_progress_only_improves_and_ends_with_the_result() -> None:
    states: list[Progress] = []
    result = solve(two_layers(), on_progress=states.append)
    costs = [state.objective for state in states if state.objective is not None]
    bounds = [state.bound for state in states]
    assert costs == sorted(costs, reverse=True) and bounds == sorted(bounds)
    assert (states[-1].objective, states[-1].bound) == (result.objective, result.bound)


@pytest.mark.parametrize("solver", ALL[1:])
def test_a_warm_start_is_never_made_worse(solver: str) -> None:
    problem = worked_problem()
    result = solve(problem, solver=solver, warm_start=(1, 0), time_limit_seconds=5.0)
    assert result.objective is not None and result.objective <= 7.5


def test_a_warm_start_survives_a_search_that_has_no_time() -> None:
    problem = two_layers()
    start = solve(problem, gap=0.05).solution
    assert start is not None
    result = solve(problem, warm_start=start, time_limit_seconds=1e-3, solver="lagrangian")
    assert result.objective is not None
    assert result.objective <= evaluate(problem, start).cost
    assert not result.deterministic


class Stop:
    """Raises `KeyboardInterrupt` at the first progress with a solution."""

    def __call__(self, state: Progress) -> None:
        if state.objective is not None:
            raise KeyboardInterrupt


def test_ctrl_c_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        solve(two_layers(), on_progress=Stop(), gap=0.0)


def test_ctrl_c_returns_the_best_so_far_when_asked() -> None:
    seen = []

    def once(state: Progress) -> None:
        if state.objective is not None and not seen:
            seen.append(state.objective)
            raise KeyboardInterrupt

    result = solve(two_layers(), on_progress=once, gap=0.0, any_time=True)
    assert result.objective == seen[0]
    assert result.status is SolveStatus.FEASIBLE and not result.deterministic


def test_toulbar2_leaves_no_timer_behind_where_it_raises(monkeypatch) -> None:
    """Its signal would come while another solver works."""

    def raises(self, timeLimit: int = 0, **_):
        self.CFN.timer(timeLimit)
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0
        raise self.SolverOut

    monkeypatch.setattr(toulbar.CFN, "Solve", raises)
    net = build_network(two_layers())
    finite = replace(net, table=np.minimum(net.table, 1e6))
    choice, _, _ = toulbar.solve_priced(finite, np.minimum(net.cost, 1e6), 0, 100.0)
    assert choice is None
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_toulbar2_gives_ctrl_c_back_to_python() -> None:
    before = signal.getsignal(signal.SIGINT)
    solve(two_layers(), solver="toulbar2", gap=0.05)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_tighter_budget_costs_more_and_recomputes() -> None:
    problem = layered_problem(2, seed=1)
    free = solve(problem)
    tight = solve(with_budget(problem, 0.7))
    assert free.objective is not None and tight.objective is not None
    assert tight.objective > free.objective
    assert tight.gap is not None and tight.gap < 0.05


@pytest.mark.parametrize("solver", ALL)
def test_negative_costs(solver: str) -> None:
    node = Node("n", np.array([-5.0, -2.0]), ((Interval(0, 1, 3),), ()))
    edge = Edge(0, 1, np.array([[1.0, -3.0], [2.0, -9.0]]))
    result = solve(Problem((node, node), (edge,), 3, 1), solver=solver)
    assert result.objective == -13.0 and result.bound <= -13.0
    assert result.bound == pytest.approx(-13.0)


def test_option_that_never_fits_is_avoided() -> None:
    cheap_but_large = Node("n", np.array([0.0, 1.0]), ((Interval(0, 1, 10),), ()))
    for solver in ALL:
        result = solve(Problem((cheap_but_large,), (), 5, 1), solver=solver)
        assert result.solution == (1,)
