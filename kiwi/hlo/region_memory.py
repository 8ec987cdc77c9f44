"""Memory of the regions of an equation (`kiwi.hlo.regions`): the peak of the values inside.

Operands and results of the region do not count. An iteration frees its memory before the next one
starts. As in `kiwi.hlo.fusion`, an elementwise result with one reader is fused and takes no memory.
Functions that a region calls are part of it. What only changes the type of a value (`pvary`), or
sums over one element, is the value. What updates a part of a value that nothing reads later, or
sums it up over devices, is written in its place.

A manual computation (`shard_map`) that is differentiated yields what its backward pass reads. XLA
stores of that no operand of the step, and no map of values that are there anyway: the backward pass
computes it again (`stored_results`).
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core as jex

from kiwi.hlo.regions import elements, inner_jaxprs, is_absorbed, readers_of, size_bytes, variables

_CALLS = frozenset({"closed_call", "jit", "pjit"})
_IDENTITIES = frozenset({"pbroadcast", "pcast", "pvary"})
_SUMS = frozenset({"reduce_max", "reduce_min", "reduce_prod", "reduce_sum"})
_IN_PLACE = frozenset(
    {"dynamic_update_slice", "psum", "psum_invariant", "pmax", "pmin", "scatter", "scatter-add"}
)


def region_workspace_bytes(eqn: Any) -> int:
    """The peak bytes inside of the region, without its operands and results. The blocks of a kernel
    of Pallas are not in the device's memory."""
    if eqn.primitive.name == "pallas_call":
        return 0
    return max((peak_bytes(region) for region in inner_jaxprs(eqn)), default=0)


def peak_bytes(jaxpr: Any) -> int:
    """The peak over the equations in order, with the regions that they run."""
    body = _Body.of(jaxpr)
    last_read = {
        operand: place for place, eqn in enumerate(body.eqns) for operand in variables(eqn.invars)
    }
    readers = readers_of(body)
    outside = {*body.invars, *variables(body.outvars)}
    alive = peak = 0
    dying: Counter[int] = Counter()
    for place, eqn in enumerate(body.eqns):
        for variable in eqn.outvars:
            if variable in outside or _is_view(eqn) or is_absorbed(eqn, variable, readers):
                continue
            size = size_bytes(variable)
            if eqn.primitive.name in _IN_PLACE and dying[place] >= size:
                dying[place] -= size
            else:
                alive += size
            dying[last_read.get(variable, place)] += size
        peak = max(peak, alive + region_workspace_bytes(eqn))
        alive -= dying.pop(place, 0)
    return peak


def stored_results(eqn: Any, is_argument: Callable[[int], bool]) -> tuple[bool, ...]:
    """For each result of a `shard_map`, whether it has a buffer of its own; `is_argument`: whether
    the operand of this number is held throughout the step."""
    (jaxpr,) = inner_jaxprs(eqn)
    body = _Body.of(jaxpr)
    places = {source: place for place, source in enumerate(body.invars)}
    maps, results = _Maps.of(body), frozenset(variables(body.outvars))

    def is_stored(variable: Any) -> bool:
        if isinstance(variable, jex.Literal):
            return True
        if variable in places:
            return not is_argument(places[variable])
        if variable not in maps.reads:
            return True
        operands = maps.reads[variable]
        is_there = all(source in places or source in results for source in operands)
        return not is_there or sum(map(size_bytes, operands)) > size_bytes(variable)

    return tuple(map(is_stored, body.outvars))


@dataclass(frozen=True, eq=False)
class _Body:
    """A jaxpr with the functions that it calls inside, and without identities."""

    eqns: Sequence[Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]

    @classmethod
    def of(cls, jaxpr: Any) -> "_Body":
        """That of a jaxpr."""
        eqns: list[Any] = []
        names: dict[Any, Any] = {}
        _inline(jaxpr, names, eqns)
        named = [
            names.get(variable, variable) if not isinstance(variable, jex.Literal) else variable
            for variable in jaxpr.outvars
        ]
        return cls(eqns, [*jaxpr.constvars, *jaxpr.invars], named)


@dataclass(frozen=True, eq=False)
class _Variable:
    """A variable of a function that is called: each call has its own."""

    aval: Any


def _inline(jaxpr: Any, names: dict[Any, Any], eqns: list[Any]) -> None:
    """Adds the equations of a jaxpr; `names`: what its variables are called."""

    def named(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else names.get(atom, atom)

    for eqn in jaxpr.eqns:
        operands = [named(variable) for variable in eqn.invars]
        if eqn.primitive.name in _CALLS:
            (region,) = inner_jaxprs(eqn)
            inner = {
                variable: _Variable(variable.aval)
                for inner_eqn in region.eqns
                for variable in inner_eqn.outvars
            }
            inner |= {variable: _Variable(variable.aval) for variable in region.constvars}
            inner |= dict(zip(region.invars, operands, strict=True))
            _inline(region, inner, eqns)
            results = [
                variable if isinstance(variable, jex.Literal) else inner[variable]
                for variable in region.outvars
            ]
            names.update(zip(eqn.outvars, results, strict=True))
        elif eqn.primitive.name in _IDENTITIES and not isinstance(operands[0], jex.Literal):
            names.update(zip(eqn.outvars, operands, strict=True))
        else:
            eqns.append(
                eqn.replace(invars=operands, outvars=[named(variable) for variable in eqn.outvars])
            )


def _is_view(eqn: Any) -> bool:
    """Whether an equation sums over dimensions of one element."""
    is_sum = eqn.primitive.name in _SUMS
    return is_sum and elements(eqn.invars[0]) == elements(eqn.outvars[0])


@dataclass(frozen=True, eq=False)
class _Maps:
    """What XLA computes in whatever reads it.

    - `reads`: by variable, what is stored that its chain reads.
    """

    reads: Mapping[Any, frozenset[Any]]

    @classmethod
    def of(cls, body: _Body) -> "_Maps":
        """The maps of a region, however many read them."""
        readers, chain_reads = readers_of(body), dict[Any, frozenset[Any]]()
        for eqn in body.eqns:
            (*_, variable) = eqn.outvars
            if _is_view(eqn) or is_absorbed(eqn, variable, readers, read_once=False):
                sources = (
                    chain_reads.get(operand, frozenset({operand}))
                    for operand in variables(eqn.invars)
                )
                chain_reads[variable] = frozenset(itertools.chain.from_iterable(sources))
        return cls(chain_reads)
