"""The results as a table and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of all plans, with the environment of the measurement."""
    environment = results["environment"]
    lines = [
        "# Replay: predicted against measured seconds of whole steps",
        "",
        f"`{environment['command']}`, {environment['date']}, CPU cores: {environment['cores']}; "
        f"jax {environment['jax']}, Python {environment['python']}, kiwi {environment['kiwi']}; "
        f"{environment['rounds']} rounds.",
        "",
        "| model | mesh | plan | recomputed | predicted, ms | measured, ms | ratio | each round |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in results["rows"]:
        round_ratios = ", ".join(f"{ratio:.2f}" for ratio in row["round_ratios"])
        lines.append(
            f"| {row['model']} | {row['mesh']} | {row['plan']} | {row['recomputed']} | "
            f"{1e3 * row['predicted_seconds']:.1f} | {1e3 * row['measured_seconds']:.1f} | "
            f"{row['ratio']:.2f} | {round_ratios} |"
        )
    lines.append("")
    for model, value in results["spearman"].items():
        lines.append(f"Order of the plans of {model}: Spearman {value:.2f}.")
    return "\n".join(lines).rstrip() + "\n"


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws predicted against measured seconds, with a band of 20 %."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 5))
    for model in dict.fromkeys(row["model"] for row in rows):
        model_rows = [row for row in rows if row["model"] == model]
        x = [1e3 * row["measured_seconds"] for row in model_rows]
        y = [1e3 * row["predicted_seconds"] for row in model_rows]
        axes.plot(x, y, "o", label=model)
    seconds = [1e3 * row[key] for row in rows for key in ("measured_seconds", "predicted_seconds")]
    ends = [0.8 * min(seconds), 1.25 * max(seconds)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(ends, [0.8 * e for e in ends], [1.2 * e for e in ends], alpha=0.15)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
