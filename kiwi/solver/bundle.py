"""A proximal bundle method for the prices of memory.

For prices p >= 0 the Lagrangian value q(p) is at most cost_k + p . excess_k for every assignment k,
feasible or not, where excess_k[t] is its memory use above the limit. The assignments found so far
form a model of q from above. The next prices maximise

    min_k (cost_k + p . excess_k) - |p - centre|^2 / (2 width)

(Lemarechal 1978; Hiriart-Urruty and Lemarechal, *Convex Analysis and Minimization Algorithms II*,
chapter XV). The dual of this problem is a smooth problem over weights of the assignments. It is
solved by moving weight between two assignments at a time. Excess is divided by the limit, so that a
price is the cost of the whole limit for one point of time.

The bound observed at p may lie far below the cost at p of the assignment found there, because that
assignment is rounded and may have forbidden pairs. Such a cut does not tell how the bound changes.
The model therefore uses a lower cost for the cut, at which the cut touches the observed value. The
cost is raised again if the cut would lie below the value at the centre. Once the model predicts no
further gain, every cut gets its own cost (cuts with errors: Kiwiel, *A proximal bundle method with
approximate subgradient linearizations*, SIAM J. Optim. 2006, sections 2 and 3).
"""

import numpy as np

from kiwi.solver.compiled import kernel

_MOST_CUTS = 80
"""The largest number of assignments in the model. A further one replaces another."""
_EXCHANGES = 400
"""The largest number of exchanges of weight for a proposal. The prices found by then are
proposed."""
_SERIOUS, _GOOD = 0.1, 0.5
"""The shares of the predicted gain from which on a step ends a row of steps without gain, and from
which on it widens the proximal term."""
_WIDEN_FIRST, _WIDEN, _NARROW = 5.0, 2.0, 0.6
"""The factors of the width after a good step and after `_PATIENCE` steps without gain.
`_WIDEN_FIRST` holds until the first step that gains much less than predicted: before it, the order
of magnitude of the width is unknown."""
_PATIENCE = 4
"""The number of steps in a row without gain after which the width is multiplied by `_NARROW`."""
_LEAST_SHORTENED = 0.1
"""The smallest factor by which one step that lost may reduce the width."""
_LARGE_ERROR = 1e-2
"""The largest error of a cut, as a share of the observed value, at which the cut keeps its own
cost. Beyond it, the model uses a lower cost."""
_NOTHING_MORE = 1e-5
"""The predicted gain, as a share of the value at the centre, below which every cut gets its own
cost."""


@kernel
def _balance(costs, excess, centre, width, weights, tolerance):
    """Solves the dual of the proximal problem; changes `weights`. Returns the prices and the
    model's value there.

    Minimises over the simplex costs . w + max over p >= 0 of the proximal term. At given weights
    the prices are max(0, centre + width * w . excess). Each exchange moves weight from the
    assignment with the largest reduced value to the assignment with the smallest.
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
    """Proposes prices, learns from assignments, and keeps the best prices as its centre.

    - `centre`: the best prices observed, shape (times,). `value`: the bound observed there.
    - `width`: the width of the proximal term.
    """

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
        """Restarts the search for the order of magnitude of the width, at `width`."""
        self.width = width
        self._null_steps = 0
        self._widen = _WIDEN_FIRST

    @property
    def size(self) -> int:
        """The number of assignments in the model."""
        return len(self._costs)

    @property
    def predicted(self) -> float:
        """The predicted gain of the proposed prices over the model's value at the centre. That
        value may exceed `value`; no step can gain the difference."""
        return self._model - self._model_at_centre

    def add(
        self, cost: float, excess: np.ndarray, at: tuple[np.ndarray, float] | None = None
    ) -> None:
        """Adds an assignment to the model, unless the model has an equal one.

        - `cost`: the assignment's true cost. `excess`: its scaled excess at each time.
        - `at`: the prices at which the assignment was found, and the value observed there.
        """
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
        """Returns the prices that maximise the model less the proximal term."""
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
        """Takes the value observed at `prices`. These become the centre if the value is higher."""
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
        """Reduces the width if a step lost more than it was predicted to gain.

        The next step ends at the highest point of a parabola through both values, with the
        predicted slope at the centre (Kiwiel, *Proximity control in bundle methods*, 1990,
        section 2).
        """
        predicted, loss = max(self.predicted, 0.0), self.value - value
        if loss > predicted and np.isfinite(predicted):
            self.width *= max(_LEAST_SHORTENED, predicted / (2.0 * (predicted + loss)))
            self._null_steps = 0

    def _drop_one(self) -> None:
        """Removes the assignment without weight whose cut is highest at the centre, or the one with
        the least weight if all have weight."""
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
