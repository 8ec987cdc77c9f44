"""The rows as a Markdown table, and a scatter plot of predicted against compiled peaks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.fidelity.measure import Row
from benchmarks.fidelity.summary import Key, collective_errors, peak_error

_MIB = 2**20

_EXPLAINED = (
    "plans: Kiwi's own. by_hand: sharded by hand, `jax.checkpoint` as named, run by Kiwi as it is",
    '(`planner="xla"`). plain: the same step compiled without Kiwi, against `plan.as_written`.',
    "Budgets: the one asked for in brackets, where no plan needs that little.",
)


def markdown(environment: Mapping[str, str], rows: Mapping[str, Row], summary: Any) -> str:
    """Returns the page: the environment, the summary, and all rows."""
    lines = ["# Predicted against compiled peak", ""]
    lines += [f"{name}: {value}  " for name, value in environment.items()]
    lines += ["", "| target | rows | median | worst | worst row | budgets met |"]
    lines += ["| --- | ---: | ---: | ---: | --- | ---: |"]
    for target, figures in summary.items():
        for what in ("plans", "by_hand", "plain"):
            lines.append(_summary_line(target, what, figures))
    lines += ["", *_EXPLAINED]
    header = "| row | budget MiB | predicted MiB | compiled MiB | error | collectives, worst kind |"
    lines += ["", header + " rounds | plain MiB | error | seconds |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    lines += [_row_line(key, row) for key, row in sorted(rows.items())]
    return "\n".join(lines) + "\n"


def _summary_line(target: str, what: str, figures: Mapping[str, Any]) -> str:
    peaks = figures[what]
    if not peaks["rows"]:
        return f"| {target}, {what} | 0 | | | | |"
    met = f"{figures['budgets_met']}/{figures['budgets']}" if what == "plans" else ""
    return (
        f"| {target}, {what} | {peaks['rows']} | {peaks['median']:.1%} | {peaks['worst']:+.1%} "
        f"| {peaks['worst_row']} | {met} |"
    )


def _row_line(key: str, row: Row) -> str:
    if "error" in row:
        return f"| {key} | | | | {row['error']} | | | | | {row['total_seconds']} |"
    error = peak_error(row)
    worst = max(collective_errors(row, Key.parse(key).target), key=lambda p: p[1], default=None)
    cells = (
        key,
        _budget(row),
        _mib(row.get("predicted_peak_bytes")),
        _mib(row["compiled_peak_bytes"]),
        "" if error is None else f"{error:+.1%}",
        "" if worst is None else f"{worst[0]} {worst[1]:.0%}",
        _rounds(row),
        *_plain(row.get("plain")),
        str(row["total_seconds"]),
    )
    return "| " + " | ".join(cells) + " |"


def _plain(row: Row | None) -> tuple[str, str]:
    """Returns the compiled peak of a step without Kiwi, and the error of its prediction."""
    if row is None:
        return "", ""
    return _mib(row["compiled_peak_bytes"]), f"{peak_error(row):+.1%}"


def _budget(row: Row) -> str:
    """Returns the budget. The budget of the variant follows in brackets if no plan fits it."""
    asked = f" ({_mib(row['asked_bytes'])})" if "asked_bytes" in row else ""
    return _mib(row.get("budget_bytes")) + asked


def _rounds(row: Row) -> str:
    """Returns the number of compiled plans, and whether none of them met the budget."""
    if not row.get("rounds"):
        return ""
    return f"{len(row['rounds'])}{', refused' if row.get('refused') else ''}"


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / _MIB:.1f}"


def scatter(rows: Mapping[str, Row], path: Path) -> None:
    """Draws one panel per target, with one colour per model. Plans are dots, steps by hand are
    crosses.

    **Raises:** `ImportError` without matplotlib (the extra `report`).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    keyed = {Key.parse(key): row for key, row in rows.items() if peak_error(row) is not None}
    targets = sorted({key.target for key in keyed})
    models = sorted({key.model for key in keyed})
    figure, panels = pyplot.subplots(1, len(targets), figsize=(6 * len(targets), 6), squeeze=False)
    for panel, target in zip(panels[0], targets, strict=True):
        for colour, model in enumerate(models):
            rows_of_panel = {
                k: r for k, r in keyed.items() if (k.target, k.model) == (target, model)
            }
            _draw(panel, rows_of_panel, model, f"C{colour}")
        _decorate(panel, target)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw(panel: Any, rows: Mapping[Key, Row], label: str, colour: str) -> None:
    for by_hand, marker in ((False, "o"), (True, "x")):
        chosen = [row for key, row in rows.items() if key.by_hand == by_hand]
        panel.scatter(
            [row["compiled_peak_bytes"] / _MIB for row in chosen],
            [row["predicted_peak_bytes"] / _MIB for row in chosen],
            s=16,
            marker=marker,
            color=colour,
            label=None if by_hand else label,
        )


def _decorate(panel: Any, target: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    low, high = panel.get_xlim()
    panel.plot([low, high], [low, high], color="black", linewidth=0.8)
    for factor in (0.85, 1.15):
        edge = [factor * low, factor * high]
        panel.plot([low, high], edge, color="grey", linewidth=0.6, linestyle="--")
    panel.set(title=target, xlabel="compiled peak, MiB", ylabel="predicted peak, MiB")
    panel.legend(fontsize=8)
