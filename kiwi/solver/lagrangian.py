"""The backend `lagrangian`: presolves, searches, rules out options, and repeats this on the
remaining network.

Once a solution and a bound are known, every option whose reduced cost lifts the bound above the
cost of the solution is dropped, since no assignment with it is better (reduced-cost fixing). The
remaining network is presolved again, and is often much smaller. Its bound is a bound of the problem
up to the cost of the solution.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from kiwi.solver.dual import FIRST_SWEEPS, Dual
from kiwi.solver.effort import WORK_PER_SECOND
from kiwi.solver.engine import Engine
from kiwi.solver.evaluate import evaluate
from kiwi.solver.least_peak import LeastPeak, least_peak
from kiwi.solver.network import build_network
from kiwi.solver.order import time_order
from kiwi.solver.presolve.pipeline import presolve
from kiwi.solver.presolve.reduction import Reduction, chain
from kiwi.solver.problem import Problem
from kiwi.solver.relaxed import Relaxed
from kiwi.solver.request import Request
from kiwi.solver.result import Progress, SolveResult, conclude, is_closed
from kiwi.solver.toulbar import oracle_for

_STAGES = ((30, 2, False), (20, 2, True), (30, 3, True))
"""For each stage: the rounds, the idle rounds that end it, and whether options are forced. Forced
options gain most on a network that earlier stages have made small."""
_RESTART_STAGES = ((8, 2, False), (24, 2, True))
"""The stages of a restart, in the form of `_STAGES`. The rounds of the second include the rounds of
the first."""
_ENDLESS = 10**9
"""A number of rounds that no search reaches."""
LEAST_ROUNDS = 2
"""The number of rounds that an engine without a solution runs, whatever the limits of time and
work. The first round rarely ends without a solution, and the second often lowers its cost much. On
a busy machine a limit of seconds would leave room for neither."""
_MOST_PATIENCE, _PATIENT_CELLS = 2, 1_000_000
"""The largest factor of the rounds of a stage, and its product with the size of the network. The
factor is rounded down, and at least 1."""
_LEAST_PEAK_SECONDS, _GRACE_SECONDS = 10.0, 1.0
"""The seconds, by the clock or as work, of the search for the least peak after a search without a
solution; and the seconds by which it may exceed the time limit."""
_MOST_PROBES, _FAR = 6, 0.005
"""The largest number of probes for other solutions, and the relative gap above which they are made.
"""
_SMALLER = 0.9
"""The share of the options that may remain for another stage on the smaller network to pay."""


_REDUCED: WeakKeyDictionary[Problem, Reduction] = WeakKeyDictionary()
"""The presolved network of the last problem. A rough search for the balance of loads is often
followed by a full search of the same problem. No other problem is kept, since a large network takes
much memory."""


def _reduced(problem: Problem) -> Reduction:
    """Returns the presolved network of a problem, with nodes in the order of time."""
    reduction = _REDUCED.get(problem)
    if reduction is None:
        order = time_order(problem)
        ordered = build_network(problem, order)
        reduction = chain(Reduction.renumbered(ordered, order), presolve(ordered))
        _REDUCED.clear()
        _REDUCED[problem] = reduction
    return reduction


class Search:
    """The state of one search: the remaining network, the best solution and the best bound.

    - `request`: the arguments. `solver`: the backend's name in results.
    - `solution`, `objective`: the best solution of the problem and its cost, or None and +inf.
    - `bound`: the best proven lower bound.
    - `left`: the remaining network, with the way back to the problem.
    - `rounds`: the number of rounds so far.
    - `work`: the number of options and table cells visited, the same on every machine.
    - `out_of_time`, `out_of_work`: whether the clock or `work_limit` ended any part of the search.
    """

    def __init__(self, request: Request, solver: str) -> None:
        self.request, self.solver = request, solver
        self.solution: tuple[int, ...] | None = None
        self.objective, self.bound = math.inf, -math.inf
        self.peak_bytes: int | None = None
        self.rounds, self.work, self.out_of_time, self.out_of_work = 0, 0, False, False
        self._least: LeastPeak | None = None
        self._least_peak_bytes: int | None = None
        self._running: Engine | None = None
        self._engines = 0
        self._is_exact = False
        self._times, self._prices = np.zeros(0, dtype=np.int64), np.zeros(0)
        self.left = _reduced(request.problem)
        if self.left.infeasible:
            self.bound = math.inf
        if request.warm_start is not None:
            self.offer(request.warm_start)

    @property
    def settled(self) -> bool:
        """Whether the gap is closed, or no feasible solution exists."""
        if self.bound == math.inf:
            return True
        if self.solution is None:
            return False
        return is_closed(self.objective, self.bound, self.request.gap)

    @property
    def is_over(self) -> bool:
        """Whether the time or the work is used up."""
        return self.out_of_time or self.out_of_work

    @property
    def work_left(self) -> float:
        """The number of options and table cells that may still be visited."""
        limit = self.request.work_limit
        return math.inf if limit is None else max(0, limit - self.work)

    def offer(self, solution: Sequence[int]) -> None:
        """Takes a solution of the problem if the referee finds it feasible and better."""
        priced = evaluate(self.request.problem, solution)
        if priced.feasible and priced.cost < self.objective:
            self.solution, self.objective = tuple(solution), priced.cost
            self.peak_bytes = priced.peak_bytes

    def offer_lifted(self, choice: np.ndarray | None) -> None:
        """Offers the solution of the problem that a choice of `left` represents."""
        if choice is not None:
            self.offer(self.left.lift(choice).tolist())

    def lowered(self) -> np.ndarray | None:
        """Returns the choice of `left` that represents the solution; None if there is no solution,
        or no such choice."""
        if self.solution is None:
            return None
        return self.left.lower(np.array(self.solution, dtype=np.int64))

    def raise_bound(self, bound: float) -> None:
        """Takes a lower bound of the solutions that are better than `objective`."""
        self.bound = max(self.bound, min(bound, self.objective))

    def run(self) -> None:
        """Runs all stages until the search is settled or over.

        If the stages find no solution, they run again from an assignment that meets the limit at
        any cost. They also run again from each better solution that a probe finds.
        """
        self._run_stages()
        if self.solution is None and not self.settled and not self.is_over:
            self._find_fitting()
            if self.solution is not None:
                self._run_stages()
        for _ in range(_MOST_PROBES):
            if not self.is_far() or not self._probe():
                return
            self._run_stages()

    def is_far(self) -> bool:
        """Whether the gap of the solution is larger than `_FAR`, and time, work and rounds are
        left."""
        used_up = self.request.round_limit is not None and self.rounds >= self.request.round_limit
        if self.solution is None or self.settled or self.is_over or used_up:
            return False
        return not is_closed(self.objective, self.bound, _FAR)

    def _probe(self) -> bool:
        """Probes for solutions apart from the best one. Returns whether one is better."""
        before = self.objective
        engine = self._new_engine(Engine)
        engine.probe()
        self._take(engine)
        return self.objective < before

    def dual(self) -> Dual:
        """Returns the relaxation of `left`, evaluated at the last engine's prices."""
        net = self.left.net
        started = Dual(Relaxed(net))
        started.begin_at(self._prices_at(net.times))
        if self._is_exact:
            started.eliminate()
        started.evaluate(started.best_prices, FIRST_SWEEPS)
        return started

    def _find_fitting(self) -> None:
        until = time.monotonic() + (self.request.deadline - time.monotonic()) / 2
        self._least = self._least_peak(until, self.work_left / 2, self.left.net.limit_bytes)
        self.offer_lifted(self._least.choice)

    def _least_peak(self, until: float, most_work: float, enough_bytes: int = -1) -> LeastPeak:
        net, seed = self.left.net, self.request.seed
        least = least_peak(net, seed, until, self._least_peak_bytes, enough_bytes, most_work)
        self.work += least.work
        self.out_of_time = self.out_of_time or time.monotonic() > self.request.deadline
        return least

    def _run_stages(self) -> None:
        """Runs the stages from the best solution and the last prices. Stops when the last stages
        neither settle the search nor shrink the network."""
        limit = _ENDLESS if self.request.round_limit is None else self.request.round_limit
        for rounds, idle_rounds, force in _STAGES:
            most_rounds = min(self._patience() * rounds, limit - self.rounds)
            if self.settled or self.is_over or most_rounds <= 0:
                return
            engine = self.run_engine(most_rounds, self._patience() * idle_rounds, force=force)
            if self.settled or self.is_over or (not self.shrink(engine.dual) and force):
                return

    def linger(self) -> None:
        """Searches the remaining network until settled or over, however little it gains."""
        if not self.settled and not self.is_over:
            self.run_engine(_ENDLESS, _ENDLESS, force=True)

    def result(self, message: str = "") -> SolveResult:
        """Returns the outcome, priced by the referee again. If there is no solution, it includes
        the least peak of any assignment found, for which this method searches."""
        least = self._least if self.solution is None else None
        if self.solution is None and least is None and not self.left.infeasible:
            until, most_work = self.request.deadline + _GRACE_SECONDS, math.inf
            if self.request.work_limit is None:
                until = min(until, time.monotonic() + _LEAST_PEAK_SECONDS)
            else:
                most_work = _LEAST_PEAK_SECONDS * WORK_PER_SECOND
            least = self._least_peak(until, most_work)
        return conclude(
            self.request.problem,
            self.solution,
            self.bound,
            solver=self.solver,
            iterations=self.rounds,
            work=self.work,
            message=message,
            deterministic=not self.out_of_time,
            least_peak_bytes=None if least is None else least.found_bytes,
            least_peak_bound_bytes=None if least is None else least.bound_bytes,
        )

    def run_engine(
        self, rounds: int, idle_rounds: int, *, force: bool, kind: type[Engine] = Engine
    ) -> Engine:
        """Runs an engine on the remaining network, as `Engine.run`, and takes its results."""
        engine = self._new_engine(kind)
        least = 0 if engine.incumbent else LEAST_ROUNDS
        engine.run(rounds, idle_rounds, force=force, least_rounds=least)
        self._take(engine)
        return engine

    def run_anew(self, part: Reduction) -> np.ndarray | None:
        """Searches a part of the remaining network, from no prices and no solution. Returns the
        best choice of the remaining network that it finds, or None; offers it, too."""
        net, request = part.net, self.request
        seed = request.seed + self._engines
        asked = net, seed, request.gap, request.deadline, None, None, request.parameters
        engine = Engine(*asked, self.work_left)
        self._engines += 1
        for rounds, idle_rounds, force in _RESTART_STAGES:
            engine.run(rounds, idle_rounds, force=force, by_cost=True)
        self._count(engine)
        if engine.incumbent is None:
            return None
        choice = part.lift(engine.incumbent.choice)
        self.offer_lifted(choice)
        return choice

    def _new_engine(self, kind: type[Engine]) -> Engine:
        """Returns an engine for the remaining network that begins with the last engine's prices and
        the best solution."""
        net, request = self.left.net, self.request
        seed = request.seed + self._engines  # Otherwise it would make the last engine's moves.
        oracle = oracle_for(net, request.seed)
        asked = net, seed, request.gap, request.deadline, self._report, oracle
        engine = kind(*asked, request.parameters, self.work_left)
        self._engines += 1
        engine.dual.begin_at(self._prices_at(net.times))
        if self._is_exact:  # Messages were too weak for a larger network before.
            engine.dual.eliminate()
        self._running = engine
        lowered = self.lowered()
        if lowered is not None:
            engine.primal.offer(lowered)
        return engine

    def _patience(self) -> int:
        """Returns the factor of the rounds of a stage, which is larger for small networks."""
        return max(1, min(_MOST_PATIENCE, _PATIENT_CELLS // self.left.net.size))

    def _prices_at(self, times: np.ndarray) -> np.ndarray:
        """Returns the last engine's prices at `times`, and 0 for times that it did not have."""
        prices = np.zeros(len(times))
        _, old_index, new_index = np.intersect1d(self._times, times, return_indices=True)
        prices[new_index] = self._prices[old_index]
        return prices

    def take_unfinished(self) -> None:
        """Takes the results of an engine that was interrupted."""
        if self._running is not None:
            self._take(self._running)

    def _take(self, engine: Engine) -> None:
        self._running = None
        self._take_best(engine)
        self.raise_bound(math.inf if engine.infeasible else engine.bound)
        self._times, self._prices = engine.net.times, engine.dual.best_prices
        self._is_exact = self._is_exact or engine.dual.is_exact
        self._count(engine)
        smallest = engine.primal.smallest
        if smallest is not None:
            known = self._least_peak_bytes
            peak = smallest.peak_bytes
            self._least_peak_bytes = peak if known is None else min(peak, known)

    def _count(self, engine: Engine) -> None:
        self.rounds += engine.rounds
        self.work += engine.work
        self.out_of_time = self.out_of_time or engine.out_of_time
        self.out_of_work = self.out_of_work or engine.out_of_work

    def shrink(self, dual: Dual) -> bool:
        """Rules out options by their reduced costs in `dual`, and presolves again. Returns whether
        the network became small enough for another stage."""
        if self.solution is None:
            return False
        bound, spare = dual.reduced_costs()
        net = self.left.net
        ruled_out = bound + spare > self.objective + 1e-9 * abs(self.objective)
        cost = np.where(ruled_out, np.inf, net.cost)
        smaller = presolve(replace(net, cost=cost))
        if smaller.infeasible:  # No better solution is left.
            self.raise_bound(math.inf)
            return False
        shrunk = smaller.net.option_count <= _SMALLER * net.option_count
        self.left = chain(self.left, smaller)
        return shrunk

    def _take_best(self, engine: Engine) -> None:
        best = engine.incumbent
        if best is not None and best.cost < self.objective:
            self.offer_lifted(best.choice)

    def _report(self, engine: Engine) -> None:
        self._take_best(engine)
        if self.request.on_progress is not None:
            self.request.on_progress(
                Progress(
                    time.monotonic() - self.request.started,
                    self.objective if self.solution is not None else None,
                    max(self.bound, min(engine.bound, self.objective)),
                    self.peak_bytes,
                    self.solver,
                    self.rounds + engine.rounds,
                    self.solution,
                    self.work + engine.work,
                )
            )
