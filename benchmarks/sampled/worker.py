"""The process that measures the missing rows of one model; see `benchmarks.sampled`.

XLA may abort and end this process. The waiting process then writes a row that says so.
"""

import json
import sys
from pathlib import Path

import jax

from benchmarks.provenance import commit
from benchmarks.sampled.measure import Measuring
from benchmarks.sampled.models import draw_model
from benchmarks.sampled.rows import Key, append_row, read_rows


def main(task: dict) -> None:
    """Measures the keys of a task, in order."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", task["devices"])
    path = Path(task["path"])
    keys = [Key.parse(text) for text in task["keys"]]
    model = draw_model(keys[0].seed, keys[0].index)
    measuring = Measuring(model, task["effort"])
    of_model = {
        "family": model.family.name,
        "kinds": list(model.kinds),
        "dtypes": model.training.dtypes,
        "optimizer": model.training.optimizer,
        "commit": commit(),
    }
    for key in keys:
        print(f"begins {key}", flush=True)
        row = measuring.row(key, read_rows(path))
        append_row(path, key, {**of_model, **row})
        print(f"ended {key}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
