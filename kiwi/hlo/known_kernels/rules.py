"""`kiwi.sharding_rule`: gives a function of arrays a sharding rule, so that a plan shards it.

The gradient is a second kernel. It reads the residuals of `jax.vjp` from the forward pass. To find
the factor along which a residual's dimension is sharded, the forward pass is traced on operands
with that factor cut into smaller pieces: the residual's dimension then shrinks. A residual that is
a result of the function, as in attention, is not kept a second time.

Each device computes the gradients of all operands without communication. A factor that one of the
operands lacks would leave partial sums in its gradient. So such a factor stays whole in the
backward pass.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend import core as jex

from kiwi.errors import InvalidArgumentError
from kiwi.hlo import jax_internals
from kiwi.hlo.kernels import Factors, Kernel, factor_sizes, shardable
from kiwi.hlo.known_kernels.registry import known_kernel, parsed_rule
from kiwi.messages import topics


def sharding_rule(
    fun: Callable[..., Any],
    rule: str | None = None,
    *,
    need_replication_factors: Sequence[str] | None = None,
    share_of_work: float | None = None,
) -> Callable[..., Any]:
    """Returns `fun` as one operator of a plan, sharded by a rule in Shardy's notation.

    Use it for functions that XLA cannot partition: Pallas kernels, and calls of libraries. A plan
    chooses the layouts, and calls `fun` on the shards of each device. The returned function works
    without Kiwi, too, and under `jax.grad` and `jax.vmap`.

    - `fun`: takes arrays by position. Other arguments are passed by keyword, and are not traced.
      `fun` is traced for whole arrays and for shards of them.
    - `rule`: a word per dimension of each operand and result, such as
      "b s h d, b t h d, b t h d -> b s h d". Dimensions with the same word are sharded alike.
      Several words in parentheses share a dimension. The rule may be left out for kernels that are
      known by name (`kiwi.hlo.known_kernels.registry`), such as jax's own attention functions.
    - `need_replication_factors`: words that are never sharded, for example the word of a dimension
      along which a causal mask counts positions. Words that a result lacks are never sharded
      either.
    - `share_of_work`: the part of its work that the kernel does, in (0, 1], if it skips blocks
      under a mask. By default the kernel does all of its work, apart from blocks that a Pallas
      kernel's body skips (`kiwi.hlo.grids`). The default of a causal
      `jax.nn.dot_product_attention` is a half.

    **Raises:** `InvalidArgumentError` if the rule cannot be read. A call of the returned function
    raises it if the rule does not fit the arrays.
    """
    function = fun.func if isinstance(fun, functools.partial) else fun
    name = getattr(function, "__name__", type(function).__name__)
    entry = known_kernel(_full_name(function))
    if rule is None and entry is not None:
        need_replication_factors = need_replication_factors or tuple(entry.whole)
    bound = fun.keywords if isinstance(fun, functools.partial) else {}
    if rule is None and entry is not None:
        rules = entry.rules
    else:
        parsed = parsed_rule(name, rule)
        rules = lambda _: (parsed,)  # noqa: E731

    @functools.wraps(function)
    def ruled(*args: Any, **kwargs: Any) -> Any:
        arguments = {**bound, **kwargs}
        of_call = rules(arguments)[0]
        operands = tuple(operand.factors for operand in of_call.operands if operand.name is None)
        results = of_call.results
        if len(args) != len(operands):
            raise InvalidArgumentError(
                f"The sharding rule of {name} has {len(operands)} operands, the call {len(args)}.",
                topic=topics.RULE_MISFIT,
                suggestion="Arrays go by position, anything else by keyword.",
            )

        def call(*args: Any) -> tuple[Any, ...]:
            return tuple(jax.tree.leaves(fun(*args, **kwargs)))

        share = share_of_work
        if share is None:
            share = 1.0 if entry is None else entry.share_of_work(arguments)
        sharded = shardable(operands, results) - frozenset(need_replication_factors or ())
        sizes = {} if entry is None or rule is not None else entry.sizes(arguments)
        outputs = applied(name, call, operands, results, sharded, share, sizes, args)
        return outputs if len(results) > 1 else outputs[0]

    return ruled


def applied(
    name: str,
    function: Callable[..., tuple[Any, ...]],
    operands: tuple[Factors, ...],
    results: tuple[Factors, ...],
    sharded: frozenset[str],
    share_of_work: float,
    known_sizes: Mapping[str, int],
    args: Sequence[Any],
) -> tuple[Any, ...]:
    """Applies a function of arrays as one operator, and returns its results.

    The parameters are the fields of `Kernel`, and `args`, the operands. Known kernels that the
    function calls are not recognised.
    """

    def call(*args: Any) -> tuple[Any, ...]:
        with jax_internals.assumed_cudnn(), jax_internals.known_kernels_in_traces(None):
            return function(*args)

    kernel = _Differentiable(
        name, call, operands, results, sharded, share_of_work, known_sizes=known_sizes
    )
    outputs: Any = _apply(kernel, *args)
    return tuple(outputs)


def _full_name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"


class _Differentiable(Kernel):
    """A kernel that also yields the kernels of its forward and its backward pass."""

    def forward(self, args: Sequence[Any]) -> Kernel:
        """Returns the kernel that computes the results and, behind them, the residuals."""
        residuals = list(self._residuals(args))
        results = (*self.results, *(factors for factors, _ in residuals))
        variable = [factors for factors, is_constant in residuals if not is_constant]
        sharded = self.sharded & shardable(self.operands, [*self.results, *variable])
        name = f"{self.name} forward"
        return Kernel(
            name,
            self._with_residuals,
            self.operands,
            results,
            sharded,
            self.share_of_work,
            known_sizes=self.known_sizes,
        )

    def backward(self, args: Sequence[Any], forward: Kernel) -> Kernel:
        """Returns the kernel that computes the gradients of the floating-point operands.

        Its operands are the operands of the forward pass, the results that the pull-back reads, the
        residuals, and the cotangents.
        """
        read_results = [self.results[k] for k in self.results_read(args)]
        residuals = (*read_results, *forward.results[len(self.results) :])
        residuals_start, cotangents_start = len(args), len(args) + len(residuals)

        def pulled(*found: Any) -> tuple[Any, ...]:
            gradients = self._pull(
                found[:residuals_start], found[residuals_start:cotangents_start]
            )(found[cotangents_start:])
            return tuple(
                gradient
                for array, gradient in zip(found, gradients, strict=False)
                if _is_real(array)
            )

        operands = (*self.operands, *residuals, *self.results)
        results = tuple(
            tensor for tensor, array in zip(self.operands, args, strict=True) if _is_real(array)
        )
        sharded = forward.sharded & shardable(operands, results)
        return Kernel(
            f"{self.name} backward",
            pulled,
            operands,
            results,
            sharded,
            self.share_of_work,
            known_sizes=self.known_sizes,
        )

    def results_read(self, args: Sequence[Any]) -> list[int]:
        """Returns the numbers of the results that the pull-back reads, in order."""
        numbers: list[int | None] = []
        jax.eval_shape(lambda *args: numbers.extend(self._taken_apart(args)[3]), *args)
        return sorted({k - len(args) for k in numbers if k is not None and k >= len(args)})

    def _taken_apart(self, args: Sequence[Any]) -> tuple[Any, list[Any], Any, list[int | None]]:
        """Returns the results of the function, the leaves and the tree of its pull-back, and a
        number for each leaf.

        The number is the leaf's place among the operands and, behind them, the results. It is None
        for a leaf that is a residual or a constant.
        """
        results, pull = jax.vjp(self.function, *args)
        leaves, tree = jax.tree.flatten(pull)
        arrays = (*args, *results)
        numbers = [
            next((k for k, array in enumerate(arrays) if array is leaf), None) for leaf in leaves
        ]
        return results, leaves, tree, numbers

    def _with_residuals(self, *args: Any) -> tuple[Any, ...]:
        if not all(isinstance(array, Tracer) for array in args):
            # Residuals are leaves that are traced, constants are leaves that are not.
            return jax.jit(self._with_residuals)(*args)
        results, leaves, _, numbers = self._taken_apart(args)
        pairs = zip(leaves, numbers, strict=True)
        return (*results, *(leaf for leaf, k in pairs if k is None and isinstance(leaf, Tracer)))

    def _pull(self, args: Sequence[Any], residuals: Sequence[Any]) -> Any:
        """Returns the pull-back of `jax.vjp`.

        `residuals`: the results that the pull-back reads, then the residuals.
        """
        parts: list[Any] = []

        def note(*args: Any) -> None:
            _, leaves, tree, numbers = self._taken_apart(args)
            constants = [None if isinstance(leaf, Tracer) else leaf for leaf in leaves]
            parts[:] = [tree, constants, numbers]

        jax.eval_shape(note, *args)
        tree, constants, numbers = parts
        read_results = self.results_read(args)
        known_leaves = dict(enumerate(args)) | {
            len(args) + k: residual
            for k, residual in zip(read_results, residuals)  # noqa: B905
        }
        remaining = iter(residuals[len(read_results) :])
        leaves = [
            known_leaves[k] if k is not None else next(remaining) if constant is None else constant
            for constant, k in zip(constants, numbers, strict=True)
        ]
        return jax.tree.unflatten(tree, leaves)

    def _residuals(self, args: Sequence[Any]) -> Iterator[tuple[Factors, bool]]:
        """Yields the factors of each residual, and whether the residual depends on no operand.

        A dimension has the first factor with which it shrinks. If its size is not that factor's, or
        it shrinks with none or with several, a factor of its own follows.
        """
        traced, sizes = self._traced(args), self._sizes(args)
        shrinkable = (factor for factor in sorted(self.sharded) if sizes[factor] > 1)
        smaller = {factor: self._traced(self._shrunk(args, factor)) for factor in shrinkable}
        for k, (shape, is_constant) in enumerate(traced):
            dims = []
            for dim, size in enumerate(shape):
                cutting_factors = [
                    factor for factor, residuals in smaller.items() if residuals[k][0][dim] != size
                ]
                alone = len(cutting_factors) == 1 and size == sizes[cutting_factors[0]]
                dims.append((*cutting_factors[:1], *(() if alone else (f"residual {k} {dim}",))))
            yield tuple(dims), is_constant

    def _traced(self, args: Sequence[Any]) -> list[tuple[tuple[int, ...], bool]]:
        """Returns the shape of each residual, and whether the residual depends on no operand."""
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in args]
        jaxpr = jax.make_jaxpr(self._with_residuals)(*shapes).jaxpr
        variable = set(jaxpr.invars)
        for eqn in jaxpr.eqns:
            if any(atom in variable for atom in eqn.invars if not isinstance(atom, jex.Literal)):
                variable.update(eqn.outvars)
        residuals = jaxpr.outvars[len(self.results) :]
        return [
            (atom.aval.shape, isinstance(atom, jex.Literal) or atom not in variable)
            for atom in residuals
        ]

    def _sizes(self, args: Sequence[Any]) -> dict[str, int]:
        pairs = zip(self.operands, (array.shape for array in args), strict=True)
        return factor_sizes(self.name, pairs, self.known_sizes)

    def _shrunk(self, args: Sequence[Any], factor: str) -> list[jax.ShapeDtypeStruct]:
        """Returns the types of the operands with the size of a factor divided by its least prime
        factor."""
        size = self._sizes(args)[factor]
        divisor = next(n for n in range(2, size + 1) if size % n == 0)
        return [
            jax.ShapeDtypeStruct(
                tuple(
                    n // divisor if factor in dim_factors else n
                    for dim_factors, n in zip(tensor, array.shape, strict=True)
                ),
                array.dtype,
            )
            for tensor, array in zip(self.operands, args, strict=True)
        ]


def _is_real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(kernel: _Differentiable, *args: Any) -> tuple[Any, ...]:
    return kernel(*args)


def _forward(kernel: _Differentiable, *args: Any) -> tuple[Any, Any]:
    forward, count = kernel.forward(args), len(kernel.results)
    outputs = forward(*args)
    residuals = (*(outputs[k] for k in kernel.results_read(args)), *outputs[count:])
    return outputs[:count], (args, residuals, kernel.backward(args, forward))


def _backward(_: _Differentiable, kept: Any, cotangents: Any) -> tuple[Any, ...]:
    args, residuals, backward = kept
    gradients = iter(backward(*args, *residuals, *cotangents))
    return tuple(next(gradients) if _is_real(operand) else None for operand in args)


_apply.defvjp(_forward, _backward)
