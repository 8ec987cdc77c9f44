"""Table 2 of the paper: operators against encoder layers, beside the paper's counts.

The script counts the equations of the traced step (forward, backward and update), the StableHLO
operators that they lower to, and the planned units.

    python -m benchmarks.paper.table2
"""

import matplotlib.pyplot as plt
from absl import app, flags

from benchmarks.paper._setup import Results, begin, define_flags, planned_step

define_flags("table2")
_LAYERS = flags.DEFINE_list("layers", ["1", "4", "8", "12", "16", "20"], "Numbers of layers.")

PAPER_OPERATORS = {1: 308, 4: 1192, 8: 2254, 12: 3366, 16: 4478, 20: 5590}


def main(_: list[str]) -> None:
    """Counts the missing rows, then draws the table."""
    results = begin("table2")
    for layers in map(int, _LAYERS.value):
        if str(layers) not in results.rows:
            results.add(str(layers), _counts(layers))
    _draw(results)


def _counts(layers: int) -> dict[str, int | None]:
    step, arguments = planned_step("encoder", layers)
    units = step.traced(*arguments).units
    return {
        "paper_operators": PAPER_OPERATORS.get(layers),
        "equations": len(units.graph.program.equations),
        "stablehlo_operators": len(units.graph.operators),
        "units": len(units.units),
    }


def _draw(results: Results) -> None:
    layers = sorted(map(int, results.rows))
    figure, panel = plt.subplots(figsize=(5, 3.4))
    for name in ("paper_operators", "stablehlo_operators", "equations", "units"):
        counts = [results.rows[str(n)][name] for n in layers]
        panel.plot(layers, counts, marker="o", label=name.replace("_", " "))
    panel.set_xlabel("encoder layers")
    panel.set_ylabel("count")
    panel.grid(alpha=0.3)
    panel.legend()
    figure.tight_layout()
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
