"""A program under construction: its values and equations. Equal equations are merged."""

from collections.abc import Collection, Hashable
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from kiwi.hlo import jax_internals, loops
from kiwi.hlo.hints import PlacedHint
from kiwi.hlo.loops import Loop, LoopKind
from kiwi.hlo.program import Equation, Literal, Value, kept_outputs
from kiwi.hlo.trips import WhileTrips


class ProgramBuilder:
    """Collects the parts of a `Program`. The options are the ones of `kiwi.hlo.tracing.trace`."""

    def __init__(
        self,
        keep_checkpoints: bool,
        open_loops: bool,
        while_trips: WhileTrips,
        fetches_elements: bool,
        platforms: Collection[str],
    ) -> None:
        self._keep_checkpoints = keep_checkpoints
        self._open_loops = open_loops
        self._fetches_elements = fetches_elements
        self._while_trips = while_trips
        self._platforms = platforms
        self._loops: list[Loop] = []
        self._spaces: dict[Hashable, int] = {}
        self._joined: dict[int, dict[int, int | Literal]] = {}
        self._loop_of_value: list[int | None] = []
        self._constant: set[int] = set()
        self._stacked: dict[int, tuple[int | Literal, int]] = {}
        self._values: list[Value] = []
        self._equations: list[Equation] = []
        self._constants: dict[int, Any] = {}
        self._constant_of_array: dict[int, int] = {}
        self._known: dict[Any, tuple[int, ...]] = {}
        self._hints: dict[int, tuple[PlacedHint, ...]] = {}
        self._constraints: dict[int, Any] = {}
        self._callers: list[Any] = []
        self._host_copies: dict[int, int | Literal] = {}
        self._user_offloads: set[int] = set()

    def _new_value(self, aval: Any, producer: int | None, loop: int | None = None) -> int:
        index = len(self._values)
        self._loop_of_value.append(loop)
        extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
        # A PRNG key of the default implementation is two 32-bit words.
        itemsize = 8 if extended else aval.dtype.itemsize
        self._values.append(
            Value(index, tuple(aval.shape), aval.dtype, itemsize, extended, producer)
        )
        return index

    def _bind_constants(self, env: dict[Any, Any], variables: Any, arrays: Any) -> None:
        for variable, array in zip(variables, arrays, strict=True):
            if id(array) not in self._constant_of_array:
                index = self._new_value(variable.aval, None)
                self._constant_of_array[id(array)] = index
                self._constants[index] = array
            env[variable] = self._constant_of_array[id(array)]

    def _read(self, env: dict[Any, Any], atom: Any) -> int | Literal:
        return Literal(atom.val) if isinstance(atom, jex.Literal) else env[atom]

    def _barrier(
        self, value: int | Literal, eqn: Any, scope: str, loop: int | None
    ) -> int | Literal:
        """Adds an `optimization_barrier` on one value and returns the barrier's result.

        Behind barriers, the equations of a recomputation are not equal to the original equations,
        and so are not merged with them. Each input has a barrier of its own. A literal needs none.
        """
        if isinstance(value, Literal):
            return value
        if value in self._host_copies:
            source = self._offloaded(value)
            copy = self._barrier(source, eqn, scope, loop)
            if isinstance(copy, int):
                self._host_copies[copy] = copy  # Copying it to the device yields the value itself.
            return copy
        aval = self._values[value].shape_dtype
        barrier = jax.make_jaxpr(jax.lax.optimization_barrier)(aval).eqns[0]
        barrier = barrier.replace(source_info=eqn.source_info)
        return self._append(barrier, scope, (value,), loop)[0]

    def _offloaded(self, host_copy: int) -> int | Literal:
        """Returns the value whose copy lies in host memory, and notes that the value is offloaded.

        If the copied value is the result of `checkpoint_name`, the value that has the name counts
        as offloaded: the backward pass reads that one.
        """
        source = self._host_copies[host_copy]
        named = source
        while isinstance(named, int) and named != host_copy:
            producer = self._values[named].producer
            if producer is None or self._equations[producer].name != "name":
                self._user_offloads.add(named)
                return named if self._keep_checkpoints and producer is not None else source
            (named,) = self._equations[producer].inputs
        return source

    def _emit(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, loop: int | None
    ) -> tuple[int, ...]:
        if self._is_constant(eqn, inputs):
            loop = self._branch_around(loop)
        key = None if jax_internals.side_effects(eqn) else _identity(eqn, inputs)
        if key is None:
            return self._append(eqn, scope, inputs, loop)
        key = (key, self._place(eqn, inputs, loop))
        if key not in self._known:
            self._known[key] = self._append(eqn, scope, inputs, loop)
        return self._known[key]

    def _branch_around(self, loop: int | None) -> int | None:
        """The innermost branch around an equation; None if no branch is around it.

        A branch computes its own constants.
        """
        while loop is not None and self._loops[loop].kind is not LoopKind.BRANCH:
            loop = self._loops[loop].parent
        return loop

    def _is_constant(self, eqn: Any, inputs: tuple[int | Literal, ...]) -> bool:
        """Whether an equation depends on no argument, so that it can run before loops."""
        is_plain = (
            not jax_internals.side_effects(eqn) and eqn.primitive.name not in loops.LOOP_PRIMITIVES
        )
        return is_plain and all(isinstance(i, Literal) or i in self._constant for i in inputs)

    def _place(self, eqn: Any, inputs: tuple[int | Literal, ...], loop: int | None) -> Any:
        """Returns a key that equal equations share if one of them may replace the other.

        Equal computations on members of one index space yield the same family of values. A
        computation on values from outside of its loop has a key per loop: its result should not be
        held from one loop to another.
        """
        if loop is None:
            return None
        here = self._loops[loop]
        is_member = any(isinstance(i, int) and self._is_member(i, here) for i in inputs)
        if is_member or eqn.primitive.name == loops.SLICE:
            return ("space", here.space)
        return ("loop", loop)

    def _is_member(self, value: int, loop: Loop) -> bool:
        """Whether a value has a member for each iteration of a loop."""
        owner = self._loop_of_value[value]
        return owner is not None and self._loops[owner].space == loop.space

    def _append(
        self, eqn: Any, scope: str, inputs: tuple[int | Literal, ...], loop: int | None
    ) -> tuple[int, ...]:
        index = len(self._equations)
        owner = loop
        if eqn.primitive.name == loops.STACK:
            assert loop is not None
            owner = self._loops[loop].parent
        outputs = tuple(
            self._new_value(variable.aval, index, owner) for variable in kept_outputs(eqn)
        )
        caller = self._callers[-1] if self._callers else None
        self._equations.append(Equation(index, eqn, scope, inputs, outputs, loop, caller))
        if self._is_constant(eqn, inputs):
            self._constant.update(outputs)
        return outputs

    def _type(self, value: int | Literal) -> Any:
        if isinstance(value, Literal):
            return jax.typeof(value.value)
        return self._values[value].shape_dtype


def _identity(eqn: Any, inputs: tuple[int | Literal, ...]) -> Any:
    """Returns a key that equations share if they compute the same; None if a parameter cannot be
    hashed."""
    atoms = tuple(i if isinstance(i, int) else _literal_identity(i.value) for i in inputs)
    avals = tuple(
        (
            variable.aval.shape,
            str(variable.aval.dtype),
            getattr(variable.aval, "weak_type", False),
            isinstance(variable, jex.DropVar),
        )
        for variable in eqn.outvars
    )
    key = (eqn.primitive.name, atoms, avals, tuple(sorted(eqn.params.items(), key=itemgetter(0))))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _literal_identity(value: Any) -> tuple[str, ...]:
    return (type(value).__name__, str(getattr(value, "dtype", "")), repr(value))
