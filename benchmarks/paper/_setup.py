"""What all experiments share: flags, restartable results with their header, models.

`define_flags` where a script begins, `begin` in its `main`.
"""

import datetime
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from absl import flags

import kiwi
from examples import encoder, gpt
from kiwi.api import PlannedFunction

MODELS = {"encoder": (encoder, "encoder-13b-4l"), "decoder": (gpt, "gpt-13b-4l")}
"""Stacks of layers of GPT-3 13B's width, batch 16 on sequences of 1024, float32, AdamW."""
NO_LIMIT_BYTES = 2**50


def define_flags(
    experiment: str, *, seconds: float | None = None, shares: Sequence[str] = ()
) -> None:
    """The flags that experiments have in common: `--out`; where they search `--profile` and
    `--time_limit_seconds`; where they plan for budgets `--shares`."""
    flags.DEFINE_string("out", f"benchmarks/paper/results/{experiment}.json", "Where results go.")
    if seconds is not None:
        flags.DEFINE_float("time_limit_seconds", seconds, "Processor seconds of a search.")
        flags.DEFINE_string("profile", "v100-sxm2", "Hardware, of kiwi.mesh.CATALOGUE.")
    if shares:
        flags.DEFINE_list("shares", list(shares), "Budgets, of alpa's peak without a limit.")


def begin(experiment: str) -> "Results":
    """Plans are made by the CPU, in processor seconds; returns what there is already."""
    jax.config.update("jax_platforms", "cpu")
    count_processor_seconds()
    command = " ".join([f"python -m benchmarks.paper.{experiment}", *sys.argv[1:]])
    return Results(flags.FLAGS.out, command)


def shares() -> list[float]:
    """The flag `--shares`."""
    return [float(share) for share in flags.FLAGS.shares]


def count_processor_seconds() -> None:
    """From now on time limits count the processor seconds of this process, not those in which
    others have the machine: a search gets as far on a busy machine as on an idle one."""
    time.monotonic = time.process_time


class Results:
    """A JSON file of rows by key, written after every row: a run goes on where it stopped.

    Its header is of the run that added the last row.
    """

    def __init__(self, path: str, command: str) -> None:
        self.path = Path(path)
        self._command = command
        self._document: dict[str, Any] = {"environment": environment(command), "rows": {}}
        if self.path.exists():
            self._document = json.loads(self.path.read_text())

    @property
    def rows(self) -> dict[str, Any]:
        """The rows that are there."""
        return self._document["rows"]

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Takes a row over, on disk as well."""
        self.rows[key] = row
        self._document["environment"] = environment(self._command)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self._document, indent=1) + "\n")
        print(key, json.dumps(row), flush=True)


def environment(command: str) -> dict[str, str]:
    """What a figure depends on."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": jax.__version__,
        "kiwi": kiwi.__version__,
        "python": platform.python_version(),
    }


def planned_step(model: str, layers: int = 4) -> tuple[PlannedFunction, tuple[Any, Any]]:
    """The training step of a model of `MODELS`, and its arguments as shapes."""
    module, size = MODELS[model]
    config = replace(module.SIZES[size], layers=layers)
    step = kiwi.jit(module.make_train_step(config), mesh_shape=(1,), donate_argnums=0, verify=None)
    return step, (module.abstract_state(config), module.abstract_batch(config))
