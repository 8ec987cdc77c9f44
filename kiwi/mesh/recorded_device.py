"""What an attached device says of itself."""

from typing import Any


def attached_target_config(device: Any) -> str | None:
    """XLA's description of an attached GPU (`GpuTargetConfigProto` as text).

    None where this jax does not give it: XLA hands it out with the topology of its devices.
    """
    return None
