"""The command writes only progress, warnings and errors to standard error."""

import os
import subprocess
import sys

import pytest

from kiwi.quiet import essential

HEADER = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
CUDA = (
    f"{HEADER}I0000 00:00:1795948274.924889   24983 cudart_stub.cc:31] Could not find cuda drivers "
    "on your machine, GPU will not be used.\n"
)
PLUGIN = """Jax plugin configuration error: Exception when calling \
jax_plugins.xla_cuda12.initialize()
Traceback (most recent call last):
  File "jax_plugins/xla_cuda12/__init__.py", line 201, in _version_check
    version = get_version()
RuntimeError: jaxlib/cuda/versions_helpers.cc:38: operation cudaRuntimeGetVersion(&version) failed

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "jax/_src/xla_bridge.py", line 508, in discover_pjrt_plugins
RuntimeError: Unable to load CUDA. Is it installed?
"""
TPU = """Failed to find host bounds for accelerator type: WARNING: could not determine TPU
WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1795948312.613489 25622 common_lib.cc:554] INVALID_ARGUMENT: Error: unexpected worker \
hostname 'WARNING: could not determine TPU worker hostnames' from env var TPU_WORKER_HOSTNAMES.
=== Source Location Trace: ===
learning/45eac/tfrc/runtime/libtpu_init_utils.cc:327
"""
FAULT = "F0000 00:00:1795948312.613489 25622 heap.cc:12] Check failed: out of memory\n"


@pytest.mark.parametrize("text", [CUDA, CUDA * 3, PLUGIN, TPU, CUDA + PLUGIN + TPU])
def test_complaints_about_absent_devices_are_left_out(text):
    assert essential(text, has_gpu=False, has_tpu=False) == ""


@pytest.mark.parametrize("text", ["A true error.\n", FAULT, HEADER + FAULT])
def test_anything_else_is_passed_on(text):
    found = essential(CUDA + text + TPU, has_gpu=False, has_tpu=False)
    assert found == text.removeprefix(HEADER)
    assert essential(text, has_gpu=False, has_tpu=False) == text


def test_where_there_is_a_device_its_complaints_matter():
    assert essential(CUDA + PLUGIN, has_gpu=True, has_tpu=False) == CUDA + PLUGIN
    assert essential(TPU, has_gpu=False, has_tpu=True) == TPU


FILE = """
import os
import jax
os.write(2, b"told by the file\\n")

def step(w):
    return w @ w

def make_args():
    return jax.ShapeDtypeStruct((16, 16), "float32")
"""


@pytest.mark.parametrize("more", [("--mesh", "2"), ()], ids=["mesh", "attached"])
def test_the_command_is_silent(tmp_path, more):
    (tmp_path / "train.py").write_text(FILE)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    command = ("plan", "train.py:step", "--verify", "none", "--effort", "quick", *more)
    done = subprocess.run(
        [sys.executable, "-m", "kiwi", *command],
        env=environment | {"PYTHONPATH": os.getcwd()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Plan for" in done.stdout
    assert done.stderr == "told by the file\n"


HELD = """
import os
from kiwi.quiet import without_complaints
with without_complaints():
    os.write(2, b"a true error\\n")
    os.write(2, b"I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers\\n")
"""


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")
def test_what_is_held_back_is_passed_on_at_the_end():
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert done.stderr == "a true error\n"


def test_devices_that_do_not_start_are_an_error_with_a_code(tmp_path):
    (tmp_path / "train.py").write_text(FILE)
    for platform in ("cuda", "nonsense"):
        done = subprocess.run(
            [sys.executable, "-m", "kiwi", "plan", "train.py:step"],
            env=os.environ | {"PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": platform},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 4 and done.stderr.startswith("kiwi: error: KIWI-D013: ")


PROGRAM = """
import jax
import kiwi
x = jax.ShapeDtypeStruct((64, 64), "float32")
kiwi.plan(lambda w, x: (x @ w).sum(), x, x, mesh_shape=(2,), profile="cpu", verify=None)
"""


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")
def test_planning_in_a_program_is_silent_too():
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    environment |= {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
