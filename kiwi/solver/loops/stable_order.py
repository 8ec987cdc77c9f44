"""Sorting in compiled loops: numba's own sorts take a second to compile."""

import numpy as np

from kiwi.solver.compiled import inner

_SHORT = 16


@inner(nogil=True)
def stable_order(keys):
    """`np.argsort(keys, kind="stable")` of integers: short runs by insertion, which are merged."""
    count = len(keys)
    order, merged = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for k in range(count):
        at = k
        while at % _SHORT and keys[order[at - 1]] > keys[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k
    width = _SHORT
    while width < count:
        for first in range(0, count, 2 * width):
            a, middle = first, min(first + width, count)
            b, last = middle, min(first + 2 * width, count)
            for k in range(first, last):
                if b == last or (a < middle and keys[order[a]] <= keys[order[b]]):
                    merged[k] = order[a]
                    a += 1
                else:
                    merged[k] = order[b]
                    b += 1
        order, merged = merged, order
        width *= 2
    return order
