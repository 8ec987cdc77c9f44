"""A traced JAX function as one flat list of equations.

    program   ::= arguments constants equation* results
    equation  ::= value* = primitive[params] (value | literal)*

Calls (`jit`, `custom_jvp_call`, `checkpoint`, ...) are inlined, equal pure equations are merged,
and equations that nothing reads are dropped. Each equation that is left is a first-order primitive
or an opaque region (`shard_map`, ...). A `scan`, `while` or `cond` is such a region, or is opened:
its body then occurs in the program once, see `kiwi.hlo.loops`.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from kiwi.hlo import jax_internals, loops
from kiwi.hlo.hints import PlacedHint
from kiwi.hlo.host_memory import FETCH, STORE, TRANSFERS
from kiwi.hlo.independent_batches import batch_kernel
from kiwi.hlo.kernels import (
    Kernel,
    is_collective,
    is_library_kernel,
    is_unlowered,
    kernel_calls,
    kernel_jaxpr,
)
from kiwi.hlo.loops import LOOP_PRIMITIVES, Loop, LoopKind
from kiwi.hlo.partitioned_functions import kernel_of
from kiwi.hlo.regions.work import inner_jaxprs, multiplies_inside

RAGGED_PRODUCTS = frozenset({"ragged_dot", "ragged_dot_general"})
"""Primitives of ragged matmuls: each group of rows is multiplied by a matrix of its own."""

MAX_POOLING_GRADIENT = "select_and_scatter_add"

LARGE_BYTES = 2**20
"""The size from which a constant counts as large.

