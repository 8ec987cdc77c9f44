"""A dozen tiny drawn models with recorded errors: `goldens.json`, for the tests.

    python -m benchmarks.sampled.goldens --anew

records all of them anew, with today's code and versions; without `--anew`, it records the missing
ones. The batch is sharded over all devices, so that gradients are summed between them. A change
that makes an error larger by more than `SLACK` fails `tests/test_sampled_benchmark.py`. A change
that makes an error smaller may be recorded.
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
"""The largest allowed growth of a relative error, of the peak or of sent bytes."""

PATH = Path(__file__).parent / "goldens.json"

INDICES = (1000, 1001, 1002, 1003, 1005, 1006, 1007, 1008, 1010, 1011, 1012, 1014)
"""One block of each kind that is planned quickly. Loops that XLA executes and the slowest kinds are
left out."""


def golden_models() -> Iterator[DrawnModel]:
    """Returns the models, at tiny size."""
    return (draw_model(SEED, index, TINY) for index in INDICES)


def errors_of(model: DrawnModel) -> dict[str, Any]:
    """Returns estimated and compiled bytes of a model's free plan, as XLA:CPU compiles it."""
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
    """Returns the difference of an estimated and a compiled number, over the larger one."""
    return abs(pair[0] - pair[1]) / max(*pair, 1)


def read_goldens() -> dict[str, dict[str, Any]]:
    """Returns the recorded models, by index."""
    return json.loads(PATH.read_text())


def main(_: list[str]) -> None:
    """Records the models."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    recorded = {} if _ANEW.value or not PATH.exists() else read_goldens()
    for model in golden_models():
        if str(model.index) in recorded:
            continue
        recorded[str(model.index)] = errors_of(model)
        print(model.index, recorded[str(model.index)], flush=True)
        PATH.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
