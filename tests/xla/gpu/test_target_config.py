"""Descriptions of GPUs for XLA:GPU agree with the hardware catalogue."""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace

import jax
import pytest

from kiwi.errors import CompilerUnavailableError
from kiwi.mesh import CATALOGUE, hardware
from kiwi.xla.gpu.target_config import attached_target_config, described, target_config

CAPABILITIES = {"v100-sxm2": (7, 0), "a100-sxm": (8, 0), "h100-sxm": (9, 0), "h200-sxm": (9, 0)}


def figure(config: str, field: str) -> float:
    found = re.search(rf"^\s*{field}: ([\d.]+)$", config, re.MULTILINE)
    assert found is not None, f"{field} is missing"
    return float(found[1])


def compute_capability(config: str) -> tuple[int, int]:
    """Returns major and minor version. Protocol buffers leave out zero."""
    pattern = r"cuda_compute_capability\s*\{\s*major:\s*(\d+)(?:\s+minor:\s*(\d+))?"
    found = re.search(pattern, config)
    assert found is not None, "cuda_compute_capability is missing"
    return int(found[1]), int(found[2] or 0)


def test_processors_have_none():
    assert attached_target_config(jax.devices()[0]) is None


def has_plugin() -> bool:
    """Returns whether the GPU compiler's wheels are installed."""
    found = importlib.util.find_spec("jax_plugins")
    return found is not None and importlib.util.find_spec("jax_plugins.xla_cuda12") is not None


@pytest.mark.skipif(not has_plugin(), reason="no plugin")
def test_the_compiler_tells_what_its_device_is():
    """In a process of its own, for which the compiler without a GPU will do."""
    code = (
        "from kiwi.mesh import hardware\n"
        "from kiwi.xla.gpu.target_config import attached_target_config, target_config\n"
        "from kiwi.xla.gpu.compiler import compile_only_devices\n"
        "(device,) = compile_only_devices(target_config(hardware('a100-sxm')), 1)\n"
        "print(attached_target_config(device))\n"
    )
    environment = {**os.environ, "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "JAX_PLATFORMS": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, known = done.stdout, target_config(hardware("a100-sxm"))
    assert compute_capability(found) == (8, 0)
    for field in ("core_count", "device_memory_size", "memory_bandwidth"):
        assert figure(found, field) == figure(known, field)


def test_every_gpu_of_the_catalogue_is_described():
    gpus = sorted(name for name, entry in CATALOGUE.items() if entry.backend == "gpu")
    assert described() == gpus == sorted(CAPABILITIES)


@pytest.mark.parametrize("name", sorted(CAPABILITIES))
def test_figures_are_those_of_the_catalogue(name: str):
    entry, config = hardware(name), target_config(hardware(name))
    assert figure(config, "memory_bandwidth") == entry.memory_bandwidth_bytes_per_second
    assert figure(config, "device_memory_size") == pytest.approx(entry.memory_bytes, rel=0.08)
    assert compute_capability(config) == CAPABILITIES[name]
    # Two operations per multiply-add, one multiply-add per core and cycle.
    cores = figure(config, "core_count") * figure(config, "fpus_per_core")
    flops = 2 * cores * figure(config, "clock_rate_ghz") * 1e9
    assert flops == pytest.approx(entry.flops_per_second["float32"], rel=0.01)


def test_a_machines_own_description_goes_first():
    own = "gpu_device_info { cuda_compute_capability { major: 8 minor: 6 } }"
    assert target_config(replace(hardware("a100-sxm"), target_config=own)) == own


def test_hardware_without_a_description_says_which_have_one():
    with pytest.raises(CompilerUnavailableError, match="'cpu' does not describe") as caught:
        target_config(hardware("cpu"))
    assert "h100-sxm" in caught.value.suggestion
