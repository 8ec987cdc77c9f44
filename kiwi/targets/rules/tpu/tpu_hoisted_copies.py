"""XLA:TPU moves copies from and to the host in front of barriers.

Offloaded values leave the device. This includes values that scans stack.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH = 512


def _fetched_late(x: jax.Array, w: jax.Array, space: Any) -> jax.Array:
    """Returns a sum that fetches a value from the memory `space` behind a barrier, which waits for
    four matmuls."""
    kept = jax.device_put(x, space)
    y = x
    for _ in range(4):
        y = jnp.tanh(y @ w)
    kept, y = lax.optimization_barrier((kept, y))
    return jax.device_put(kept, jax.memory.Space.Device) @ w + y


def _fetches_early(module: InspectedModule) -> bool:
    copies = module.with_opcodes("copy-start")
    matmuls = module.with_opcodes("convolution", "tanh")
    is_on_host = module.bytes_elsewhere.get("host") == 4 * _WIDTH**2
    return is_on_host and len(copies) == 2 and module.is_before(copies[1], matmuls[-1])


_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="The fetch begins before the last of the matmuls that a barrier makes it wait for.",
    example=Example(lambda x, w: _fetched_late(x, w, jax.memory.Space.Host), _MATRICES),
    shows=_fetches_early,
    control=Example(lambda x, w: _fetched_late(x, w, jax.memory.Space.Device), _MATRICES),
)

RULE = Rule(
    name="tpu_hoisted_copies",
    does="Copies from and to the host are moved in front of barriers. Values leave the device, "
    "also those that scans stack.",
    component="HostOffloader, async copy scheduling of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("benchmarks/host_memory", "tests/xla/tpu/test_host_memory.py"),
    witness=WITNESS,
    states=stating(hoists_copies=True, offloads=True, offloads_in_scans=True),
)
