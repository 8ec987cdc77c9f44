"""The shared parts of all experiments: flags, resumable results with their header, and models.

A script calls `define_flags` at its top, and `begin` in its `main`.
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
"""Stacks of layers with the width of GPT-3 13B: batch 16, sequences of 1024, float32, AdamW."""
NO_LIMIT_BYTES = 2**50


def define_flags(
    experiment: str, *, seconds: float | None = None, shares: Sequence[str] = ()
) -> None:
    """Defines the flags that experiments share: `--out`; with `seconds` also `--profile` and
    `--time_limit_seconds`; with `shares` also `--shares`."""
    flags.DEFINE_string("out", f"benchmarks/paper/results/{experiment}.json", "Where results go.")
    if seconds is not None:
        flags.DEFINE_float("time_limit_seconds", seconds, "Processor seconds of a search.")
        flags.DEFINE_string("profile", "v100-sxm2", "Hardware, of kiwi.mesh.CATALOGUE.")
    if shares:
        flags.DEFINE_list("shares", list(shares), "Budgets, of alpa's peak without a limit.")


def begin(experiment: str) -> "Results":
    """Sets up an experiment whose time limits count processor seconds, and returns the recorded
    results."""
    jax.config.update("jax_platforms", "cpu")
    count_processor_seconds()
    command = " ".join([f"python -m benchmarks.paper.{experiment}", *sys.argv[1:]])
    return Results(flags.FLAGS.out, command)


def shares() -> list[float]:
    """Returns the budgets of the flag `--shares`."""
    return [float(share) for share in flags.FLAGS.shares]


def count_processor_seconds() -> None:
    """Makes time limits count the processor seconds of this process. A search then gets as far on a
    busy machine as on an idle one."""
    time.monotonic = time.process_time


class Results:
    """A JSON file of rows by key, written after every row, so that a run continues where it
    stopped.

    Its header describes the run that added the last row.
    """

    def __init__(self, path: str, command: str) -> None:
        self.path = Path(path)
        self._command = command
        self._document: dict[str, Any] = {"environment": environment(command), "rows": {}}
        if self.path.exists():
            self._document = json.loads(self.path.read_text())

    @property
    def rows(self) -> dict[str, Any]:
        """The recorded rows by key."""
        return self._document["rows"]

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Adds a row, and writes the file."""
        self.rows[key] = row
        self._document["environment"] = environment(self._command)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self._document, indent=1) + "\n")
        print(key, json.dumps(row), flush=True)


def environment(command: str) -> dict[str, str]:
    """Returns the command, the date and the versions that a figure depends on."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": jax.__version__,
        "kiwi": kiwi.__version__,
        "python": platform.python_version(),
    }


def planned_step(model: str, layers: int = 4) -> tuple[PlannedFunction, tuple[Any, Any]]:
    """Returns the training step of a model of `MODELS`, and its arguments as shapes."""
    module, size = MODELS[model]
    config = replace(module.SIZES[size], layers=layers)
    step = kiwi.jit(module.make_train_step(config), mesh_shape=(1,), donate_argnums=0, verify=None)
    return step, (module.abstract_state(config), module.abstract_batch(config))
