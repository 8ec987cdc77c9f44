"""The annealing loop: proposals, the objectives of FastSA, acceptance, and the best sequence."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kiwi.literature.remat.annealing.memory import peak_bytes
from kiwi.literature.remat.annealing.moves import propose, random_unit
from kiwi.literature.remat.annealing.sequence import State, roll_back, roll_forward, steps_of
from kiwi.literature.remat.annealing.tables import Ints

PRODUCT, SHARP, STRICT = 0, 1, 2
"""The objectives: equation 1 of FastSA, the objective of FastSA's footnote 2, and Kiwi's own."""
STRICTNESS = 5.0
"""The factor of the excess over the budget in the objective `STRICT`."""
SECONDS_EXPONENT = 0.6
"""The exponent of the time in the objective `SHARP`."""
SHARPNESS = 100.0
"""The steepness of the objective `SHARP` at the budget."""


class Best(NamedTuple):
    """The best sequence so far: `steps[:count[0]]`.

    A sequence within the budget is better with less time. As long as there is none, a sequence is
    better with a smaller peak. `score` is (1.0, seconds) for a sequence within the budget and (0.0,
    peak) for another. `count[1]` is 1 while the state itself is the best sequence and has not been
    copied.
    """

    steps: Ints
    count: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]


class Plan(NamedTuple):
    """Parameters of one annealing run. The temperature falls geometrically.

    `cumulated` holds the cumulated shares of the kinds of moves; the last entry is 1.
    """

    budget_bytes: float
    objective: int
    moves: int
    first_temperature: float
    last_temperature: float
    cumulated: npt.NDArray[np.float64]


def start_best(state: State, budget_bytes: float) -> Best:
    """Returns the state's present sequence as the best one."""
    steps, score = np.zeros(state.operator_at.size, np.int32), _score(state, budget_bytes)
    best = Best(steps, np.zeros(2, np.int64), np.array(score))
    _save(state, best)
    return best


@njit(cache=True, nogil=True)
def objective_value(objective, budget_bytes, peak, seconds):
    """Returns the objective to be minimised.

    `PRODUCT` is `max(budget, M) C` (equation 1) with peak M and time C. `SHARP` is
    `L(Elu(L^-1(M))) C^0.6` with a linear function L, L(0) = budget and L(-100) = 0. Its peak weighs
    so much more than the time that budgets are met. `STRICT` is equation 1 with a multiple of the
    excess over the budget.
    """
    if objective == PRODUCT:
        return max(budget_bytes, peak) * seconds
    if objective == STRICT:
        return (budget_bytes + STRICTNESS * max(0.0, peak - budget_bytes)) * seconds
    excess = SHARPNESS * (peak / budget_bytes - 1.0)
    if excess < 0.0:
        excess = np.exp(excess) - 1.0
    return budget_bytes * (1.0 + excess / SHARPNESS) * seconds**SECONDS_EXPONENT


@njit(cache=True, nogil=True)
def most_seconds_within(objective, budget_bytes, limit):
    """Returns the time above which `objective_value` exceeds `limit` whatever the peak."""
    if objective == SHARP:
        least = budget_bytes * (1.0 - 1.0 / SHARPNESS)
        return (limit / least) ** (1.0 / SECONDS_EXPONENT)
    return limit / budget_bytes


@njit(cache=True, nogil=True)
def _score(state, budget_bytes):
    """Returns (1.0, seconds) for a state within the budget, and (0.0, peak) for another."""
    peak = peak_bytes(state.memory)
    return (1.0, state.seconds[0]) if peak <= budget_bytes else (0.0, peak)


@njit(cache=True, nogil=True)
def _save(state, best):
    steps = steps_of(state)
    best.steps[: steps.size] = steps
    best.count[0] = steps.size
    best.count[1] = 0


@njit(cache=True, nogil=True)
def _note(tables, state, best, budget_bytes):
    """Updates the best sequence. A best state is copied only when it is about to change."""
    within, amount = _score(state, budget_bytes)
    is_equal = within == best.score[0]
    if within > best.score[0] or (is_equal and amount < best.score[1]):
        best.score[0], best.score[1] = within, amount
        best.count[1] = 1
    elif best.count[1] == 1 and (not is_equal or amount > best.score[1]):
        roll_back(tables, state)
        _save(state, best)
        roll_forward(tables, state)


@njit(cache=True, nogil=True)
def anneal(tables, state, best, plan, value):
    """Runs `plan.moves` moves from a state with objective `value`; returns the final objective."""
    cooling = (plan.last_temperature / plan.first_temperature) ** (1.0 / max(1, plan.moves))
    temperature = plan.first_temperature
    for _ in range(plan.moves):
        temperature *= cooling
        kind = np.searchsorted(plan.cumulated, random_unit(state))
        limit = value - temperature * np.log(random_unit(state))
        most_seconds = most_seconds_within(plan.objective, plan.budget_bytes, limit)
        if not propose(tables, state, kind, most_seconds):
            continue
        peak = peak_bytes(state.memory)
        changed = objective_value(plan.objective, plan.budget_bytes, peak, state.seconds[0])
        if changed <= limit:
            value = changed
            _note(tables, state, best, plan.budget_bytes)
        else:
            roll_back(tables, state)
    if best.count[1] == 1:
        _save(state, best)
    return value
