"""Sorting in compiled loops."""

import numpy as np

from kiwi.solver.compiled import kernel, stable_order


@kernel
def _order(keys):
    return stable_order(keys)


def test_sorts_as_numpy_does() -> None:
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 100, 1000):
        for most in (1, 3, 10**12):
            keys = random.integers(-most, most, count)
            assert np.array_equal(_order(keys), np.argsort(keys, kind="stable"))
