"""The parts that all example models share: training step, state and hand-written shardings."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Params: TypeAlias = dict[str, Any]
Batch: TypeAlias = dict[str, jax.Array]
Metrics: TypeAlias = dict[str, jax.Array]

Remat: TypeAlias = Literal["full", "dots", "dots_no_batch"] | None
"""The values of a block that `jax.checkpoint` recomputes in the backward pass.

None: nothing. "full": everything but the block's inputs. "dots": all but the results of matrix
multiplications and convolutions (the policy `dots_saveable`). "dots_no_batch": all but the results
of matrix multiplications without batch dimensions (`dots_with_no_batch_dims_saveable`).
"""

AxisNames: TypeAlias = str | tuple[str, ...]

_Config = TypeVar("_Config")


class TrainState(NamedTuple):
    """The state between training steps: parameters, optimizer state, number of steps done
    (int32)."""

    params: Params
    opt_state: optax.OptState
    step: jax.Array


TrainStep: TypeAlias = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


class Specs(NamedTuple):
    """Hand-written shardings of a training step.

    `state` has the structure of the `TrainState`, with a `PartitionSpec` for each array. `batch` is
    one `PartitionSpec` for all arrays of the batch.
    """

    state: Any
    batch: PartitionSpec


@dataclass(frozen=True)
class Example(Generic[_Config]):
    """A model and its training. The functions that example modules offer are its methods.

    **Attributes:**

    - `init_params`: `init_params(config, key)`, a pytree of float32 arrays.
    - `loss`: `loss(config, remat, params, batch)`, a scalar.
    - `optimizer`: `optimizer(config)`.
    - `make_batch`: `make_batch(config, seed=0)`, see `Batch`.
    """

    init_params: Callable[[_Config, jax.Array], Params]
    loss: Callable[[_Config, Remat, Params, Batch], jax.Array]
    optimizer: Callable[[_Config], optax.GradientTransformation]
    make_batch: Callable[[_Config], Batch]

    def make_train_step(self, config: _Config, *, remat: Remat = None) -> TrainStep:
        """Returns `train_step(state, batch) -> (state, {"loss": the loss before the update})`.

        `remat` applies to each block of the model, that is to each layer or stage. Tracing the step
        raises `ValueError` if `remat` is none of the values of `Remat`.
        """
        loss = functools.partial(self.loss, config, remat)
        optimizer = self.optimizer(config)

        def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
            value, gradients = jax.value_and_grad(loss)(state.params, batch)
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
            params: Any = optax.apply_updates(state.params, updates)
            return TrainState(params, opt_state, state.step + 1), {"loss": value}

        return train_step

    def make_state(self, config: _Config, seed: int = 0) -> TrainState:
        """Returns the state before the first step: random parameters and a fresh optimizer
        state."""
        params = self.init_params(config, jax.random.key(seed))
        return TrainState(params, self.optimizer(config).init(params), jnp.zeros((), jnp.int32))

    def abstract_state(self, config: _Config) -> TrainState:
        """Returns `make_state` with a `jax.ShapeDtypeStruct` for each array. Allocates nothing."""
        return jax.eval_shape(lambda: self.make_state(config))

    def abstract_batch(self, config: _Config) -> Batch:
        """Returns `make_batch` with a `jax.ShapeDtypeStruct` for each array. Allocates nothing."""
        return jax.eval_shape(lambda: self.make_batch(config))


def apply_remat(block: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """Returns `block` wrapped in `jax.checkpoint` as `remat` asks.

    **Raises:** `ValueError` if `remat` is none of the values of `Remat`.
    """
    if remat is None:
        return block
    if remat == "full":
        return jax.checkpoint(block)
    if remat == "dots":
        return jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)
    if remat == "dots_no_batch":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(block, policy=policy)
    raise ValueError(f"remat must be None, 'full', 'dots' or 'dots_no_batch', got {remat!r}")


def init_kernel(key: jax.Array, shape: tuple[int, ...], fan_in: int) -> jax.Array:
    """Returns a float32 kernel whose result has the variance of its input (LeCun's
    initialisation)."""
    return jax.random.normal(key, shape, jnp.float32) * fan_in**-0.5


def mean_squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the mean over all elements, a float32 scalar."""
    return jnp.mean(jnp.square(outputs.astype(jnp.float32) - targets.astype(jnp.float32)))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy over all positions, a float32 scalar. `labels` are int32 and
    index the last dimension of the logits."""
    logits = logits.astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def data_parallel_specs(state: TrainState, data_axis: AxisNames) -> Specs:
    """Plain data parallelism: every device holds the whole state and a slice of the batch."""
    return Specs(jax.tree.map(lambda _: PartitionSpec(), state), PartitionSpec(data_axis))


def fsdp_specs(state: TrainState, data_axis: AxisNames, axis_size: int) -> Specs:
    """Fully sharded data parallelism (ZeRO stage 3, Rajbhandari et al. 2020).

    The batch is sliced as in `data_parallel_specs`. Each array of the state is sharded along its
    largest dimension that `axis_size`, the number of devices along `data_axis`, divides. Of several
    equal dimensions the first is taken. An array without such a dimension is replicated.
    """

    def spec_of(array: Any) -> PartitionSpec:
        sizes = [size if size % axis_size == 0 else 0 for size in array.shape]
        if not any(sizes):
            return PartitionSpec()
        return PartitionSpec(*[None] * sizes.index(max(sizes)), data_axis)

    return Specs(jax.tree.map(spec_of, state), PartitionSpec(data_axis))


def specs_by_name(
    state: Any,
    by_name: Mapping[tuple[str, ...], PartitionSpec],
    data_axis: AxisNames | None,
) -> Specs:
    """Shards the arrays that `by_name` names, replicates the rest, and slices the batch along
    `data_axis`.

    A key of `by_name` holds the last names of an array's path without list positions, for example
    `("query", "kernel")`. The longest matching key decides. The optimizer's moments have the names
    of their parameters, and so the same shardings. `data_axis=None` does not slice the batch.
    """
    longest = max(map(len, by_name), default=0)

    def spec_of(path: tuple[Any, ...], _: Any) -> PartitionSpec:
        names = tuple(str(entry.key) for entry in path if hasattr(entry, "key"))
        for length in range(longest, 0, -1):
            if names[-length:] in by_name:
                return by_name[names[-length:]]
        return PartitionSpec()

    batch = PartitionSpec() if data_axis is None else PartitionSpec(data_axis)
    return Specs(jax.tree_util.tree_map_with_path(spec_of, state), batch)


def mixed_specs(
    state: TrainState, tensor_parallel: Specs, data_axis: AxisNames, axis_size: int
) -> Specs:
    """Tensor parallelism along one axis, fully sharded data parallelism along the other.

    Considers the dimensions of a state array that `tensor_parallel` leaves whole and that
    `axis_size` divides. The array is sharded over `data_axis` along the largest of these
    dimensions.
    """

    def spec_of(spec: PartitionSpec, array: Any) -> PartitionSpec:
        entries = [*spec, *[None] * (len(array.shape) - len(spec))]
        sizes = [
            size if entry is None and size % axis_size == 0 else 0
            for size, entry in zip(array.shape, entries, strict=True)
        ]
        if any(sizes):
            entries[sizes.index(max(sizes))] = data_axis
        return PartitionSpec(*entries)

    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
    specs = jax.tree.map(spec_of, tensor_parallel.state, state, is_leaf=is_spec)
    return Specs(specs, PartitionSpec(data_axis))


def named_shardings(mesh: Mesh, specs: Specs) -> tuple[Any, NamedSharding]:
    """Returns `specs` on `mesh`, in the form that `jax.jit(in_shardings=...)` takes.

    The step returns (state, metrics), so `out_shardings=(state_shardings, None)` keeps the state's
    shardings.
    """
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )
    return shardings.state, shardings.batch
