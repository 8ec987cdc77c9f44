"""What was decided, operator by operator."""

from dataclasses import dataclass

import jax

from kiwi.problem.solved import Solved


@dataclass(frozen=True)
class Decision:
    """What was decided for one materialised operator.

    - `opcode`: its StableHLO opcode; `absorbed`: those of the operators fused into it.
    - `phase`: "forward", "backward" or "update".
    - `sharding`: layout of its first result, None if it has none. None if it has no result.
    - `residency`: "keep" or "recompute".
    - `seconds`: predicted time on one device, collectives included, without recomputation.
    - `bytes`: local bytes of its results, in a loop those of one iteration.
    - `trips`: how often it is computed in a step, without recomputation.
    """

    opcode: str
    absorbed: tuple[str, ...]
    phase: str
    name_stack: str
    source_line: str
    shape: tuple[int, ...]
    sharding: jax.sharding.PartitionSpec | None
    residency: str
    seconds: float
    bytes: int
    trips: int = 1


def decisions(solved: Solved) -> tuple[Decision, ...]:
    """One decision per unit, in execution order."""
    planning = solved.problem
    graph = planning.units.graph
    found = []
    for unit, (strategy, residency) in zip(planning.units.units, solved.choices, strict=True):
        root = graph.program.equations[unit.root]
        first = graph.program.values[unit.outputs[0]] if unit.outputs else None
        layout = strategy.results[0] if strategy.results else None
        found.append(
            Decision(
                opcode=graph.opcode_of(unit.root),
                absorbed=tuple(graph.opcode_of(e) for e in unit.equations[:-1]),
                phase=unit.phase.value,
                name_stack=root.name_stack,
                source_line=root.source_line,
                shape=first.shape if first is not None else (),
                sharding=planning.mesh.partition_spec(layout) if layout is not None else None,
                residency="recompute" if residency.recomputes else "keep",
                seconds=strategy.seconds,
                bytes=strategy.result_bytes,
                trips=planning.units.trips(unit),
            )
        )
    return tuple(found)
