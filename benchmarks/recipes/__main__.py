"""MaxText's llama2-7b on 256 v5e: its recipe priced and compiled, and Kiwi's residencies beside it.

    python -m benchmarks.recipes

It needs the package maxtext (docs/guides/maxtext.md). The results go to a file after each row.
"""

import datetime
import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from absl import app, logging

from benchmarks.provenance import commit
from kiwi.frameworks.maxtext import MaxText
from kiwi.recipes import Priced, best, compare, price

RESULTS = Path(__file__).parent / "results.json"

SETTINGS = {
    "model_name": "llama2-7b",
    "per_device_batch_size": 4,
    "max_target_length": 2048,
    "attention": "dot_product",
    "remat_policy": "save_qkv_proj",
}


def main(_: Any) -> None:
    """Writes one row for the recipe, one for Kiwi's at its memory, one for Kiwi's at all memory."""
    logging.set_verbosity(logging.ERROR)
    made = MaxText("base.yml", SETTINGS, "v5e", "16x16")
    rows: list[dict[str, Any]] = []
    began_at = commit()

    def note(name: str, began: float, priced: Priced, **more: Any) -> None:
        rows.append({"what": name, "cpu_seconds": time.process_time() - began, **row(priced)})
        rows[-1] |= more
        packages = ("jax", "libtpu", "maxtext", "flax")
        told = {
            "commit": began_at,
            "date": datetime.date.today().isoformat(),
            "versions": {name: metadata.version(name) for name in packages},
            "settings": SETTINGS,
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(told, indent=1) + "\n")
        print(json.dumps(rows[-1]), flush=True)

    began = time.process_time()
    theirs = price(made, made.recipe, verify="tpu")
    note("recipe", began, theirs)
    for name, budget in (("at its memory", theirs.peak_bytes), ("at all memory", None)):
        began = time.process_time()
        given = {"memory_budget": budget} if budget else {}
        own = best(made, made.recipe, effort="quick", **given)
        checked = price(made, own.recipe, verify="tpu")
        said = str(compare(own, theirs)) if budget is None else ""
        note(name, began, checked, notes=[str(n) for n in own.plan.notes[-1:]], comparison=said)


def row(priced: Priced) -> dict[str, Any]:
    """The figures of a priced recipe."""
    compiled = priced.plan.compiled
    return {
        "seconds": priced.seconds,
        "peak_bytes": priced.peak_bytes,
        "compiled_seconds": compiled and compiled.step_seconds,
        "compiled_peak_bytes": compiled and compiled.peak_bytes,
        "residencies": dict(priced.named.residencies or {}),
    }


if __name__ == "__main__":
    app.run(main)
