"""Devices for steps of a few KiB."""

from dataclasses import replace

from kiwi.mesh import hardware

GPU_WITHOUT_CUBLAS = replace(hardware("h100-sxm"), name="h100-without-cublas")
"""An H100 that is not described to XLA: its matmuls are lent no 32 MiB."""
