"""Which share of a plan's predicted time was measured, and which follows from what."""

from collections.abc import Iterator, Mapping

from kiwi.mesh import KINDS, SLICE, Provenance, collective
from kiwi.mesh.moves import slice_price
from kiwi.problem.predicted_collectives import predicted_moves
from kiwi.problem.solved import Solved


def time_shares(solved: Solved) -> Mapping[str, float]:
    """The share of computing, communication and resharding seconds by `Provenance` value; they
    sum to 1."""
    seconds = dict.fromkeys((p.value for p in Provenance), 0.0)
    for provenance, amount in _amounts(solved):
        seconds[provenance.value] += amount
    total = sum(seconds.values())
    return {name: amount / total for name, amount in seconds.items() if amount > 0}


def describe(shares: Mapping[str, float]) -> str:
    """A line such as "81% measured, 19% analytic"; empty without shares."""
    order = (p.value for p in Provenance)
    return ", ".join(f"{shares[name]:.0%} {name}" for name in order if shares.get(name))


def _amounts(solved: Solved) -> Iterator[tuple[Provenance, float]]:
    mesh = solved.problem.mesh
    for (strategy, _), times in zip(solved.choices, solved.runs, strict=True):
        yield strategy.compute_provenance, times * strategy.compute_seconds
    for kind, axes, size_bytes, times in predicted_moves(solved):
        if kind in KINDS and axes:
            found = collective(kind, mesh, axes, size_bytes)
            yield found.provenance, times * found.seconds
        elif kind == SLICE:
            cut = slice_price(mesh, size_bytes)
            yield cut.provenance, times * cut.seconds
