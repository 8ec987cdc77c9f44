"""A dozen tiny drawn models whose errors are recorded: `goldens.json`, for the tests.

    python -m benchmarks.sampled.goldens --anew

records them anew, with today's code and versions; without `--anew`, those that are missing. The
batch is sharded over all devices, so that gradients are summed between them. A change that makes
one worse than it was by more than `SLACK` fails `tests/test_sampled_benchmark.py`; one that makes
it better may be recorded.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from jax.sharding import PartitionSpec

import kiwi
from benchmarks.hardware import priced_as
from benchmarks.sampled.models import DrawnModel, draw_model
from benchmarks.sampled.sizes import TINY

_ANEW = flags.DEFINE_bool("anew", False, "Whether to record those again that are there.")

SEED = 20261129
MESH_SHAPE = (2, 4)
SLACK = 0.02
"""By how much an error may grow: of the peak or of bytes sent, relative."""

PATH = Path(__file__).parent / "goldens.json"

INDICES = (1000, 1001, 1002, 1003, 1005, 1006, 1007, 1008, 1010, 1011, 1012, 1014)
"""One block of each kind that is quickly planned; the loops that XLA runs are left out, and what
takes longest."""


def golden_models() -> Iterator[DrawnModel]:
    """The models, tiny."""
    return (draw_model(SEED, index, TINY) for index in INDICES)


def errors_of(model: DrawnModel) -> dict[str, Any]:
    """Estimated and compiled bytes of a model's free plan, as XLA:CPU compiles it."""
    plan = kiwi.plan(
        model.make_step(),
        model.state,
        model.batch,
        mesh_shape=MESH_SHAPE,
        in_shardings=(None, PartitionSpec(("x", "y"))),
        profile=priced_as("h100-sxm", "cpu"),
        verify="cpu",
        effort="quick",
        donate_argnums=0,
        plan_cache=False,
    )
    assert plan.compiled is not None
    predicted = sum(use.bytes for use in plan.estimate.collective_uses)
    return {
        "kinds": list(model.kinds),
        "peak_bytes": [plan.estimate.peak_bytes, plan.compiled.peak_bytes],
        "collective_bytes": [int(predicted), int(plan.compiled.collective_bytes)],
    }


def relative_error(pair: list[int]) -> float:
    """Of an estimated and a compiled number, over the larger one."""
    return abs(pair[0] - pair[1]) / max(*pair, 1)


def read_goldens() -> dict[str, dict[str, Any]]:
    """What is recorded, by index."""
    return json.loads(PATH.read_text())


def main(_: list[str]) -> None:
    """Records them."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    found = {} if _ANEW.value or not PATH.exists() else read_goldens()
    for model in golden_models():
        if str(model.index) in found:
            continue
        found[str(model.index)] = errors_of(model)
        print(model.index, found[str(model.index)], flush=True)
        PATH.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
