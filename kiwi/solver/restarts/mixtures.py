"""Networks in which the good parts of several choices meet."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kiwi.solver.edge_tables import owners
from kiwi.solver.network import Network
from kiwi.solver.presolve.pipeline import presolve
from kiwi.solver.presolve.reduction import Reduction


def mixtures(net: Network, choices: Sequence[np.ndarray]) -> Reduction:
    """The network with the options alone that one of the choices (n,) takes, presolved."""
    return _with(net, _taken(net, choices))


def disagreement(net: Network, choices: Sequence[np.ndarray]) -> Reduction:
    """The network in which nodes that take the same option in all choices (n,) keep it, while all
    others have every option, presolved."""
    agree = (np.stack(choices) == choices[0]).all(axis=0)
    return _with(net, _taken(net, choices) | ~agree[owners(net.option_start)])


def _taken(net: Network, choices: Sequence[np.ndarray]) -> np.ndarray:
    taken = np.zeros(net.option_count, dtype=np.bool_)
    for choice in choices:
        taken[net.option_start[:-1] + choice] = True
    return taken


def _with(net: Network, keep: np.ndarray) -> Reduction:
    return presolve(replace(net, cost=np.where(keep, net.cost, np.inf)))