A plan can expand a large constant at the unit that reads it, so that the constant is not held from
the start of the step. Where smaller constants are expanded is left to XLA.
"""


@dataclass(frozen=True)
class Literal:
    """A constant scalar that stands in an equation in place of an operand."""

    value: Any


@dataclass(frozen=True)
class Value:
    """An argument, a captured constant, or a result of an equation.

    - `shape`: the logical shape that JAX shows.
    - `itemsize`: bytes of one element.
    - `is_extended`: whether the dtype is an extended one, such as a PRNG key. The array in HLO then
      has further dimensions.
    - `producer`: the index of the equation that computes the value; None for arguments and
      constants.
    """

    index: int
    shape: tuple[int, ...]
    dtype: Any
    itemsize: int
    is_extended: bool
    producer: int | None

    def of_dtype(self, dtype: Any) -> "Value":
        """Returns the value with another dtype, which must not be an extended one."""
        return replace(self, dtype=jnp.dtype(dtype), itemsize=jnp.dtype(dtype).itemsize)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole, unsharded value."""
        return prod(self.shape) * self.itemsize

    @property
    def shape_dtype(self) -> jax.ShapeDtypeStruct:
        """The value's type as JAX's functions take it."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


@dataclass(frozen=True, eq=False)
class Equation:
    """One application of a primitive.

    - `inputs`: a value index or a `Literal` for each operand.
    - `outputs`: the value indices of the results that something reads.
    - `jaxpr_eqn`: the traced equation itself.
    - `scope`: the name scope of the inlined calls around it.
    - `loop`: the innermost opened loop whose body contains the equation; None outside of loops.
    - `caller`: the source info of the innermost call around the equation that has a line in the
      user's code; None if no call has one.
    """

    index: int
    jaxpr_eqn: Any
    scope: str
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int, ...]
    loop: int | None = None
    caller: Any = None

    @functools.cached_property
    def name(self) -> str:
        """The primitive's name."""
        return self.jaxpr_eqn.primitive.name

    @functools.cached_property
    def is_border(self) -> bool:
        """Whether the equation is a border of an opened loop, which computes nothing."""
        return self.name in LOOP_PRIMITIVES

    @functools.cached_property
    def is_transfer(self) -> bool:
        """Whether the equation copies between host and device memory."""
        return self.name in TRANSFERS

    @functools.cached_property
    def kernel(self) -> Kernel | None:
        """The kernel with a sharding rule that the equation calls; None if it calls none."""
        return kernel_of(self.jaxpr_eqn)

    @functools.cached_property
    def batches(self) -> Kernel | None:
        """The kernel that shards only batch dimensions, for an equation that computes each element
        of a batch independently (`kiwi.hlo.independent_batches`); None for other equations."""
        return batch_kernel(self.jaxpr_eqn)

    @functools.cached_property
    def kernel_jaxpr(self) -> Any:
        """The jaxpr of `kernel`, which must exist, on whole operands. Tracing it takes long."""
        assert self.kernel is not None
        return kernel_jaxpr(self.kernel, self.jaxpr_eqn)

    @property
    def kernel_calls(self) -> int:
        """The number of library kernels that the equation runs.

        An equation with a sharding rule runs at least one. Kernels inside of a region do not count
        here: `kiwi.problem.costs.RegionPrice` counts them.
        """
        if self.kernel is None:
            return int(self.is_library_kernel)
        return max(1, kernel_calls(self.kernel_jaxpr))

    @property
    def is_kernel(self) -> bool:
        """Whether the equation calls a kernel with a sharding rule."""
        return self.kernel is not None

    @functools.cached_property
    def is_library_kernel(self) -> bool:
        """Whether the equation is one kernel that XLA calls, with a sharding rule or without."""
        return self.is_kernel or is_library_kernel(self.jaxpr_eqn)

    @functools.cached_property
    def region_multiplies(self) -> bool:
        """Whether a region of the equation contains a matmul, a convolution or a kernel."""
        return multiplies_inside(self.jaxpr_eqn)

    @functools.cached_property
    def communicates(self) -> bool:
        """Whether the equation is a collective in a `shard_map`, or asks for its device's
        position."""
        return is_collective(self.jaxpr_eqn)

    @functools.cached_property
    def is_unlowered(self) -> bool:
        """Whether planning does not lower the equation, since it may need devices that the planning
        machine lacks."""
        return is_unlowered(self.jaxpr_eqn)

    @functools.cached_property
    def has_effects(self) -> bool:
        """Whether the equation has side effects, apart from naming mesh axes."""
        return bool(jax_internals.side_effects(self.jaxpr_eqn))

    @functools.cached_property
    def may_repeat(self) -> bool:
        """Whether the equation may run twice: it has no side effects and calls no Python."""
        return not self.has_effects and not _calls_python(self.jaxpr_eqn)

    @property
    def name_stack(self) -> str:
        """The JAX name stack, e.g. `transpose(jvp())/layer`."""
        return join_scopes(self.scope, str(self.jaxpr_eqn.source_info.name_stack))

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """The indices of the values that the equation reads, each once, without literals."""
        return tuple(dict.fromkeys(i for i in self.inputs if isinstance(i, int)))

    @property
    def stacked_outputs(self) -> tuple[bool, ...]:
        """For each output of a scan, whether it is stacked; the others are carries."""
        return tuple(self.kept(jax_internals.stacked_results(self.jaxpr_eqn)))

    @property
    def filled_with(self) -> Any:
        """The scalar literal that a `broadcast_in_dim` broadcasts; None for other equations."""
        filled = self.inputs[0] if self.name == "broadcast_in_dim" else None
        return filled.value if isinstance(filled, Literal) else None

    @property
    def expanded(self) -> Any:
        """The scalar that XLA expands to a constant as large as the result; None if there is none.

        The scalar is the literal of a broadcast, or the zero to which the gradient of max pooling
        adds in a floating-point dtype.
        """
        if self.name != MAX_POOLING_GRADIENT:
            return self.filled_with
        return 0 if jnp.issubdtype(self.jaxpr_eqn.outvars[0].aval.dtype, jnp.floating) else None

    @functools.cached_property
    def source_line(self) -> str:
        """The line of the user's code, as `"file.py:12 (function)"`; empty if unknown.

        An equation without a line of its own, such as the random bits of a dropout, gets the line
        of its `caller`.
        """
        line = jax_internals.source_line(self.jaxpr_eqn.source_info)
        return line or (jax_internals.source_line(self.caller) if self.caller is not None else "")

    @functools.cached_property
    def _function(self) -> Callable[..., list[Any]]:
        eqn = self.jaxpr_eqn
        variables = tuple(
            dict.fromkeys(
                variable for variable in eqn.invars if not isinstance(variable, jex.Literal)
            )
        )
        outputs = kept_outputs(eqn)
        names = tuple("" for _ in variables), tuple("" for _ in outputs)
        debug_info = jex.DebugInfo("kiwi", eqn.primitive.name, *names)
        jaxpr = jex.Jaxpr((), variables, outputs, (eqn,), eqn.effects, debug_info)
        return jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))

    def apply(self, read: Callable[[int], Any]) -> list[Any]:
        """Evaluates the equation under its own name scope.

        `read` gives the array or tracer of a value index; returns one array per output.
        """
        arguments = {
            variable: i.value if isinstance(i, Literal) else read(i)
            for variable, i in zip(self.jaxpr_eqn.invars, self.inputs, strict=True)
            if not isinstance(variable, jex.Literal)
        }
        with jax.named_scope(self.scope) if self.scope else contextlib.nullcontext():
            return list(self._function(*arguments.values()))

    def operands(self, read: Callable[[int], Any]) -> list[Any]:
        """Returns all operands, literals included; `read` is as in `apply`."""
        return [i.value if isinstance(i, Literal) else read(i) for i in self.inputs]

    def kept(self, results: Sequence[Any]) -> list[Any]:
        """Returns the members of `results` that something reads. `results` has an entry for each
        result of the traced equation."""
        pairs = zip(results, self.jaxpr_eqn.outvars, strict=True)
        return [result for result, variable in pairs if not isinstance(variable, jex.DropVar)]

    def apply_to(self, scalar: Any, read: Callable[[int], Any]) -> list[Any]:
        """Evaluates the equation with `scalar`, an array of rank 0, in place of `expanded`.

        `read` is as in `apply`. Returns one array per output.
        """
        if self.filled_with is not None:
            return [jax.lax.broadcast(scalar, self.jaxpr_eqn.outvars[0].aval.shape)]
        source, operand = (read(i) if isinstance(i, int) else i.value for i in self.inputs)
        with jax.named_scope(self.name_stack) if self.name_stack else contextlib.nullcontext():
            return [jax_internals.select_and_scatter_add(self.jaxpr_eqn, source, operand, scalar)]


