"""Hardware with the prices of one kind of device and the kernels of another. The fidelity tables
use it where XLA:CPU compiles a step that is priced for GPUs."""

from dataclasses import replace

from kiwi.mesh import CATALOGUE, Hardware
from kiwi.xla.compilers import named


def priced_as(profile: str, compiler: str | None) -> Hardware:
    """Returns the hardware of a profile, with programs by the compiler that `verify` calls
    `compiler`. None stands for the hardware's own compiler."""
    hardware = CATALOGUE[profile]
    if compiler is None or hardware.backend in named(compiler).platforms:
        return hardware
    return replace(hardware, backend=named(compiler).platforms[0])
