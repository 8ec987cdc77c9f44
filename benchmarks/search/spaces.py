"""The searched spaces, by name: a model, a number of devices, and their profile."""

import os
from dataclasses import replace
from typing import Any

import kiwi
from kiwi.configurations.result import SearchResult
from kiwi.mesh import CATALOGUE

V100 = replace(CATALOGUE["v100-sxm2"], name="v100-nodes-of-8", devices_per_node=8)
"""The paper's network: 32 Gbit/s of Ethernet for each node of eight GPUs."""
PROFILES = {"": "h100-sxm", "v100": V100, "v5e": "v5e"}
MODELS = {
    "gpt": "examples/gpt_13b_4l.py:make_step",
    "gpt40": "examples/gpt_13b_4l.py:make_whole_step",
    "llama": "examples/llama.py:make_step",
}
NAMES = tuple(
    f"{model}-{devices}{profile and '-'}{profile}"
    for model in MODELS
    for devices in (8, 32, 256)
    for profile in PROFILES
)
JOBS = int(os.environ.get("JOBS", "2"))


def searched(name: str, **more: Any) -> SearchResult:
    """Runs one search, without compiling."""
    model, _, rest = name.partition("-")
    count, _, profile = rest.partition("-")
    devices = int(count)
    batches: tuple[int, ...] = 2 * devices, 8 * devices
    numbers = {}
    if model == "gpt40":  # A plan of 40 unrolled layers takes minutes.
        # V100s cannot hold eight samples each on 32 devices.
        batches = ((2 if name == "gpt40-32-v100" else 8) * devices,)
    if model == "llama":
        # Smaller batches wait longer for a slow network. Pipelines pay off there.
        batches = 2 * devices, 4 * devices
        numbers = {"microbatches": (1, 16, 32), "stages": (1, 4)}
    return kiwi.search(
        MODELS[model],
        devices=devices,
        profile=PROFILES[profile],
        batch_sizes=batches,
        most_axes=2,  # Meshes of three axes take several times as long.
        donate_argnums=0,
        verify=None,
        jobs=JOBS,
        **numbers,
        **more,
    )
