"""The units of a region's computation, so that it can be priced like any program.

A region that is planned whole (`kiwi.hlo.regions`) is traced, lowered and grouped by itself, with
its loops opened. In a `shard_map` shapes and prices are those of one device. Collectives are
placeholders: they need the mesh axes of the `shard_map`, and are priced separately
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
"""The number of regions that are kept while a step is planned. Further ones are grouped anew each
time."""


@dataclass(frozen=True)
class _Region:
    """A jaxpr, equal to others with the same text, as in repeated layers."""

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
