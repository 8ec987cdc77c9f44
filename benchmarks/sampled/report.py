"""Results as Markdown tables, and errors by kind of block as a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.sampled.rows import Key, Row
from benchmarks.sampled.summary import (
    QUANTITIES,
    Spread,
    against_hand,
    by_kind,
    distinct,
    error,
    errors,
    plans_of,
    refused,
    spread,
)

_MIB = 2**20
_WORST = 12
"""The number of rows in the list of the worst, for each profile and quantity."""

_EXPLAINED = (
    "Errors are estimated over compiled, minus 1; the compiled time is that of the compiled",
    "program's schedule by the same prices. Collectives: the difference of all bytes over the",
    "larger side. A budget is a share of the free plan's compiled peak.",
)


def markdown(environment: Mapping[str, str], rows: Mapping[str, Row]) -> str:
    """Returns the page: the environment, spreads, the worst rows with their kernels, then all
    rows."""
    lines = ["# Models drawn at random: estimated against compiled", ""]
    lines += [f"{name}: {value}  " for name, value in environment.items()]
    lines += ["", *_EXPLAINED, "", *_spreads(rows)]
    lines += ["", "## By kind of block, free plans", "", *_kinds(rows)]
    lines += ["", "## The worst, and their kernels", "", *_worst(rows)]
    lines += ["", "## What was not planned", "", *_failures(rows)]
    if against_hand(rows):
        lines += ["", "## Plans against steps by hand, as compiled", "", *_by_hand(rows)]
    lines += ["", "## All rows", "", *_all(rows)]
    return "\n".join(lines) + "\n"


def _spreads(rows: Mapping[str, Row]) -> list[str]:
    lines = [
        "| profile | rows | | count | median | 95 % | worst | worst row | refused | rounds |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for profile, variant in distinct(rows, ("profile", "variant")):
        chosen = plans_of(rows, profile, variant)
        for number, quantity in enumerate(QUANTITIES):
            spread_of_errors = spread(errors(chosen, quantity))
            counts = [row["rounds"] for row in chosen.values() if row.get("rounds")]
            tail = ("", "")
            if number == 0:
                mean = f"{sum(counts) / len(counts):.1f}" if counts else ""
                tail = (f"{len(refused(chosen))} of {len(chosen)}", mean)
            lines.append(_line(profile, variant, quantity, *_spread_cells(spread_of_errors), *tail))
    return lines


def _spread_cells(found: Spread | None) -> tuple[str, ...]:
    if found is None:
        return "0", "", "", "", ""
    sizes = f"{found.median:.1%}", f"{found.percentile_95:.1%}", f"{found.worst:+.1%}"
    return str(found.count), *sizes, _model(found.row)


def _kinds(rows: Mapping[str, Row]) -> list[str]:
    profiles = [profile for (profile,) in distinct(rows, ("profile",))]
    head = [f"{profile}: peak, median and worst | time" for profile in profiles]
    lines = [
        "| kind | " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (2 * len(profiles)),
    ]
    for kind, of_kind in by_kind(rows).items():
        cells = []
        for profile in profiles:
            chosen = plans_of(of_kind, profile, "free")
            for quantity in ("peak", "time"):
                spread_of_errors = spread(errors(chosen, quantity))
                text = (
                    ""
                    if spread_of_errors is None
                    else f"{spread_of_errors.median:.1%}, {spread_of_errors.worst:+.1%}"
                )
                cells.append(text)
        lines.append(_line(kind, *cells))
    return lines


def _worst(rows: Mapping[str, Row]) -> list[str]:
    lines = [
        "| profile | | row | error | family | kernel: estimated, compiled | source |",
        "| --- | --- | --- | ---: | --- | --- | --- |",
    ]
    for (profile,) in distinct(rows, ("profile",)):
        for quantity in QUANTITIES:
            chosen = {
                key: row
                for key, row in rows.items()
                if Key.parse(key).profile == profile and not Key.parse(key).is_by_hand
            }
            errors_by_key = errors(chosen, quantity)
            for key in sorted(errors_by_key, key=lambda k: -abs(errors_by_key[k]))[:_WORST]:
                kernel, source = _kernel(rows[key], quantity)
                row = f"{_model(key)} {Key.parse(key).mesh} {Key.parse(key).variant}"
                family = rows[key].get("family", "")
                text = f"{errors_by_key[key]:+.1%}"
                lines.append(_line(profile, quantity, row, text, family, kernel, source))
    return lines


_KERNELS_OF = {"peak": "memory", "time": "compute", "collectives": "communication"}


def _kernel(row: Row, quantity: str) -> tuple[str, str]:
    """Returns the kernel with the largest deviation in the direction of the row's error, and its
    source."""
    kernels = row.get("kernels", {}).get(_KERNELS_OF[quantity], [])
    row_error = error(row, quantity) or 0.0
    of_units = [k for k in kernels if k[3]] or kernels
    same_direction = [k for k in of_units if (k[0] - k[1]) * row_error > 0] or of_units
    if not same_direction:
        return "", ""
    predicted, compiled, name, count, shape, source = same_direction[0]
    if quantity == "peak":
        sides = f"{predicted / _MIB:.1f}, {compiled / _MIB:.1f} MiB"
    else:
        sides = f"{predicted * 1e3:.3f}, {compiled * 1e3:.3f} ms"
    times = f"{count} x " if count > 1 else ""
    return f"{times}{name} {shape}: {sides}", source


def _failures(rows: Mapping[str, Row]) -> list[str]:
    lines = ["| row | family | error | what |", "| --- | --- | --- | --- |"]
    for key, row in sorted(rows.items()):
        if "error" in row:
            what = " ".join(f"{row['what']} {row.get('plain_step', '')}".split())
            lines.append(_line(key, row.get("family", ""), row["error"], what.replace("|", "/")))
    return lines


def _by_hand(rows: Mapping[str, Row]) -> list[str]:
    lines = ["| row | planned over fastest by hand | by hand |", "| --- | ---: | --- |"]
    for key, (ratio, variant) in against_hand(rows).items():
        lines.append(_line(key, f"{ratio:.2f}", variant))
    return lines


def _all(rows: Mapping[str, Row]) -> list[str]:
    lines = [
        "| row | family | kinds | dtypes | peak MiB: estimated, compiled | error | "
        "ms: estimated, compiled | error | collectives | first peak MiB | rounds | CPU s |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, row in sorted(rows.items(), key=lambda pair: _order(pair[0])):
        texts = {
            quantity: "" if (row_error := error(row, quantity)) is None else f"{row_error:+.1%}"
            for quantity in QUANTITIES
        }
        first = row.get("first_peak_bytes")
        lines.append(
            _line(
                key,
                row.get("family", ""),
                ", ".join(row.get("kinds", ())),
                row.get("dtypes", ""),
                _pair(row, "peak_bytes", 1 / _MIB),
                texts["peak"],
                _pair(row, "step_seconds", 1e3),
                texts["time"],
                texts["collectives"],
                "" if first is None else f"{first / _MIB:.1f}",
                str(row.get("rounds", "")),
                str(row.get("cpu_seconds", "")),
            )
        )
    return lines


def _order(text: str) -> tuple[Any, ...]:
    key = Key.parse(text)
    return key.seed, key.index, key.profile, key.mesh, key.variant


def _pair(row: Row, field: str, factor: float) -> str:
    sides = [row.get(f"{side}_{field}") for side in ("predicted", "compiled")]
    if None in sides:
        return row.get("error", "")
    return ", ".join(f"{factor * float(side or 0.0):.2f}" for side in sides)


def _model(key: str) -> str:
    return key.split(" ")[0]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def picture(rows: Mapping[str, Row], path: Path) -> None:
    """Draws the errors of free plans by kind of block, with one panel for peaks, one for times, and
    one colour per profile.

    **Raises:** `ImportError` without matplotlib (the extra `report`).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    profiles = [profile for (profile,) in distinct(rows, ("profile",))]
    kinds = list(by_kind(rows))
    if not kinds:
        return
    figure, panels = pyplot.subplots(
        1, 2, figsize=(14, 1.5 + 0.3 * len(kinds)), sharey=True, squeeze=False
    )
    for panel, quantity in zip(panels[0], ("peak", "time"), strict=True):
        for colour, profile in enumerate(profiles):
            _draw(panel, rows, kinds, profile, quantity, f"C{colour}", colour / 5)
        for edge in (-0.05, 0.05) if quantity == "peak" else (-0.15, 0.15):
            panel.axvline(edge, color="grey", linewidth=0.6, linestyle="--")
        panel.axvline(0.0, color="black", linewidth=0.8)
        panel.set_xscale("symlog", linthresh=0.25)
        panel.set(xlabel=f"{quantity}: estimated over compiled, minus 1")
        panel.set_yticks(range(len(kinds)), kinds, fontsize=8)
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(
    panel: Any,
    rows: Mapping[str, Row],
    kinds: list[str],
    profile: str,
    quantity: str,
    colour: str,
    shift: float,
) -> None:
    across, along = [], []
    for place, kind in enumerate(kinds):
        errors_by_key = errors(plans_of(by_kind(rows)[kind], profile, "free"), quantity)
        across += errors_by_key.values()
        along += [place + shift] * len(errors_by_key)
    panel.scatter(across, along, s=16, color=colour, label=profile)
