"""A proximal bundle method for the prices of memory.

For prices p >= 0 the Lagrangian value q(p) lies below cost_k + p . excess_k for every assignment k,
feasible or not, where excess_k[t] is its memory use above the limit. The assignments met so far
form a model of q from above; the next prices maximise

    min_k (cost_k + p . excess_k) - |p - centre|^2 / (2 width)

(Lemarechal 1978; Hiriart-Urruty and Lemarechal, *Convex Analysis and Minimization Algorithms II*,
chapter XV). Its dual is a smooth problem over weights of the assignments, solved by exchanging
weight between two of them at a time. Excess and prices are scaled by the limit, so that a price
is the cost of the whole limit for one point of time.

The bound that is observed at p may lie far below what the assignment found there costs at p: the
assignment is a rounded one, perhaps with forbidden pairs. Such a cut says nothing about how
the bound changes. It is shown to the model with its cost lowered until it touches the observed
value, raised again where it would lie below the centre's, and at its own cost once the model
promises nothing more (cuts with errors: Kiwiel, *A proximal bundle method with approximate
subgradient linearizations*, SIAM J. Optim. 2006, sections 2 and 3).
"""

import numpy as np

from kiwi.solver.compiled import kernel

_MOST_CUTS = 80
_EXCHANGES = 400
_SERIOUS, _GOOD = 0.1, 0.5
_WIDEN_FIRST, _WIDEN, _NARROW = 5.0, 2.0, 0.6
"""Factors of the width. Before the first step that gains less than predicted, the order of the
width is unknown."""
_PATIENCE = 4
_LEAST_SHORTENED = 0.1
_LARGE_ERROR = 1e-2
"""From this share of the observed value on, a cut's error is subtracted from its cost."""
_NOTHING_MORE = 1e-5
"""A model that promises less than this share of the centre's value shows every cut at its
own cost."""


@kernel
def _balance(costs, excess, centre, width, weights, tolerance):
    """Moves weight from the assignment with the largest to that with the smallest reduced value.

    Minimises over the simplex costs . w + max over p >= 0 of the proximal term; at given weights
    the prices are max(0, centre + width * w . excess). Returns the prices and the model's value.
    """
    count, times = excess.shape
    slope = np.zeros(times)
    for k in range(count):
        if weights[k] > 0.0:
            slope += weights[k] * excess[k]
    prices = np.maximum(0.0, centre + width * slope)
    values = np.empty(count)
    for _ in range(_EXCHANGES):
        for k in range(count):
            values[k] = costs[k] + np.dot(excess[k], prices)
        low, high = 0, -1
        for k in range(count):
            if values[k] < values[low]:
                low = k
            if weights[k] > 0.0 and (high < 0 or values[k] > values[high]):
                high = k
        if values[high] - values[low] <= tolerance:
            break
        difference = excess[low] - excess[high]
        curvature = width * np.dot(difference, difference)
        share = weights[high]
        if curvature > 0.0:
            share = min(share, (values[high] - values[low]) / curvature)
        weights[low] += share
        weights[high] -= share
        slope += share * difference
        prices = np.maximum(0.0, centre + width * slope)
    lowest = np.inf
    for k in range(count):
        lowest = min(lowest, costs[k] + np.dot(excess[k], prices))
    return prices, lowest


class Bundle:
    """Proposes prices, learns from assignments, and keeps the best prices as its centre."""

    def __init__(self, times: int) -> None:
        self.centre = np.zeros(times)
        self.value = -np.inf
        self.begin(1.0)
        self._costs = np.zeros(0)
        self._shown = np.zeros(0)
        self._excess = np.zeros((0, times))
        self._weights = np.zeros(0)
        self._model = self._model_at_centre = 0.0

    def begin(self, width: float) -> None:
        """Looks for the right order of the width, from this one on."""
        self.width = width
        self._null_steps = 0
        self._widen = _WIDEN_FIRST

    @property
    def size(self) -> int:
        """The number of assignments in the model."""
        return len(self._costs)

    @property
    def predicted(self) -> float:
        """The predicted gain of the proposed prices over the centre. It may lie above the value,
        too: no step can gain that."""
        return self._model - self._model_at_centre

    def add(
        self, cost: float, excess: np.ndarray, at: tuple[np.ndarray, float] | None = None
    ) -> None:
        """Adds an assignment (its true cost, its scaled excess at each time) to the model. `at`:
        the prices at which it was found, and the value observed there."""
        if np.any((self._costs == cost) & (self._excess == excess).all(axis=1)):
            return
        if len(self._costs) >= _MOST_CUTS:
            self._drop_one()
        shown = cost
        if at is not None:
            touching = at[1] - float(excess @ at[0])
            if cost - touching > _LARGE_ERROR * abs(at[1]):
                shown = max(touching, self.value - float(excess @ self.centre))
        self._shown = np.append(self._shown, shown)
        self._costs = np.append(self._costs, cost)
        self._excess = np.vstack([self._excess, excess])
        self._weights = np.append(self._weights, 0.0)

    def propose(self) -> np.ndarray:
        """The prices at which the model, held near the centre, is highest."""
        if not len(self._costs):
            return self.centre
        if self._weights.sum() <= 0.0:
            self._weights[np.argmin(self._shown)] = 1.0
        tolerance = 1e-7 * max(abs(self.value), 1e-300) if np.isfinite(self.value) else 0.0
        prices, self._model = _balance(
            self._shown, self._excess, self.centre, self.width, self._weights, tolerance
        )
        self._model_at_centre = float((self._shown + self._excess @ self.centre).min())
        return prices

    def observe(self, prices: np.ndarray, value: float) -> None:
        """Takes the value found at `prices`, which may become the new centre."""
        self._step(prices, value)
        if self.predicted < _NOTHING_MORE * abs(self.value):
            self._shown = self._costs.copy()
        elif len(self._shown):
            self._shown = np.maximum(self._shown, self.value - self._excess @ self.centre)

    def _step(self, prices: np.ndarray, value: float) -> None:
        if value >= self.value + _SERIOUS * max(self.predicted, 0.0) or self.value == -np.inf:
            if value >= self.value + _GOOD * max(self.predicted, 0.0):
                self.width *= self._widen
            self.centre, self.value = prices, value
            self._null_steps = 0
            return
        self._widen = _WIDEN
        if value > self.value:
            self.centre, self.value = prices, value
        self._null_steps += 1
        if self._null_steps >= _PATIENCE:
            self._null_steps = 0
            self.width *= _NARROW
        self._shorten(value)

    def _shorten(self, value: float) -> None:
        """After a step that lost more than it was predicted to gain: moves to the highest point of
        a parabola through both values, with the predicted slope at the centre (Kiwiel, *Proximity
        control in bundle methods*, 1990, section 2)."""
        predicted, loss = max(self.predicted, 0.0), self.value - value
        if loss > predicted and np.isfinite(predicted):
            self.width *= max(_LEAST_SHORTENED, predicted / (2.0 * (predicted + loss)))
            self._null_steps = 0

    def _drop_one(self) -> None:
        """Forgets the assignment without weight that is least binding at the centre."""
        slack = self._shown + self._excess @ self.centre
        slack[self._weights > 0] = -np.inf
        index = int(np.argmax(slack)) if np.isfinite(slack).any() else int(np.argmin(self._weights))
        weight = self._weights[index]
        keep = np.arange(len(self._costs)) != index
        self._costs, self._excess = self._costs[keep], self._excess[keep]
        self._shown = self._shown[keep]
        self._weights = self._weights[keep]
        if weight > 0 and self._weights.sum() > 0:
            self._weights /= self._weights.sum()
