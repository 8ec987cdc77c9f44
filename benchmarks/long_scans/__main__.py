"""Plans a Llama of 70B's width with increasing numbers of scanned layers, and with unrolled layers.

python -m benchmarks.long_scans

Batches have 256 x 4096 tokens on (32, 8) H100s, without a budget or a check. The seconds of a layer
are the difference between the step times of two rows, divided by the difference of their numbers of
layers. Writes `results.json` and `results.md` into this folder. Fails if the seconds of a scanned
layer differ by more than 3 % from the first ones, or if a step of unrolled layers differs by more
than 2 % from the scanned step. The compared plans gather operands anew for every reader. Unrolled
layers may keep operands that the forward pass gathered until the backward pass. A scan cannot do
that, because its two passes are two loops (`kiwi.problem.kept_copies`).
"""

import datetime
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from examples.llama import SIZES, abstract_batch, abstract_state, make_train_step

_SCANNED = flags.DEFINE_list("scanned", ["4", "8", "16", "40", "80", "126"], "Layers of scans.")
_UNROLLED = flags.DEFINE_list("unrolled", ["4", "8"], "Layers one by one.")
_FOLDER = Path(__file__).parent

_MOST_BETWEEN_LENGTHS, _MOST_BETWEEN_FORMS = 0.03, 0.02


def main(_: list[str]) -> None:
    """Plans all steps, writes the results, and exits with 1 if they differ too much."""
    jax.config.update("jax_platforms", "cpu")
    rows = _with_layer_seconds([_row(int(layers), True) for layers in _SCANNED.value])
    rows += _with_layer_seconds([_row(int(layers), False) for layers in _UNROLLED.value])
    text = _report(rows)
    results = {"rows": rows, "environment": _environment()}
    (_FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (_FOLDER / "results.md").write_text(text)
    print(text)
    between_lengths, between_forms = _differences(rows)
    is_as_promised = (
        between_lengths <= _MOST_BETWEEN_LENGTHS and between_forms <= _MOST_BETWEEN_FORMS
    )
    sys.exit(not is_as_promised)


def _row(layers: int, scanned: bool) -> dict[str, Any]:
    config = replace(SIZES["70b"], layers=layers, scanned=scanned)
    plan = kiwi.plan(
        make_train_step(config),
        abstract_state(config),
        abstract_batch(config),
        mesh_shape=(32, 8),
        profile="h100-sxm",
        memory_budget="10TB",
        verify=None,
        donate_argnums=0,
    )
    return {
        "layers": layers,
        "scanned": scanned,
        "step_seconds": plan.solve_result.objective,
        "seconds_with_kept_copies": plan.estimate.step_seconds,
        "gap": plan.solve_result.gap,
    }


def _with_layer_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with_seconds, previous = [], None
    for row in rows:
        layer_seconds = None
        if previous is not None:
            more_seconds = row["step_seconds"] - previous["step_seconds"]
            layer_seconds = more_seconds / (row["layers"] - previous["layers"])
        with_seconds.append({**row, "layer_seconds": layer_seconds})
        previous = row
    return with_seconds


def _differences(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Returns the largest relative differences: of a scanned layer's seconds from the first ones,
    and of a step with unrolled layers from the scanned step."""
    scanned = {row["layers"]: row for row in rows if row["scanned"]}
    layer_seconds = [row["layer_seconds"] for row in scanned.values() if row["layer_seconds"]]
    lengths = max(abs(seconds / layer_seconds[0] - 1) for seconds in layer_seconds)
    forms = [
        abs(row["step_seconds"] / scanned[row["layers"]]["step_seconds"] - 1)
        for row in rows
        if not row["scanned"] and row["layers"] in scanned
    ]
    return lengths, max(forms, default=0.0)


def _environment() -> dict[str, str]:
    date = datetime.date.today().isoformat()
    return {"date": date, "kiwi": kiwi.__version__, "jax": jax.__version__}


def _report(rows: list[dict[str, Any]]) -> str:
    between_lengths, between_forms = _differences(rows)
    about = ", ".join(f"{k} {v}" for k, v in _environment().items())
    lines = [
        "# A Llama of 70B's width on (32, 8) H100s, by its number of layers",
        "",
        f"`python -m benchmarks.long_scans`, {about}. A layer's time is what it adds to the row "
        f"above; it differs by at most {between_lengths:.1%} between lengths of scans, a step with "
        f"layers one by one from the scanned one by {between_forms:.1%}. Gathered operands that "
        "are kept from the forward to the backward pass, which layers one by one can do, are left "
        "out of both; steps with them stand in the last column.",
        "",
        "| layers | | step, ms | a layer, ms | gap | with kept copies, ms |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        layer_seconds = row["layer_seconds"]
        shown_seconds = "" if layer_seconds is None else f"{1e3 * layer_seconds:.2f}"
        lines.append(
            f"| {row['layers']} | {'scanned' if row['scanned'] else 'one by one'} | "
            f"{1e3 * row['step_seconds']:.1f} | {shown_seconds} | {row['gap']:.1%} | "
            f"{1e3 * row['seconds_with_kept_copies']:.1f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    app.run(main)
