"""The parameters of a round of the search: how much of each kind of work, and how far it
reaches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """The parameters that `python -m benchmarks.solver.tune` varies.

    - `dual_steps`: the number of steps of the prices in a round.
    - `most_sweep_pairs`: the largest number of pairs of sweeps, forth and back, at each step.
    - `tree_nodes`: the largest number of nodes of a tree that is re-optimised under the limit.
    - `forced_tries`: the number of options that are forced in a round of a large network.
    - `ball_nodes`: the largest number of nodes that may change along with a forced option.
    - `most_told`: the largest number of nodes for which a probe prescribes an option.
    - `telling`: the penalty on the other options of these nodes, as a share of the cost.
    - `repair_growth`: the factor by which a repair's increase of the prices grows at each step.
    """

    dual_steps: int = 10
    most_sweep_pairs: int = 10
    tree_nodes: int = 60
    forced_tries: int = 60
    ball_nodes: int = 150
    most_told: int = 4
    telling: float = 0.1
    repair_growth: float = 1.5


DEFAULT = Parameters()
