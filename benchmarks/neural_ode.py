"""A neural ODE of Diffrax, planned: a bounded `while` and its checkpointed adjoint.

python -m benchmarks.neural_ode                      # without a limit, then at 80 and 60 %
python -m benchmarks.neural_ode --batch=4096 --width=1024

The field has three layers. The solver is Tsit5 with adaptive steps. Training is gradient descent on
donated parameters, on eight virtual CPU devices. Budgets are shares of the compiled peak of the
plan without a limit.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from absl import app, flags

import kiwi
from benchmarks.hardware import priced_as
from kiwi.sizes import format_bytes

_BATCH = flags.DEFINE_integer("batch", 2048, "Initial values.")
_DIM = flags.DEFINE_integer("dim", 64, "Dimensions of the state.")
_WIDTH = flags.DEFINE_integer("width", 2048, "Of the field's hidden layers.")
_STEPS = flags.DEFINE_integer("steps", 16, "Steps of the solver at most.")
_SHARES = flags.DEFINE_list("shares", ["0.8", "0.6"], "Budgets.")
_SECONDS = flags.DEFINE_float("time_limit", 30.0, "Seconds for each plan.")


def field(t: Any, y: jax.Array, params: Any) -> jax.Array:
    """Returns the derivative of the state."""
    hidden = jnp.tanh(y @ params["in"] + t)
    return jnp.tanh(hidden @ params["hidden"]) @ params["out"]


def training_step(most_steps: int) -> Callable[..., Any]:
    """Returns a step of gradient descent on the distance between the solution and a target."""

    def loss(params: Any, start: jax.Array, target: jax.Array) -> jax.Array:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=0.1,
            y0=start,
            args=params,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-4),
            max_steps=most_steps,
            throw=False,
        )
        return jnp.mean((solution.ys[-1] - target) ** 2)

    def step(params: Any, start: jax.Array, target: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, start, target)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), value

    return step


def arguments(batch: int, dim: int, width: int) -> tuple[Any, ...]:
    """Returns abstract parameters, initial values and targets."""
    shapes = {"in": (dim, width), "hidden": (width, width), "out": (width, dim)}
    params = {name: jax.ShapeDtypeStruct(s, "float32") for name, s in shapes.items()}
    values = jax.ShapeDtypeStruct((batch, dim), "float32")
    return params, values, values


def main(_: list[str]) -> None:
    """Plans without a limit and at shares of that plan's compiled peak, and prints a line for each
    plan."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    args = arguments(_BATCH.value, _DIM.value, _WIDTH.value)
    planned = kiwi.jit(
        training_step(_STEPS.value),
        mesh_shape=(2, 4),
        profile=priced_as("h100-sxm", "cpu"),
        verify="cpu",
        donate_argnums=0,
        time_limit_seconds=_SECONDS.value,
    )
    free = _line("free", planned.plan(*args))
    for share in _SHARES.value:
        limited = planned.with_options(memory_budget=int(float(share) * free))
        try:
            _line(share, limited.plan(*args))
        except kiwi.errors.KiwiError as error:
            print(f"{share}: {error}", flush=True)


def _line(name: str, plan: kiwi.Plan) -> int:
    """Prints the figures of a plan, and returns its compiled peak in bytes."""
    assert plan.compiled is not None
    predicted, compiled = plan.estimate.peak_bytes, plan.compiled.peak_bytes
    print(
        f"{name}: predicted {format_bytes(predicted)}, compiled {format_bytes(compiled)} "
        f"({predicted / compiled:.2f}), {plan.estimate.step_seconds * 1e3:.2f} ms a step",
        flush=True,
    )
    return compiled


if __name__ == "__main__":
    app.run(main)
