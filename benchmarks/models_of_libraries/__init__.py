"""Models as their libraries write them, planned: small sizes for numbers, full size for figures."""

import importlib
from typing import Any

from examples._compare import EXAMPLES

OWN = ("haiku_gpt", "numpyro_vae", "e3nn_molecules")
"""Modules of this folder, one for each library."""

TUNIX = ("tunix_qwen3", "tunix_qwen3_moe", "tunix_llama3", "tunix_gemma", "tunix_llama3_lora")

NAMES = (*EXAMPLES, *TUNIX, *OWN)
"""All models that are trained with and without plans."""

PACKAGES = "dm-haiku numpyro e3nn-jax; without dependencies: google-tunix safetensors qwix"
"""The packages that `OWN` and `TUNIX` need. Tests do not need them."""


def example(name: str) -> Any:
    """Returns the module of an example, or an object with the same functions.

    **Raises:** `ModuleNotFoundError` if the library is not installed, see `PACKAGES`.
    """
    if name in TUNIX:
        return importlib.import_module("benchmarks.models_of_libraries.tunix").EXAMPLES[name]
    folder = "examples" if name in EXAMPLES else "benchmarks.models_of_libraries"
    return importlib.import_module(f"{folder}.{name}")