def _calls_python(eqn: Any) -> bool:
    """Whether a traced equation, or an equation of a region that it runs, is a `pure_callback`."""
    if eqn.primitive.name == "pure_callback":
        return True
    return any(_calls_python(inner) for region in inner_jaxprs(eqn) for inner in region.eqns)


def kept_outputs(eqn: Any) -> tuple[Any, ...]:
    """The results of a traced equation that something reads."""
    return tuple(variable for variable in eqn.outvars if not isinstance(variable, jex.DropVar))


@dataclass(frozen=True, eq=False)
class Program:
    """The flat program of a traced function.

    - `arguments`: value indices in the order of the flattened arguments.
    - `constants`: value index → captured array.
    - `results`: in the order of the flattened results.
    - `loops`: the opened loops, by their index.
    - `hints`: value index → the user's hints about the value.
    - `constraints`: value index → the traced `with_sharding_constraint` of the value, see
      `kiwi.hlo.sharding_constraints`.
    - `keeps_checkpoints`: whether the recomputation of the user's `jax.checkpoint` is kept separate
      from the first computation.
    - `user_offloads`: the values that the policy of a `jax.checkpoint` copies to host memory for
      the backward pass; empty unless `keeps_checkpoints`.
    - `residencies`: by name, the residency that replaced the function's own `jax.checkpoint`
      policies while it was traced (`kiwi.hlo.checkpoint_names`); None if its own policies applied.
    - `checkpointed_names`: the names inside of a `jax.checkpoint`; empty if `residencies` is None.
    """

    values: tuple[Value, ...]
    equations: tuple[Equation, ...]
    arguments: tuple[int, ...]
    constants: dict[int, Any]
    results: tuple[int | Literal, ...]
    loops: tuple[Loop, ...] = ()
    hints: Mapping[int, tuple[PlacedHint, ...]] = field(default_factory=dict)
    constraints: Mapping[int, Any] = field(default_factory=dict)
    keeps_checkpoints: bool = False
    user_offloads: frozenset[int] = frozenset()
    residencies: Mapping[str, str] | None = None
    checkpointed_names: tuple[str, ...] = ()

    @functools.cached_property
    def nesting(self) -> tuple[tuple[int, ...], ...]:
        """For each loop, the loops around it, outermost first, and last the loop itself."""
        paths: list[tuple[int, ...]] = []
        for loop in self.loops:
            outer = () if loop.parent is None else paths[loop.parent]
            paths.append((*outer, loop.index))
        return tuple(paths)

    def loops_around(self, loop: int | None) -> tuple[int, ...]:
        """The loops around a loop, outermost first, and last the loop itself; empty for None."""
        return () if loop is None else self.nesting[loop]

    def trips(self, loop: int | None) -> float:
        """The number of times that the body of a loop runs in a step; 1 for None."""
        return prod(self.loops[k].runs for k in self.loops_around(loop))

    def known_trips(self, loop: int | None) -> int:
        """`trips` as far as XLA knows: the body of a `while`, and each branch, runs once."""
        return prod(self.loops[k].length for k in self.loops_around(loop))

    def scans_around(self, loop: int | None) -> tuple[int, ...]:
        """The scans among a loop and the loops around it.

        A value of the loop has one element for each iteration of these scans.
        """
        around = self.loops_around(loop)
        return tuple(k for k in around if self.loops[k].kind is LoopKind.SCAN)

    def tests(self, loop: int | None) -> tuple[int, ...]:
        """The values that decide whether a loop and the loops around it go on, or which branch
        runs."""
        tests = (self.loops[k].test for k in self.loops_around(loop))
        return tuple(test for test in tests if test is not None)

    def read_only_by(self, reader: Equation, value: int | Literal) -> Equation | None:
        """The equation that computes `value`, if only `reader` reads the value and both equations
        are in the same loop; None otherwise."""
        if isinstance(value, Literal) or value in self.kept_values:
            return None
        producer = self.values[value].producer
        if producer is None or self.readers[value] != (reader.index,):
            return None
        equation = self.equations[producer]
        return equation if equation.loop == reader.loop else None

    def is_large_constant(self, equation: int) -> bool:
        """Whether an equation expands a scalar to `LARGE_BYTES` or more."""
        traced = self.equations[equation]
        if traced.expanded is None:
            return False
        return self.values[traced.outputs[0]].size_bytes >= LARGE_BYTES

    def loop_of(self, value: int) -> int | None:
        """The loop in which each iteration has its own member of a value; None for a value outside
        of loops. The stacked result of a loop belongs to the loop around."""
        producer = self.values[value].producer
        if producer is None:
            return None
        equation = self.equations[producer]
        if equation.name == loops.STACK:
            assert equation.loop is not None
            return self.loops[equation.loop].parent
        return equation.loop

    @functools.cached_property
    def next_values(self) -> dict[int, tuple[int, ...]]:
        """By value at the end of an iteration, the loops that hand the value on as a carry, or
        from a branch to the result."""
        loops_of_value: dict[int, tuple[int, ...]] = {}
        for loop in self.loops:
            for carry in loop.carries:
                if isinstance(carry.next, int):
                    loops_of_value[carry.next] = (*loops_of_value.get(carry.next, ()), loop.index)
        return loops_of_value

    @functools.cached_property
    def pinned_values(self) -> frozenset[int]:
        """The values that a hint, a constraint, or the policy of a `jax.checkpoint` restricts."""
        hinted = {
            value
            for value, placed in self.hints.items()
            if any(placed_hint.hint.pins for placed_hint in placed)
        }
        return frozenset(hinted | self.constraints.keys() | self.user_offloads)

    @functools.cached_property
    def result_values(self) -> frozenset[int]:
        """The values among the results."""
        return frozenset(result for result in self.results if isinstance(result, int))

    @functools.cached_property
    def kept_values(self) -> frozenset[int]:
        """The values that must exist even if no equation reads them: results, values handed to the
        next iteration, and values with a hint, a constraint or an offload by the user."""
        handed_on = self.result_values | self.next_values.keys()
        return handed_on | self.hints.keys() | self.constraints.keys() | self.user_offloads

    @functools.cached_property
    def host_values(self) -> frozenset[int]:
        """The arguments and results that lie in host memory, and elements of such arguments."""
        fetched = {
            value
            for equation in self.equations
            if equation.name == FETCH
            for value in equation.reads
        }
        stored = {equation.outputs[0] for equation in self.equations if equation.name == STORE}
        producers = (self.values[value].producer for value in fetched)
        sliced = (self.equations[producer].reads for producer in producers if producer is not None)
        return frozenset(fetched.union(stored, *sliced))

    def is_on_host(self, value: int | Literal) -> bool:
        """Whether a value is one of `host_values`."""
        return isinstance(value, int) and value in self.host_values

    @functools.cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the indices of the equations that read it, in program order."""
        readers: list[list[int]] = [[] for _ in self.values]
        for equation in self.equations:
            for value in equation.reads:
                readers[value].append(equation.index)
        return tuple(tuple(indices) for indices in readers)


def join_scopes(outer: str, inner: str) -> str:
    """Returns the name scope `inner` inside of `outer`; either may be empty."""
    return f"{outer}/{inner}" if outer and inner else outer or inner
