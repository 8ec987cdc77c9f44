"""The least memory of any assignment, for a caller whose limit is too low.

The limit is bisected between a bound and the least peak found, costs ignored. At each probe the
engine either finds an assignment within it, or proves that there is none, or gives up. Giving up
counts as failure for the search and proves nothing.
"""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.compiled import kernel
from kiwi.solver.engine import Engine
from kiwi.solver.network import NO_LIMIT_BYTES, Network

_PROBES = 12
_ROUNDS = 6
_PRECISION = 1e-3


@dataclass(frozen=True)
class LeastPeak:
    """The result of a search for the least peak.

    - `found_bytes`: the least peak of any assignment found, or None.
    - `bound_bytes`: a proven lower bound on every assignment's peak.
    - `choice`: the assignment with the least peak that a probe found, if any.
    - `work`: as in `kiwi.solver.SolveResult`.
    """

    found_bytes: int | None
    bound_bytes: int
    choice: np.ndarray | None = None
    work: int = 0


def least_peak(
    net: Network,
    seed: int,
    deadline: float,
    known_bytes: int | None,
    enough_bytes: int = -1,
    most_work: float = math.inf,
) -> LeastPeak:
    """Bisection down from `known_bytes`, the peak of some assignment, if any is known.

    Stops at an assignment that peaks at `enough_bytes` or less, at the deadline, and after
    `most_work`. Exact only above `net.limit_bytes`: times that cannot exceed that were dropped.
    """
    free = replace(
        net,
        cost=np.where(np.isfinite(net.cost), 0.0, np.inf),
        table=np.where(np.isfinite(net.table), 0.0, np.inf),
    )
    bound = int(_sum_of_least(net).max(initial=0))
    least_bytes, choice, work = known_bytes, None, 0
    failed = bound - 1  # the largest limit without a known assignment
    for number in range(_PROBES):
        probe = _next_probe(failed, least_bytes, net, 0.0 if enough_bytes >= 0 else _PRECISION)
        if probe is None or time.monotonic() > deadline or work >= most_work:
            break
        limited, left = replace(free, limit_bytes=probe), most_work - work
        engine = Engine(limited, seed + number, 0.0, deadline, most_work=left)
        engine.run(_ROUNDS, _ROUNDS, force=False)
        work += engine.work
        seen = engine.primal.smallest
        if seen is not None and (least_bytes is None or seen.peak_bytes < least_bytes):
            least_bytes, choice = seen.peak_bytes, seen.choice
            if least_bytes <= enough_bytes:
                break
        if engine.incumbent is None:
            failed = probe
        if engine.infeasible:
            bound = max(bound, probe + 1)
    return LeastPeak(
        least_bytes, bound if least_bytes is None else min(bound, least_bytes), choice, work
    )


def _next_probe(failed: int, found: int | None, net: Network, precision: float) -> int | None:
    if found is None:
        return max(2 * failed, 2 * net.limit_bytes, 1)
    if found - failed <= 1 + precision * found:
        return None
    return (failed + found) // 2


@kernel
def _sum_of_least(net: Network):
    """At each time the bytes that every assignment holds: for each node, its least."""
    times = len(net.times)
    total = np.zeros(times, dtype=np.int64)
    least, mine = np.empty(times, dtype=np.int64), np.zeros(times, dtype=np.int64)
    for i in range(len(net.option_start) - 1):
        for t in range(times):
            least[t] = NO_LIMIT_BYTES
        for o in range(net.option_start[i], net.option_start[i + 1]):
            if net.cost[o] == np.inf:
                continue
            for u in range(net.use_start[o], net.use_start[o + 1]):
                for t in range(net.use_begin[u], net.use_end[u]):
                    mine[t] += net.use_bytes[u]
            for t in range(times):
                least[t], mine[t] = min(least[t], mine[t]), 0
        for t in range(times):
            total[t] += least[t]
    return total
