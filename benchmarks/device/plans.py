"""Makes the plans that `benchmarks.device` runs. Needs XLA:GPU's compiler, but no GPU.

python -m benchmarks.device.plans --out=plans --models=gpt,mlp
"""

import json
from pathlib import Path

import jax
from absl import app, flags

from benchmarks.device.models import MODELS
from benchmarks.device.planning import predicted

_NAMES = flags.DEFINE_list("models", list(MODELS), "Which ones.")
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "Of the card; a file of a table will do.")
_VERIFY = flags.DEFINE_string("verify", "cuda", "The compiler that plans are checked with.")
_OUT = flags.DEFINE_string("out", "plans", "The folder for them.")


def main(_: list[str]) -> None:
    """Makes the missing plans."""
    jax.config.update("jax_platforms", "cpu")
    folder = Path(_OUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _NAMES.value:
        path = folder / f"{name}.json"
        rows = json.loads(path.read_text()) if path.exists() else {}
        for key, row in predicted(name, folder, rows, _PROFILE.value, _VERIFY.value):
            rows[key] = row
            path.write_text(json.dumps(rows, indent=1) + "\n")
            print(name, key, row, flush=True)


if __name__ == "__main__":
    app.run(main)
