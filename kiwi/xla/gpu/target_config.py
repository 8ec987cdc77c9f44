"""Descriptions of GPUs from which XLA:GPU compiles without a device.

A description is a protocol buffer in text form. The folder `target_configs` has one for each NVIDIA
GPU of the hardware catalogue. The head of each file names the public documents that the figures
come from.
"""

import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from kiwi.errors import CompilerUnavailableError
from kiwi.mesh.hardware import Hardware
from kiwi.messages import topics


def target_config(hardware: Hardware) -> str:
    """Returns XLA's description of one device: a `GpuTargetConfigProto` as text.

    `Hardware.target_config`, which a profile table records from the machine itself, takes
    precedence over the file for the hardware's name.

    **Raises:** `CompilerUnavailableError` if neither exists.
    """
    if hardware.target_config is not None:
        return hardware.target_config
    file = _folder() / f"{hardware.name}.txtpb"
    if not file.is_file():
        raise CompilerUnavailableError(
            f"The profile {hardware.name!r} does not describe its device to XLA:GPU.",
            topic=topics.COMPILER_PROFILE,
            cause="It is no NVIDIA GPU of the catalogue, and has no target_config of its own.",
            suggestion=f"A profile that does: {', '.join(described())}; or verify='cpu'.",
        )
    return file.read_text(encoding="utf-8")


def attached_target_config(device: Any) -> str | None:
    """Returns XLA's description of a GPU that is attached or that programs can be compiled for.

    jax has no function for this. So a small program is compiled, and the description is read from
    the dump of XLA:GPU. The result is None if the compiler writes no description, as on CPUs.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    here = NamedSharding(Mesh(np.asarray([device], dtype=object), ("x",)), PartitionSpec())
    with tempfile.TemporaryDirectory() as folder:
        add = jax.jit(lambda x: x + 1, in_shardings=here, compiler_options={"xla_dump_to": folder})
        add.lower(jax.ShapeDtypeStruct((1,), "float32")).compile()
        dumped = sorted(Path(folder).glob("*gpu_target_config.pbtxt"))
        return dumped[0].read_text(encoding="utf-8") if dumped else None


def described() -> list[str]:
    """Returns the names of the catalogue's devices that have a description, sorted."""
    return sorted(file.name.removesuffix(".txtpb") for file in _folder().iterdir())


def _folder() -> Any:
    return resources.files("kiwi.xla.gpu") / "target_configs"
