"""The least peak of any assignment, for a caller whose limit is too low.

The limit is bisected between a lower bound and the least peak found; costs are ignored. At each
limit the engine finds an assignment, or proves that there is none, or gives up. If it gives up, the
bisection goes on above the limit, but the bound does not rise.
"""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.compiled import kernel
from kiwi.solver.engine import Engine
from kiwi.solver.network import NO_LIMIT_BYTES, Network

_PROBES = 12
"""The largest number of limits that are tried."""
_ROUNDS = 6
"""The largest number of rounds of the engine at each limit."""
_PRECISION = 1e-3
"""The relative distance between the least peak found and the largest failed limit at which the
bisection ends. A caller that names a sufficient peak gets an exact bisection."""


@dataclass(frozen=True)
class LeastPeak:
    """The result of a search for the least peak.

    - `found_bytes`: the least peak of any assignment found, or None.
    - `bound_bytes`: a proven lower bound of every assignment's peak.
    - `choice`: the assignment with the least peak; None if no assignment was found below the peak
      that was known before.
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
    """Bisects the limit for the least peak of any assignment.

    Stops at an assignment that peaks at `enough_bytes` or less, at the deadline, and after
    `most_work`. The result is exact only above `net.limit_bytes`, since the network lacks points of
    time that cannot exceed this limit.

    - `deadline`: a reading of `time.monotonic`.
    - `known_bytes`: the peak of some assignment, or None.
    """
    free = replace(
        net,
        cost=np.where(np.isfinite(net.cost), 0.0, np.inf),
        table=np.where(np.isfinite(net.table), 0.0, np.inf),
    )
    bound = int(_sum_of_least(net).max(initial=0))
    least_bytes, choice, work = known_bytes, None, 0
    failed = bound - 1  # The largest limit at which no assignment was found.
    for number in range(_PROBES):
        probe = _next_probe(failed, least_bytes, net, 0.0 if enough_bytes >= 0 else _PRECISION)
        if probe is None or time.monotonic() > deadline or work >= most_work:
            break
        limited, work_left = replace(free, limit_bytes=probe), most_work - work
        engine = Engine(limited, seed + number, 0.0, deadline, most_work=work_left)
        engine.run(_ROUNDS, _ROUNDS, force=False)
        work += engine.work
        smallest = engine.primal.smallest
        if smallest is not None and (least_bytes is None or smallest.peak_bytes < least_bytes):
            least_bytes, choice = smallest.peak_bytes, smallest.choice
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
    """Returns, for each time, the bytes that every assignment holds: the sum over the nodes of the
    least bytes of an option."""
    times = len(net.times)
    total = np.zeros(times, dtype=np.int64)
    least, option_bytes = np.empty(times, dtype=np.int64), np.zeros(times, dtype=np.int64)
    for i in range(len(net.option_start) - 1):
        for t in range(times):
            least[t] = NO_LIMIT_BYTES
        for o in range(net.option_start[i], net.option_start[i + 1]):
            if net.cost[o] == np.inf:
                continue
            for use in range(net.use_start[o], net.use_start[o + 1]):
                for t in range(net.use_begin[use], net.use_end[use]):
                    option_bytes[t] += net.use_bytes[use]
            for t in range(times):
                least[t], option_bytes[t] = min(least[t], option_bytes[t]), 0
        for t in range(times):
            total[t] += least[t]
    return total
