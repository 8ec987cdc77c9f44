"""Prices of one kind of device for the kernels of another: what tables of prediction and
compilation need, where XLA:CPU compiles a step that is priced for GPUs."""

from dataclasses import replace

from kiwi.mesh import CATALOGUE, Hardware
from kiwi.xla.compilers import named


def priced_as(profile: str, compiler: str | None) -> Hardware:
    """The hardware of a profile, with programs by the compiler of that name in `verify`; with None
    by its own."""
    hardware = CATALOGUE[profile]
    if compiler is None or hardware.backend in named(compiler).platforms:
        return hardware
    return replace(hardware, backend=named(compiler).platforms[0])
