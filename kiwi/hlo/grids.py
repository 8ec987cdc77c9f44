"""The work of a Pallas kernel over its grid.

A kernel skips blocks: if a causal mask covers a block, `pl.when` does not run its branch, or a loop
ends earlier. The kernel determines these blocks by integers that it computes from its place in the
grid. This module computes the integers for all places at once. A branch counts as often as it runs,
and a loop as often as its body runs. Conditions on data are unknown. A conditional on data counts
its costliest branch, and a loop on data the trips that `work_of` assumes.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from jax.extend import core as jex

from kiwi.hlo.trips import step_of_carry

Known = Mapping[Any, np.ndarray]
"""By scalar variable, an array of its integers in all places of the grid. The array's shape
broadcasts to the grid."""

_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "and": np.logical_and,
    "div": lambda x, y: np.sign(x) * np.sign(y) * (abs(x) // np.maximum(1, abs(y))),
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "rem": np.fmod,
    "select_n": lambda which, *cases: np.choose(np.asarray(which, dtype=int), cases),
    "sign": np.sign,
    "sub": np.subtract,
}
"""By primitive, its function on integers in NumPy. `div` rounds towards zero."""

_SAME = frozenset({"convert_element_type", "copy", "squeeze", "broadcast_in_dim", "reshape"})
"""Primitives that return an integer unchanged."""


def kernel_work(eqn: Any, work_of: Callable[[Any], float]) -> float:
    """Returns the work of a traced `pallas_call` in all places of its grid, in the unit of
    `work_of`.

    `work_of`: returns the work of one run of an equation about which nothing is known.
    """
    grid = tuple(n if isinstance(n, int) else 1 for n in eqn.params["grid_mapping"].grid)
    body = eqn.params["jaxpr"]
    work, _ = _Walk(grid, work_of).of(getattr(body, "jaxpr", body), {})
    return prod(grid) * float(np.mean(work))


class _Walk:
    """Walks through a kernel's body, and the regions in it, for all places of a grid."""

    def __init__(self, grid: tuple[int, ...], work_of: Callable[[Any], float]) -> None:
        self._grid = grid
        self._work_of = work_of

    def of(self, jaxpr: Any, known: Known) -> tuple[Any, Known]:
        """Returns the work of a jaxpr in each place, and the known values of its variables.

        `known`: the known values of its operands.
        """
        variables, work = dict(known), np.float64(0)
        for eqn in jaxpr.eqns:
            work = work + self._equation(eqn, variables)
        return work, variables

    def _equation(self, eqn: Any, variables: dict[Any, np.ndarray]) -> Any:
        """Returns the work of an equation in each place, and adds its known results to
        `variables`."""
        name = eqn.primitive.name
        if name == "cond":
            return self._conditional(eqn, variables)
        if name == "while":
            return self._while(eqn, variables)
        if name == "scan":
            body, constants = eqn.params["jaxpr"].jaxpr, eqn.params.get("num_consts", 0)
            passed = self._passed(eqn.invars[:constants], body.invars[:constants], variables)
            return eqn.params["length"] * self.of(body, passed)[0]
        regions = [getattr(region, "jaxpr", region) for region in jex.jaxprs_in_params(eqn.params)]
        if len(regions) == 1 and len(regions[0].invars) == len(eqn.invars):
            passed = self._passed(eqn.invars, regions[0].invars, variables)
            work, inner_values = self.of(regions[0], passed)
            for outer, inner in zip(eqn.outvars, regions[0].outvars, strict=False):
                self._note(outer, self._value(inner, inner_values), variables)
            return work
        if len(eqn.outvars) == 1:
            self._note(eqn.outvars[0], self._result(eqn, variables), variables)
        return self._work_of(eqn)

    def _conditional(self, eqn: Any, variables: Known) -> Any:
        selector, works = self._value(eqn.invars[0], variables), []
        for branch in eqn.params["branches"]:
            passed = self._passed(eqn.invars[1:], branch.jaxpr.invars, variables)
            works.append(self.of(branch.jaxpr, passed)[0])
        if selector is None:
            return np.maximum.reduce(np.broadcast_arrays(*works))
        chosen = np.clip(np.asarray(selector, dtype=int), 0, len(works) - 1)
        return sum((chosen == k) * work for k, work in enumerate(works))

    def _while(self, eqn: Any, variables: Known) -> Any:
        trips = self._trips(eqn, variables)
        if trips is None:
            return self._work_of(eqn)
        cond_count, body_count = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        body = eqn.params["body_jaxpr"].jaxpr
        constants = eqn.invars[cond_count : cond_count + body_count]
        passed = self._passed(constants, body.invars[:body_count], variables)
        return trips * self.of(body, passed)[0]

    def _trips(self, eqn: Any, variables: Known) -> Any:
        """Returns, for each place, the number of iterations of a `while` that counts by ones up to
        a known limit; None for other loops."""
        condition, constants = eqn.params["cond_jaxpr"].jaxpr, eqn.params["cond_nconsts"]
        if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
            return None
        carries = eqn.invars[constants + eqn.params["body_nconsts"] :]
        outside = dict(zip(condition.invars, (*eqn.invars[:constants], *carries), strict=True))
        counter, limit = condition.eqns[0].invars
        if isinstance(counter, jex.Literal) or counter not in condition.invars:
            return None
        place = condition.invars.index(counter) - constants
        if place < 0 or step_of_carry(eqn, place) != 1:
            return None
        start = self._value(outside[counter], variables)
        atom = limit if isinstance(limit, jex.Literal) else outside.get(limit)
        end = None if atom is None else self._value(atom, variables)
        return None if start is None or end is None else np.maximum(0, end - start)

    def _result(self, eqn: Any, variables: Known) -> np.ndarray | None:
        name = eqn.primitive.name
        if name == "program_id":
            axis = eqn.params["axis"]
            shape = [n if dim == axis else 1 for dim, n in enumerate(self._grid)]
            return np.arange(self._grid[axis]).reshape(shape)
        if name == "num_programs":
            return np.asarray(self._grid[eqn.params["axis"]])
        operands = [self._value(atom, variables) for atom in eqn.invars]
        if not operands or any(operand is None for operand in operands):
            return None
        if name in _SAME:
            return operands[0]
        return _OPERATORS[name](*operands) if name in _OPERATORS else None

    def _passed(self, atoms: Sequence[Any], names: Sequence[Any], variables: Known) -> Known:
        """Returns the known values of operands (`atoms`), by the region's variables (`names`)."""
        pairs = [
            (name, self._value(atom, variables)) for atom, name in zip(atoms, names, strict=True)
        ]
        return {name: value for name, value in pairs if value is not None}

    def _value(self, atom: Any, variables: Known) -> np.ndarray | None:
        if not isinstance(atom, jex.Literal):
            return variables.get(atom)
        value = np.asarray(atom.val)
        return value if value.ndim == 0 and value.dtype.kind in "iub" else None

    def _note(
        self, variable: Any, value: np.ndarray | None, variables: dict[Any, np.ndarray]
    ) -> None:
        """Adds the value of a scalar to `variables`. Arrays are left out, since the shape of a
        known value means places of the grid."""
        is_scalar = getattr(variable.aval, "shape", None) == ()
        if value is not None and is_scalar and not isinstance(variable, jex.DropVar):
            variables[variable] = value
