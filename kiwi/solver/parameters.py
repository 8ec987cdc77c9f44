"""The amount of each kind of work in a round of the search, and its reach."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """The parameters that `python -m benchmarks.solver.tune` varies. Their values were found on its
    instances.

    - `dual_steps`: steps of the prices in a round. `most_sweep_pairs`: sweeps, forth and back, at
      each.
    - `tree_nodes`: the most nodes of a tree that is re-optimised under the limit.
    - `forced_tries`: options forced in a round of a large network. `ball_nodes`: the most nodes
      that may follow one.
    - `most_told`: the most nodes to which a probe gives options. `telling`: the share of the cost
      by which their other options cost more.
    - `repair_growth`: the factor by which a repair raises the prices faster from step to step.
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
