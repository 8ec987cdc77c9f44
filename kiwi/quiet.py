"""Keeps JAX's complaints about absent GPUs and TPUs off standard error while JAX starts.

The compile check needs plugins for GPUs or TPUs on machines without such devices. The C++ code of
these plugins then writes to standard error, whatever the log levels are. This module imports JAX
only inside of its functions, so that a caller can also hold back the output of the import.
"""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NVIDIA_DEVICE = Path("/dev/nvidiactl")
_TPU_DEVICES = (Path("/dev/accel0"), Path("/dev/vfio/0"))

_HEADERS = r"WARNING: (?:All log messages before absl::InitializeLog|Logging before InitGoogle).*\n"
_OF_CUDA = (
    r"[IWE]\d{4} [^\n]*cudart_stub\.cc[^\n]*\n",
    r"[^\n]*Jax plugin configuration error: [^\n]*jax_plugins\.xla_cuda\d+"
    r".*?\nRuntimeError: Unable to load CUDA\. Is it installed\?\n",
)
_OF_TPU = (
    r"Failed to find host bounds for accelerator type: [^\n]*\n",
    r"[IWE]\d{4} [^\n]*common_lib\.cc[^\n]*TPU_WORKER_HOSTNAMES[^\n]*\n"
    r"(?:=== Source Location Trace: ===[^\n]*\n(?:[\w/.]+:\d+\n)*)?",
    r"[IWE]\d{4} [^\n]*(?:TPU_ACCELERATOR_TYPE|could not determine TPU)[^\n]*\n",
)


def essential(text: str, *, has_gpu: bool, has_tpu: bool) -> str:
    """Returns JAX's output at its start, without complaints about absent devices."""
    rules = (*(() if has_gpu else _OF_CUDA), *(() if has_tpu else _OF_TPU))
    shortened = text
    for rule in rules:
        shortened = re.sub(rule, "", shortened, flags=re.DOTALL if ".*?" in rule else 0)
    return text if shortened == text else re.sub(_HEADERS, "", shortened)


@contextlib.contextmanager
def without_complaints() -> Iterator[None]:
    """A context manager that holds back standard error, and writes its essential part at the
    end."""
    sys.stderr.flush()
    try:
        stderr_copy = os.dup(2)
    except OSError:  # Standard error is closed: nobody reads it.
        yield
        return
    with tempfile.TemporaryFile() as held, _told_at_death(held.fileno()):
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            held.seek(0)
            text = held.read().decode(errors="replace")
            shown = essential(text, has_gpu=_has_gpu(), has_tpu=_has_tpu())
            sys.stderr.write(shown)
            sys.stderr.flush()


@contextlib.contextmanager
def _told_at_death(held: int) -> Iterator[None]:
    """A context manager in which a process writes the file `held` to standard error if this process
    dies. XLA ends its process, without a Python exception, if it does not know a flag of
    `XLA_FLAGS`. Nothing is done without that variable."""
    shell = shutil.which("sh") if os.environ.get("XLA_FLAGS") else None
    if shell is None:
        yield
        return
    script = f"read line || cat /dev/fd/{held} >&2"
    with subprocess.Popen([shell, "-c", script], stdin=subprocess.PIPE, pass_fds=(held,)) as guard:
        try:
            yield
        finally:
            guard.communicate(b"alive\n")


def _has_gpu() -> bool:
    return _NVIDIA_DEVICE.exists()


def _has_tpu() -> bool:
    return any(path.exists() for path in _TPU_DEVICES)


def start_jax(cpu_devices: int | None = None) -> None:
    """Imports JAX and starts its backends.

    - `cpu_devices`: the number of virtual CPU devices to start, instead of all backends. Backends
      that run already stay as they are.
    """
    with without_complaints():
        import jax

        if cpu_devices is not None:
            with contextlib.suppress(RuntimeError):
                jax.config.update("jax_platforms", "cpu")
                jax.config.update("jax_num_cpu_devices", cpu_devices)
        jax.devices()


@functools.cache
def start_backends() -> None:
    """Starts JAX's backends once in a process, without complaints. All planning calls this function
    first.

    If the machine has devices, nothing is done: the start of devices may take long and write much,
    and this output should be seen. A backend that does not start raises when it is used.
    """
    if not (_has_gpu() or _has_tpu()):
        with contextlib.suppress(RuntimeError):
            start_jax()
