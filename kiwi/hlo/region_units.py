"""The units of what a region computes, so that it can be priced as any program.

A region that is planned whole (`kiwi.hlo.regions`) is traced, lowered and grouped by itself, its
loops opened. Shapes in a `shard_map` are those of one device, and so are its prices. Collectives
are placeholders: they need the mesh axes of the `shard_map`, and are priced apart
(`kiwi.problem.manual_computations`).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend import core as jex

from kiwi.hlo.chains import Fusion
from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.hlo.regions import inner_jaxprs
from kiwi.hlo.tracing import program_of
from kiwi.hlo.units import UnitGraph

_MOST_REGIONS = 64
"""How many different regions are kept while a step is planned; more are grouped anew each time."""


@dataclass(frozen=True)
class _Region:
    """A jaxpr, equal to others of the same text: layers repeat theirs."""

    text: str
    jaxpr: Any = field(compare=False, repr=False)


def units_of_region(eqn: Any, fusion: Fusion) -> Sequence[UnitGraph]:
    """The units of each jaxpr that an equation runs; `fusion`: what the target computes
    inside of other kernels."""
    return [_units(_Region(str(jaxpr), jaxpr), fusion) for jaxpr in inner_jaxprs(eqn)]


@functools.lru_cache(maxsize=_MOST_REGIONS)
def _units(region: _Region, fusion: Fusion) -> UnitGraph:
    jaxpr = region.jaxpr
    if jaxpr.constvars:
        jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    program = program_of(jex.ClosedJaxpr(jaxpr, ()), open_loops=True)
    return build_units(lower(program), fusion=fusion)
