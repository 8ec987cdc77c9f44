"""Operators without a sharding rule that compute each element of a batch independently.

Examples are factorisations and solves of matrices, eigenvalues, Fourier transforms and largest
elements. Libraries or loops compute these operators. Along the batch dimensions each device can
compute its own part. A plan shards such an equation by the rule of a `Kernel` whose factors are the
batch dimensions. The emitted program runs the equation in a `shard_map` over the batch dimensions
that are cut (`kiwi.emit.kernels`). XLA's partitioner would cut some of these operators in the same
way, and gather the operands of others.

A new operator of this kind needs an entry in `_INNER_RANKS`, and an entry in `_FLOPS` if its work
is not one operation per element.
"""

from collections.abc import Callable, Mapping
from math import log2, prod
from typing import Any

from kiwi.hlo.kernels import Factors, Kernel

_INNER_RANKS: Mapping[str, Callable[[Any], int]] = {
    "cholesky": lambda eqn: 2,
    "eig": lambda eqn: 2,
    "eigh": lambda eqn: 2,
    "fft": lambda eqn: len(eqn.params["fft_lengths"]),
    "geqp3": lambda eqn: 2,
    "geqrf": lambda eqn: 2,
    "hessenberg": lambda eqn: 2,
    "householder_product": lambda eqn: 2,
    "lu": lambda eqn: 2,
    "lu_pivots_to_permutation": lambda eqn: 1,
    "qr": lambda eqn: 2,
    "schur": lambda eqn: 2,
    "svd": lambda eqn: 2,
    "top_k": lambda eqn: 1,
    "triangular_solve": lambda eqn: 2,
    "tridiagonal": lambda eqn: 2,
    "tridiagonal_solve": lambda eqn: 1,
}
"""By primitive, the number of trailing dimensions of the first operand that one computation uses.
The leading dimensions are the batch, for all operands and results."""


def batch_kernel(eqn: Any) -> Kernel | None:
    """Returns the kernel that shards only the batch dimensions of a traced equation.

    None for an equation without batch dimensions, or of another primitive than `_INNER_RANKS`
    lists.
    """
    batch = _batch(eqn)
    if not batch:
        return None

    def on_shards(*shards: Any) -> tuple[Any, ...]:
        results = eqn.primitive.bind(*shards, **eqn.params)
        return tuple(results) if eqn.primitive.multiple_results else (results,)

    return Kernel(
        eqn.primitive.name,
        on_shards,
        tuple(
            _factors(variable.aval, len(batch), f"operand {k}")
            for k, variable in enumerate(eqn.invars)
        ),
        tuple(
            _factors(variable.aval, len(batch), f"result {k}")
            for k, variable in enumerate(eqn.outvars)
        ),
        frozenset(f"batch {dim}" for dim in range(len(batch))),
    )


def batch_flops(eqn: Any) -> float:
    """Returns the floating-point operations of an equation that has a `batch_kernel`.

    A multiply-add counts as two. The counts of factorisations are those of Golub and Van Loan,
    *Matrix Computations*. Eigenvalues and singular values include their vectors.
    """
    shape = eqn.invars[0].aval.shape
    inner = shape[len(shape) - _INNER_RANKS[eqn.primitive.name](eqn) :]
    count = prod(shape[: len(shape) - len(inner)])
    flops = _FLOPS.get(eqn.primitive.name, lambda eqn, *sizes: float(prod(sizes)))
    return count * flops(eqn, *inner)


def _batch(eqn: Any) -> tuple[int, ...]:
    """Returns the sizes of the batch dimensions, which all operands and results share; empty if
    there are none."""
    inner_rank = _INNER_RANKS.get(eqn.primitive.name)
    if inner_rank is None:
        return ()
    shape = eqn.invars[0].aval.shape
    if eqn.primitive.name == "top_k" and eqn.params.get("axis", -1) not in (-1, len(shape) - 1):
        return ()
    batch = shape[: len(shape) - inner_rank(eqn)]
    alike = (variable.aval.shape[: len(batch)] == batch for variable in (*eqn.invars, *eqn.outvars))
    return batch if all(alike) else ()


def _factors(aval: Any, batch: int, name: str) -> Factors:
    return tuple(
        (f"batch {dim}",) if dim < batch else (f"{name} {dim}",) for dim in range(len(aval.shape))
    )


def _least_and_most(rows: int, columns: int) -> tuple[int, int]:
    return min(rows, columns), max(rows, columns)


def _qr_flops(eqn: Any, rows: int, columns: int) -> float:
    least, most = _least_and_most(rows, columns)
    return 4 * (most - least / 3) * least**2


def _svd_flops(eqn: Any, rows: int, columns: int) -> float:
    least, most = _least_and_most(rows, columns)
    if not eqn.params.get("compute_uv", True):
        return 4 * most * least**2 - 4 * least**3 / 3
    return 4 * most**2 * least + 8 * most * least**2 + 9 * least**3


def _triangular_flops(eqn: Any, rows: int, columns: int) -> float:
    solved = eqn.invars[1].aval.shape[-2:]
    return float(rows * prod(solved))


_FLOPS: Mapping[str, Callable[..., float]] = {
    "cholesky": lambda eqn, n, _: n**3 / 3,
    "eig": lambda eqn, n, _: 25 * n**3,
    "eigh": lambda eqn, n, _: 9 * n**3,
    "fft": lambda eqn, *sizes: 5 * prod(sizes) * log2(max(2, prod(sizes))),
    "geqp3": _qr_flops,
    "geqrf": lambda eqn, *sizes: _qr_flops(eqn, *sizes) / 2,
    "hessenberg": lambda eqn, n, _: 10 * n**3 / 3,
    "householder_product": lambda eqn, *sizes: _qr_flops(eqn, *sizes) / 2,
    "lu": lambda eqn, rows, columns: min(rows, columns) ** 2 * (max(rows, columns) * 2 / 3),
    "qr": _qr_flops,
    "schur": lambda eqn, n, _: 25 * n**3,
    "svd": _svd_flops,
    "top_k": lambda eqn, n: n * log2(max(2, eqn.params["k"])),
    "triangular_solve": _triangular_flops,
    "tridiagonal": lambda eqn, n, _: 4 * n**3 / 3,
}
"""By primitive, the work of one element of the batch. The functions take the equation and the sizes
of the first operand's trailing dimensions."""
