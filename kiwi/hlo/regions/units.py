"""The units of a region, so that a region can be priced like any program.

A region that is planned whole (`kiwi.hlo.regions.work`) is traced, lowered and grouped by itself,
with its loops opened. Shapes and prices inside of a `shard_map` refer to one device. Collectives
are placeholders, since they need the mesh axes of the `shard_map`. They are priced separately
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
from kiwi.hlo.regions.work import inner_jaxprs
from kiwi.hlo.tracing import program_of
from kiwi.hlo.units import UnitGraph

_MOST_REGIONS = 64
"""The number of regions whose units are cached. Beyond it, the least recently used region is
grouped again at its next use."""


@dataclass(frozen=True)
class _Region:
    """A jaxpr that equals all jaxprs with the same text, such as those of repeated layers."""

    text: str
    jaxpr: Any = field(compare=False, repr=False)


def units_of_region(eqn: Any, fusion: Fusion) -> Sequence[UnitGraph]:
    """Returns the units of each jaxpr that an equation runs.

    `fusion`: what the target computes inside of other kernels.
    """
    return [_units(_Region(str(jaxpr), jaxpr), fusion) for jaxpr in inner_jaxprs(eqn)]


@functools.lru_cache(maxsize=_MOST_REGIONS)
def _units(region: _Region, fusion: Fusion) -> UnitGraph:
    jaxpr = region.jaxpr
    if jaxpr.constvars:
        jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    program = program_of(jex.ClosedJaxpr(jaxpr, ()), open_loops=True)
    return build_units(lower(program), fusion=fusion)
