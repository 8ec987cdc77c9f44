"""Models as their libraries write them, planned: small for numbers, full size for figures."""

import importlib
from typing import Any

from examples._compare import EXAMPLES

OWN = ("haiku_gpt", "numpyro_vae", "e3nn_molecules")
"""Modules of this folder, each for one library."""

TUNIX = ("tunix_qwen3", "tunix_qwen3_moe", "tunix_llama3", "tunix_gemma", "tunix_llama3_lora")

NAMES = (*EXAMPLES, *TUNIX, *OWN)
"""All that are trained with and without plans."""

PACKAGES = "dm-haiku numpyro e3nn-jax; without dependencies: google-tunix safetensors qwix"
"""To be installed for `OWN` and `TUNIX`; tests do without them."""


def example(name: str) -> Any:
    """The module of an example, or what has the form of one.

    **Raises:** `ModuleNotFoundError` if the library is not installed, see `PACKAGES`.
    """
    if name in TUNIX:
        return importlib.import_module("benchmarks.models_of_libraries.tunix").EXAMPLES[name]
    folder = "examples" if name in EXAMPLES else "benchmarks.models_of_libraries"
    return importlib.import_module(f"{folder}.{name}")
