"""Memory that a unit holds from the start of the step, because nothing tells XLA to wait.

Some operators are expanded by XLA into constants of the size of their operands. These depend on
nothing, so that the scheduler computes them first and holds them until the operator runs; a fence
cannot reach them (`kiwi.plan.fences`). Counted in copies of the unit's result, found with
`benchmarks/fidelity` (convnet, lstm; jax 0.10.2):

- `select_and_scatter` (the gradient of max pooling). CPU: one index array of 4-byte integers per
  dimension and the zeros that it adds to. GPU: the zeros twice.
"""

from collections.abc import Mapping

from kiwi.hlo.units import Unit, UnitGraph

TARGETS = ("cpu", "cuda")
"""Compilers whose memory is modelled."""

_INDEX_BYTES = 4

_ZEROS: Mapping[str, int] = {"cpu": 1, "cuda": 2}


def hoisted_bytes(units: UnitGraph, unit: Unit, result_bytes: int, target: str) -> int:
    """What XLA holds for a unit from the start of the step until it has run.

    `result_bytes` are the local bytes of its result, `target` is one of `TARGETS`.
    """
    program = units.graph.program
    if program.equations[unit.root].name != "select_and_scatter_add":
        return 0
    value = program.values[unit.outputs[0]]
    zeros = _ZEROS[target] * result_bytes
    if target != "cpu":
        return zeros
    return zeros + len(value.shape) * _INDEX_BYTES * result_bytes // value.itemsize
