"""The largest batch of small models, compiled by XLA:CPU, and who refuses one sample more.

python -m benchmarks.search.largest
"""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import kiwi
from examples import convnet, gpt, llama, mlp, vit
from kiwi.loading import use_cpu_devices

RESULTS = Path(__file__).parent / "results" / "largest.json"
DEVICES = 2
MODELS = {"mlp": mlp, "gpt": gpt, "vit": vit, "convnet": convnet, "llama": llama}
ROOM = 1.5
"""The budget, in parts of the peak of a batch of eight."""


def make_step(module: Any, batch_size: int) -> tuple[Any, tuple[Any, ...]]:
    """The smallest model of an example."""
    config = replace(module.SIZES["tiny"], batch=batch_size)
    args = module.abstract_state(config), module.abstract_batch(config)
    return module.make_train_step(config), args


def main() -> None:
    """Prints a line for each model and writes all of them."""
    use_cpu_devices(DEVICES)
    found = {}
    for name, module in MODELS.items():
        options = {"mesh_shape": (DEVICES,), "profile": "cpu", "donate_argnums": 0}
        function, args = make_step(module, 8)
        free = kiwi.plan(function, *args, effort="quick", **options)
        budget = int(ROOM * free.peak_bytes)
        maker = functools.partial(make_step, module)
        largest = kiwi.largest_batch(maker, memory_budget=budget, **options)
        assert largest.plan.compiled is not None
        found[name] = {
            "budget_bytes": budget,
            "batch_size": largest.batch_size,
            "compiled_peak_bytes": largest.plan.compiled.peak_bytes,
            "next_batch": largest.next_batch,
            "refused_by": largest.proof,
            "refusal": largest.refusal.what,
            "tried": len(largest.tried),
        }
        print(name, found[name], flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
