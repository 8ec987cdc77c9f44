"""XLA:GPU copies values behind a barrier to the host, and frees them on the device.

Values that scans stack must not be offloaded: their elements come back in the wrong order
(openxla/xla#46231).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array

_WIDTH = 256


def _kept_on(x: jax.Array, w: jax.Array, space: Any) -> jax.Array:
    """Returns a sum that reads a value again after two matmuls. During the matmuls the value lies
    in the memory `space`."""
    y = jnp.tanh(x @ w)
    kept, result = lax.optimization_barrier((jax.device_put(y, space), jnp.tanh(y @ w) @ w))
    return jax.device_put(kept, jax.memory.Space.Device) + result


_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="The value lies in the host's memory, and two copies move it.",
    example=Example(lambda x, w: _kept_on(x, w, jax.memory.Space.Host), _MATRICES),
    shows=lambda module: (
        module.bytes_elsewhere.get("host") == 4 * _WIDTH**2
        and len(module.with_opcodes("copy-start")) == 2
    ),
    control=Example(lambda x, w: _kept_on(x, w, jax.memory.Space.Device), _MATRICES),
)

RULE = Rule(
    name="gpu_offloading",
    does="Values behind a barrier are copied to the host and leave the device; not those that "
    "scans stack, whose elements come back in the wrong order (openxla/xla#46231).",
    component="HostOffloader",
    observed="jax 0.10.2, H100",
    evidence=("benchmarks/host_memory", "tests/xla/gpu/test_host_memory.py"),
    witness=WITNESS,
    states=stating(offloads=True),
)
