"""Memory over the step with matplotlib."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kiwi.errors import InvalidArgumentError
from kiwi.report.notebook import CATEGORIES, memory_curves

_GIB = 2.0**30


def plot_memory(data: Mapping[str, Any], ax: Any = None) -> Any:
    """Draws memory over the step, predicted and compiled; returns the matplotlib axes.

    `data` is that of `kiwi.report.render`.

    **Raises:** `InvalidArgumentError` if matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise InvalidArgumentError(
            "plot_memory needs matplotlib, which is not installed.",
            suggestion="pip install 'kiwi-planner[report]'",
        ) from error
    if ax is None:
        ax = plt.subplots(figsize=(9, 3.6), layout="constrained")[1]
    curves, compiled = memory_curves(data["plan"]), data["compiled_curve"]
    edges = np.arange(len(curves["arguments"]) + 1)
    below = np.zeros(len(edges) - 1)
    for category, curve in curves.items():
        if curve.any():
            above, (label, color) = below + curve / _GIB, CATEGORIES[category]
            ax.stairs(above, edges, baseline=below, fill=True, color=color, label=label)
            below = above
    if compiled is not None:
        ax.stairs(
            np.asarray(compiled) / _GIB, edges, color="black", linestyle="--", label="compiled"
        )
    budget = data["plan"]["options"]["memory_budget_bytes"] / _GIB
    if budget < 1.5 * below.max(initial=0.0):
        ax.axhline(budget, color="firebrick", label="budget")
    ax.set(xlabel="operators in the order they run", ylabel="GiB per device", xlim=(0, edges[-1]))
    ax.legend(fontsize="small", ncols=2)
    return ax
