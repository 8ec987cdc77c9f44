"""A resharding may begin before the matmul that precedes its reader, so that the two overlap."""

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule, Kernel

_ROWS, _WIDTH = 16_384, 2048


def _layers(way: int | None) -> Example:
    """Returns two layers whose second weight is gathered; `way` as in `Example`."""
    return Example(
        lambda x, w, v: jnp.tanh(x @ w) @ v,
        (array(_ROWS, _WIDTH), array(_WIDTH, _WIDTH), array(_WIDTH, _WIDTH)),
        (4,),
        (P("x"), P(), P("x")),
        P("x"),
        way=way,
    )


def _is_named(kernel: Kernel, end: str, call: str) -> bool:
    """Returns whether a kernel is one end of a gather: on GPUs by its name, which contains `end`,
    on TPUs by its custom call `call`."""
    return kernel.name.startswith(f"all-gather-{end}") or kernel.computes(call)


def _begins_ahead(module: InspectedModule) -> bool:
    """Returns whether the first matmul stands between the start and the done of the gather."""
    starts = [
        kernel for kernel in module.kernels if _is_named(kernel, "start", "AsyncCollectiveStart")
    ]
    ends = [kernel for kernel in module.kernels if _is_named(kernel, "done", "AsyncCollectiveDone")]
    matmuls = [
        kernel
        for kernel in module.kernels
        if kernel.computes("tanh") or kernel.computes("__cublas$lt$matmul")
    ]
    if not (starts and ends and matmuls):
        return False
    return module.is_before(starts[0], matmuls[0]) and module.is_before(matmuls[0], ends[0])


WITNESS = Witness(
    says="The gather of the second weight starts before the first matmul, and ends behind it.",
    example=_layers(way=0),
    shows=_begins_ahead,
    control=_layers(way=None),
)

RULE = Rule(
    name="copies_ahead",
    does="Copies of operands that are made again may begin ahead of their readers.",
    component="LatencyHidingScheduler",
    observed="jax 0.10.2, H100; libtpu 0.0.42.1, v5e",
    evidence=("tests/planners", "benchmarks/schedules"),
    witness=WITNESS,
    states=stating(copies_ahead=True),
)
