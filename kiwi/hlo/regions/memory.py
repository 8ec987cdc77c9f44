"""Memory of the regions of an equation (`kiwi.hlo.regions.work`): the peak of the values inside.

- Operands and results of the region do not count.
- An iteration frees its memory before the next one starts.
- As in `kiwi.hlo.fusion`, an elementwise result with one reader is fused and takes no memory.
- Functions that a region calls are inlined.
- A result that only changes the type of its operand (`pvary`) is the operand. A sum over one
  element takes no memory.
- An update of a part of a value, and a sum of a value over devices, take the value's place if
  nothing reads the value later.

A differentiated manual computation (`shard_map`) returns residuals that its backward pass reads.
XLA does not store all of these results (`stored_results`). It stores no operand of the step once
more. It stores no elementwise function of values that are stored anyway, unless these take more
bytes than the result: the backward pass computes such a function again.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core as jex

from kiwi.hlo.regions.work import (
    elements,
    inner_jaxprs,
    is_absorbed,
    readers_of,
    size_bytes,
    variables,
)

_CALLS = frozenset({"closed_call", "jit", "pjit"})
_IDENTITIES = frozenset({"pbroadcast", "pcast", "pvary"})
_SUMS = frozenset({"reduce_max", "reduce_min", "reduce_prod", "reduce_sum"})
_IN_PLACE = frozenset(
    {"dynamic_update_slice", "psum", "psum_invariant", "pmax", "pmin", "scatter", "scatter-add"}
)


def region_workspace_bytes(eqn: Any) -> int:
    """Returns the peak bytes inside of an equation's regions, without their operands and results.

    The blocks of a Pallas kernel are not in the device's main memory, and count as 0.
    """
    if eqn.primitive.name == "pallas_call":
        return 0
    return max((peak_bytes(region) for region in inner_jaxprs(eqn)), default=0)


def peak_bytes(jaxpr: Any) -> int:
    """Returns the peak bytes of a jaxpr whose equations run in order, including the regions that
    they run. Operands and results of the jaxpr do not count."""
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
    """Returns, for each result of a `shard_map`, whether it has a buffer of its own.

    - `is_argument`: takes the number of an operand; returns whether the operand is held throughout
      the step.
    """
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
    """A jaxpr whose calls are inlined and whose identities are removed."""

    eqns: Sequence[Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]

    @classmethod
    def of(cls, jaxpr: Any) -> "_Body":
        """Returns the body of a jaxpr."""
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
    """A variable of a called function. Each call has variables of its own."""

    aval: Any


def _inline(jaxpr: Any, names: dict[Any, Any], eqns: list[Any]) -> None:
    """Adds the equations of a jaxpr to `eqns`.

    - `names`: variable of the jaxpr → the variable that replaces it, if there is one.
    """

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
    """Whether an equation reduces only dimensions of one element."""
    is_sum = eqn.primitive.name in _SUMS
    return is_sum and elements(eqn.invars[0]) == elements(eqn.outvars[0])


@dataclass(frozen=True, eq=False)
class _Maps:
    """The results that XLA can compute in each of their readers.

    - `reads`: by such a variable, the stored variables from which its chain computes it.
    """

    reads: Mapping[Any, frozenset[Any]]

    @classmethod
    def of(cls, body: _Body) -> "_Maps":
        """Returns the elementwise results of a region, with any number of readers."""
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
